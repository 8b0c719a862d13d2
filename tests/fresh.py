"""New interpreters that have imported torch, and nothing of this package.

Importing torch takes seconds, so `multiprocessing`'s server does it once for each process of tests
and forks for every command. What the command itself imports is imported anew: an example that
forgets an import fails as for a user. Tests of that first import start an interpreter themselves.
"""

import functools
import importlib
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping

TIMEOUT = 240  # seconds; a busy machine takes them, a free one does not
SRC = pathlib.Path(__file__).parents[1] / "src"
PATH = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH")]))


def forks() -> multiprocessing.context.BaseContext:
    """Starts processes that have imported torch."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # on Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo"])  # an optimizer imports it
    # Started by a study's pool it would be deaf to Ctrl-C, and so would all it forks later.
    importlib.import_module("multiprocessing.forkserver").ensure_running()
    return context


def run(*arguments, env=None, cwd=None) -> subprocess.CompletedProcess:
    """As `python ARGUMENTS` with the package on its path: a script, or -c and code, or -m."""
    [ended] = run_together(arguments, [env or {}], cwd)
    return ended


def run_together(
    arguments, environments: list[Mapping[str, str]], cwd=None
) -> list[subprocess.CompletedProcess]:
    """The same command once for each environment, all at the same time."""
    command = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        printed = [(f"{folder}/{i}.out", f"{folder}/{i}.err") for i in range(len(environments))]
        processes = []
        for environment, files in zip(environments, printed, strict=True):
            env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", **environment}
            asked = (command, _search_path(env["PYTHONPATH"]), env, str(cwd or pathlib.Path.cwd()))
            processes.append(forks().Process(target=_become, args=(*asked, files)))
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(TIMEOUT)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
        return [
            subprocess.CompletedProcess(
                command,
                process.exitcode,
                *(pathlib.Path(file).read_text("utf-8") for file in files),
            )
            for process, files in zip(processes, printed, strict=True)
        ]


@functools.cache
def _search_path(python_path: str) -> list[str]:
    """Where a new interpreter looks for modules: not where tests have their helpers."""
    code = "import sys; print(*sys.path[1:], sep='\\n')"
    return subprocess.check_output(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": python_path}, text=True
    ).splitlines()


def _become(command, search_path, environment, cwd, files) -> None:
    """In the new process: what the interpreter does with its arguments."""
    for descriptor, name in enumerate(files, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = (open(i, "w", buffering=1, encoding="utf-8") for i in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if "torch" in sys.modules:  # too late for OMP_NUM_THREADS
        sys.modules["torch"].set_num_threads(1)
    first, *others = command
    if first == "-c":
        code, *others = others
        sys.path[:], sys.argv = ["", *search_path], ["-c", *others]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        module, *others = others
        sys.path[:], sys.argv = [cwd, *search_path], [module, *others]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[:], sys.argv = [str(pathlib.Path(first).parent), *search_path], command
        runpy.run_path(first, run_name="__main__")
