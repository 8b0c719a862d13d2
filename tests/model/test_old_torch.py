"""What older versions of torch do not know is not asked of them."""

import torch
from torch import nn

import spiritlevel as sl


def test_a_device_that_torch_has_no_autocast_for(monkeypatch):
    """torch 2.4 raises for Apple's GPUs."""
    real = torch.is_autocast_enabled

    def enabled(kind):
        if kind == "mps":
            raise RuntimeError("unknown device type for autocast")
        return real(kind)

    monkeypatch.setattr(torch, "is_autocast_enabled", enabled)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: kind != "mps")
    data = torch.randn(6, 3), torch.arange(6) % 2
    assert sl.measure(nn.Linear(3, 2), data, measures="head.trace")["head.trace"].value > 0
