"""One process that imports torch for all others that the tests start, and forks them.

Importing torch takes seconds, and what tests need besides takes as long again. So pytest's workers
begin with all of it, and commands (`fresh`) and scripts (`forked`) with torch alone: what they
import of this package, they import anew.

fork_server.py STAGE ARGUMENTS      as `python ARGUMENTS`, forked from the server that was started
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

# In this order; a process of a stage has imported what the stages before it import.
STAGES = {
    "torch": ["torch._dynamo"],
    "libraries": ["scipy.stats", "pandas", "transformers", "peft", "lightning", "pytest"],
}
FOLDER = "SPIRITLEVEL_TESTS_FORK_SERVER"  # the variable that names the folder of its sockets


@functools.cache
def start() -> str:
    """The folder of the server's sockets, one for each stage; starts it if nobody did before."""
    if FOLDER in os.environ:
        return os.environ[FOLDER]
    folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="forks-")
    listeners = [socket.socket(socket.AF_UNIX) for _ in STAGES]
    for stage, listener in zip(STAGES, listeners, strict=True):
        listener.bind(f"{folder}/{stage}")
        listener.listen()  # who comes before the imports are done waits for them
        like_python = pathlib.Path(folder, f"{stage}-python")
        command = shlex.join([sys.executable, __file__, stage])
        like_python.write_text(f'#!/bin/sh\nexec {command} "$@"\n', "utf-8")
        like_python.chmod(0o700)
    descriptors = [listener.fileno() for listener in listeners]
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", *map(str, descriptors)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,  # it ends with this process
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
    )
    for listener in listeners:
        listener.close()

    @atexit.register
    def end() -> None:
        server.communicate()  # closes its input, which ends it
        shutil.rmtree(folder)
        del os.environ[FOLDER]

    return folder


def program(stage: str) -> str:
    """A program that takes the place of `python`, where only its path can be given."""
    return f"{start()}/{stage}-python"


def run(stage, arguments, descriptors: dict[int, int], env=None, cwd=None) -> int:
    """The exit status of `python ARGUMENTS`, which finds open files under the given numbers."""
    request = {
        "arguments": list(map(str, arguments)),
        "numbers": list(descriptors),
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or pathlib.Path.cwd()),
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"{start()}/{stage}")
        socket.send_fds(connection, [b"."], list(descriptors.values()))
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.makefile().read())


def as_new_interpreter(stage: str, *arguments: str) -> None:
    """Wait for a process that is forked with all open files of this one, and end as it did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches that process too
    inherited = [int(name) for name in os.listdir("/dev/fd")]
    descriptors = {number: number for number in inherited if _is_open(number)}
    # options of the interpreter itself are left out
    options = next(i for i, word in enumerate(arguments) if word in ("-c", "-m") or word[0] != "-")
    status = run(stage, arguments[options:], descriptors)
    sys.exit(status if status >= 0 else 128 - status)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:  # it was that of the list itself
        return False
    return True


# -- in the server -----------------------------------------------------------------------------


def serve_stages(*descriptors: str) -> None:
    """Import what a stage has, and go on to the next one in a process of its own."""
    del sys.path[0]  # this folder: a command must not find the helpers of the tests
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process that started it
    before = dict(os.environ)
    for i, (stage, descriptor) in enumerate(zip(STAGES, descriptors, strict=True)):
        listener = socket.socket(fileno=int(descriptor))
        if i and listener not in select.select([listener, 0], [], [])[0]:
            os._exit(0)  # nobody has asked for it
        for name in STAGES[stage]:
            with contextlib.suppress(ImportError):  # an extra
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a command that ends need not look through all of torch for what is left
        if i + 1 == len(STAGES) or os.fork():
            break
    changed = {name: v for name, v in os.environ.items() if before.get(name) != v}
    become(*serve(listener), changed)


def serve(listener: socket.socket) -> tuple[dict, list[int]]:
    """Fork for every request; returns in the forked processes alone."""
    while True:
        ready, _, _ = select.select([listener, 0], [], [], 1.0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if 0 in ready:
            os._exit(0)
        if not ready:
            continue
        connection, _ = listener.accept()
        with connection:
            if os.fork():
                continue
            # this process waits for the one that runs the command, so that others need not
            _, descriptors, _, _ = socket.recv_fds(connection, 1, maxfds=64)
            request = json.loads(connection.makefile().read())
            process = os.fork()
            if process == 0:
                listener.close()
                return request, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            _, status = os.waitpid(process, 0)
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)


def become(request: dict, descriptors: list[int], changed: dict[str, str]) -> None:
    """What the interpreter does with its arguments."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # first to numbers that nobody asks for: one may have the number of another
    apart = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 256) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for number, descriptor in zip(request["numbers"], apart, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(changed | request["env"])
    os.chdir(request["cwd"])
    if sys.modules["torch"].cuda._is_in_bad_fork():  # a library has looked for a GPU: none is left
        os.execv(sys.executable, [sys.executable, *request["arguments"]])
    sys.path[:0] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
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
    stage, *arguments = sys.argv[1:]
    if stage == "serve":
        serve_stages(*arguments)
    else:
        as_new_interpreter(stage, *arguments)
