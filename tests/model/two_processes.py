"""A script in two processes that find each other through gloo, as `torchrun` starts it."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

SRC = pathlib.Path(__file__).parents[2] / "src"
# What C++ says when a thread is destroyed that still runs (torch 2.13, now and then).
ABORTED = "terminate called without an active exception"

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch is built without gloo"
)


def environment():
    paths = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    # gloo looks the host up by name, which sandboxes do not always know
    return os.environ | {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_one_process(*command):
    """Its output; a failure raises."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def torchrun(*command):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    launch += ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    return subprocess.run(
        [*launch, *map(str, command)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )


def same_numbers(found, expected, keys=("value", "stderr")):
    """Two reports, read from JSON, hold the same numbers."""
    assert found["measures"].keys() == expected["measures"].keys()
    for name, measurement in expected["measures"].items():
        for key in keys:
            if measurement[key] is None:
                assert found["measures"][name][key] is None
            else:
                number = float(found["measures"][name][key])
                assert number == pytest.approx(float(measurement[key]), rel=1e-10), (name, key)
    for name, rows in expected["layers"].items():
        for layer, measurement in rows.items():
            value = found["layers"][name][layer]["value"]
            assert value == pytest.approx(measurement["value"], rel=1e-10, abs=1e-14), (name, layer)
