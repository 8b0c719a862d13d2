"""A script as users start it in two processes."""

import os
import pathlib
import subprocess
import sys

SRC = pathlib.Path(__file__).parents[2] / "src"
# What C++ says when a thread is destroyed that still runs (torch 2.13, now and then).
ABORTED = "terminate called without an active exception"


def torchrun(*command):
    paths = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    # gloo looks the host up by name, which sandboxes do not always know
    gloo = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
        + [str(part) for part in command],
        env=os.environ | gloo,
        capture_output=True,
        text=True,
        timeout=240,
    )
