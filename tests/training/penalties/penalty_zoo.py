"""Every penalty, and one that a user wrote, for tests of what all of them have in common."""

import torch
from torch import nn

from spiritlevel.training import FlatnessPenalty, HeadPenalty, KappaPenalty, Penalty


class NoisyLogits(Penalty):
    """A user's penalty: large outputs cost, by random shares."""

    def compute(self, batch):
        shares = torch.rand(batch.size, generator=self.generator)
        return (shares.to(batch.outputs) * batch.outputs.square().sum(dim=1)).mean()


# name in a study: (class, the arguments that it needs for a network whose layers are given)
PENALTIES = {
    "trace_squared": (FlatnessPenalty, {}),
    "head_trace": (HeadPenalty, {"kind": "trace"}),
    "head_kappa": (HeadPenalty, {"kind": "kappa"}),
    "head_trace_squared": (HeadPenalty, {"kind": "trace_squared"}),
    "kappa": (KappaPenalty, {"layer": None}),
    "own": (NoisyLogits, {}),
}


def make_penalty(name: str, model: nn.Module, weight: float = 0.01, *, layer: str, **options):
    """One of PENALTIES; `layer` is the path of the linear layer that κ is about."""
    kind, arguments = PENALTIES[name]
    if "layer" in arguments:
        arguments = {"layer": layer}
    return kind(model, weight, **arguments, **options)
