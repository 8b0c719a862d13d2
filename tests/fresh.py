"""New interpreters that have imported torch, and nothing of this package.

Importing torch takes seconds, so one server does it once and forks for every command. What the
command itself imports is imported anew: an example that forgets an import fails as for a user.
"""

import atexit
import functools
import gc
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

SRC = pathlib.Path(__file__).parents[1] / "src"


def run(*arguments, env=None, cwd=None) -> subprocess.CompletedProcess:
    """As `python ARGUMENTS` with the package on its path: a script, or -c and code, or -m."""
    if not hasattr(os, "fork"):  # on Windows, where each has to import torch
        return _alone(*arguments, env=env, cwd=cwd)
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "arguments": [str(argument) for argument in arguments],
            "env": {**os.environ, "PYTHONPATH": str(SRC), **(env or {})},
            "cwd": str(cwd or pathlib.Path.cwd()),
            "stdout": f"{folder}/stdout",
            "stderr": f"{folder}/stderr",
        }
        server = _server()
        print(json.dumps(request), file=server.stdin, flush=True)
        returncode = int(server.stdout.readline())
        printed = [pathlib.Path(request[name]).read_text("utf-8") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(request["arguments"], returncode, *printed)


def _alone(*arguments, env, cwd) -> subprocess.CompletedProcess:
    set_for_all = {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **set_for_all, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


@functools.cache
def _server() -> subprocess.Popen:
    server = subprocess.Popen(
        [sys.executable, __file__],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.kill)
    return server


def serve() -> dict:
    """Answer every request with an exit status; returns in the forked processes alone."""
    for line in iter(sys.stdin.readline, ""):
        process = os.fork()
        if process == 0:
            return json.loads(line)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def become(request: dict) -> None:
    """What the interpreter does with its arguments."""
    files = [(os.devnull, os.O_RDONLY)]
    files += [(request[name], os.O_WRONLY | os.O_CREAT) for name in ("stdout", "stderr")]
    for descriptor, (path, flags) in enumerate(files):
        os.dup2(os.open(path, flags), descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[:0] = request["env"]["PYTHONPATH"].split(os.pathsep)
    first, *others = request["arguments"]
    if first == "-c":
        code, *others = others
        sys.argv = ["-c", *others]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        module, *others = others
        sys.argv = [module, *others]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *others]
        sys.path.insert(0, str(pathlib.Path(first).parent))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # this folder: a command must not find the helpers of the tests
    import torch._dynamo  # noqa: F401

    gc.collect()
    gc.freeze()  # a command that ends need not look through all of torch for what is left
    become(serve())
