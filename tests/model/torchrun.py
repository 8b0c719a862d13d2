"""A script as users start it in two processes."""

import fresh

# What C++ says when a thread is destroyed that still runs (torch 2.13, now and then).
ABORTED = "terminate called without an active exception"


def torchrun(*command):
    # gloo looks the host up by name, which sandboxes do not always know
    start = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    return fresh.run(*start, *command, env={"GLOO_SOCKET_IFNAME": "lo"})
