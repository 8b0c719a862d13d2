"""Refusals of a penalty that leave the training as it was."""

import copy

import pytest
import torch

from spiritlevel import SpiritlevelError


def refused(match, act, model):
    """`act` is refused with this text; weights, buffers, gradients and random numbers stay."""
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with pytest.raises(SpiritlevelError, match=match):
        act()
    assert torch.equal(random, torch.get_rng_state())
    assert all(bool((p.grad == 1).all()) for p in model.parameters())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
