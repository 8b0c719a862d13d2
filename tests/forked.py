"""Scripts in one process, or in several that find each other through gloo."""

import socket
import sys

import pytest
import torch.distributed as dist

import fresh

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch is built without gloo"
)


def run_script(path, *arguments) -> str:
    """What a script prints; the test fails if it does not end well."""
    done = fresh.run(path, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_in_two_processes(path, *arguments) -> list[str]:
    """What a script prints in each of two processes."""
    return run_in_processes(2, path, *arguments)


def run_in_processes(count: int, path, *arguments) -> list[str]:
    """What a script prints in each of several processes, told of each other as by `torchrun`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # gloo looks the host up by name, which sandboxes do not always know
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if loop := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
        common["GLOO_SOCKET_IFNAME"] = loop
    common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    environments = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    all_ended = fresh.run_together((path, *arguments), environments)
    for ended in all_ended:
        assert ended.returncode == 0, ended.stderr
    return [ended.stdout for ended in all_ended]
