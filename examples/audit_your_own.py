"""Audit a network: find out which flatness numbers are meaningful for it.

Run it with `python examples/audit_your_own.py`.
"""

from __future__ import annotations

import torch
from torch import nn

import spiritlevel as sl


def main() -> None:
    """Audit a small convnet, then compare it with a rescaled copy of the same function."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    ).eval()
    data = (torch.randn(60, 1, 8, 8), torch.randint(0, 4, (60,)))

    audit = sl.audit(model, data, measures=["curvature.trace", "neuron.rho_sum"])
    print(audit)
    assert audit.verdict("curvature.trace").kind == "scale"
    assert audit.verdict("neuron.rho_sum").kind == "confidence"

    copy = sl.symmetries.rescale_layers(model, "0", "2", 10.0)
    found = sl.compare(
        {"original": model, "rescaled": copy}, data, measures=["curvature.trace", "relative.kappa"]
    )
    print(found)
    assert found.answer().tied == [("original", "rescaled")]


if __name__ == "__main__":
    main()
