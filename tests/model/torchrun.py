"""A script as users start it in two processes."""

import os

import fresh

# What C++ says when a thread is destroyed that still runs (torch 2.13, now and then).
ABORTED = "terminate called without an active exception"


def torchrun(*command):
    # gloo looks the host up by name, which sandboxes do not always know
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if hasattr(os, "fork"):
        import fork_server

        env["PYTHON_EXEC"] = fork_server.program("torch")  # by which torchrun starts the script
    start = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    return fresh.run(*start, *command, env=env)
