"""Scripts in new processes, without the seconds that a new interpreter takes to import torch.

The processes are forked from one server, which has imported the package and computed nothing. Where
a test is about the imports themselves, or about memory, it needs a new interpreter all the same.
"""

import dataclasses
import functools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import pathlib
import runpy
import socket
import sys
import tempfile
from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist

TIMEOUT = 240  # seconds; a busy machine takes them, a free one does not
needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch is built without gloo"
)


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a script left behind."""

    returncode: int | None
    stdout: str
    stderr: str


def forks() -> multiprocessing.context.BaseContext:
    """Starts processes that have imported the package; one server for all tests of a worker."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # on Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # An optimizer imports the last of them.
    context.set_forkserver_preload(["spiritlevel_lab", "spiritlevel.cli.app", "torch._dynamo"])
    _start_from_torch()
    return context


@functools.cache
def _start_from_torch() -> None:
    """Start the server of `multiprocessing` as a fork of ours, which has imported torch."""
    import fork_server

    python = multiprocessing.spawn.get_executable()
    multiprocessing.resource_tracker.ensure_running()  # by the usual one: it needs no torch
    multiprocessing.set_executable(fork_server.program("torch"))
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        multiprocessing.set_executable(python)


def run_script(path, *arguments) -> str:
    """What a script prints; the test fails if it does not end well."""
    [ended] = run_scripts(path, *arguments, environments=[{}])
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run_in_two_processes(path, *arguments) -> list[str]:
    """What a script prints in each of two processes that find each other through gloo."""
    return run_in_processes(2, path, *arguments)


def run_in_processes(count: int, path, *arguments) -> list[str]:
    """What a script prints in each of several processes that find each other through gloo.

    They are told of each other as `torchrun` would tell them.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # gloo looks the host up by name, which sandboxes do not always know
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if loop := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
        common["GLOO_SOCKET_IFNAME"] = loop
    common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    environments = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    all_ended = run_scripts(path, *arguments, environments=environments)
    for ended in all_ended:
        assert ended.returncode == 0, ended.stderr
    return [ended.stdout for ended in all_ended]


def run_scripts(path, *arguments, environments: list[Mapping[str, str]]) -> list[Ended]:
    """A script once for each environment, all at the same time."""
    command = [str(path), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder) / str(i) for i in range(len(environments))]
        processes = [
            forks().Process(target=_run, args=(command, dict(environment), str(output)))
            for environment, output in zip(environments, outputs, strict=True)
        ]
        for process in processes:
            process.start()
        try:
            for process in processes:
                process.join(TIMEOUT)
        finally:
            for process in processes:
                process.kill()  # does nothing to one that has ended
        return [
            Ended(
                process.exitcode,
                output.with_suffix(".out").read_text("utf-8"),
                output.with_suffix(".err").read_text("utf-8"),
            )
            for process, output in zip(processes, outputs, strict=True)
        ]


def _run(command: list[str], environment: Mapping[str, str], output: str) -> None:
    for descriptor, suffix in ((1, ".out"), (2, ".err")):
        file = os.open(output + suffix, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = (open(i, "w", buffering=1, encoding="utf-8") for i in (1, 2))  # noqa: SIM115
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = command
    sys.path.insert(0, str(pathlib.Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")
