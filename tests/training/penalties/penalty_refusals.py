"""Refusals of a penalty that leave the training as it was."""

import copy

import pytest
import torch

from spiritlevel import SpiritlevelError

TROUBLES = ["nan", "infinite weight", "empty", "bad label", "frozen"]


def call(penalty, x, y):
    """The penalty with the forward pass that a training step makes anyway."""
    with penalty.shared_forward():
        outputs = penalty.model(x)
    return penalty(x, y, outputs=outputs)


def troubled(trouble, penalty, x, y, *, last, layer):
    """A call with a batch that cannot be measured, and what is said of it.

    `last` is the layer that an infinite weight goes into, `layer` the one that is frozen.
    """
    model = penalty.model
    if trouble == "empty":
        text = r"'batch_size' .* at least 1\. Got 0\. .*leave empty batches out"
        return lambda: call(penalty, x[:0], y[:0]), text
    if trouble == "bad label":
        return lambda: call(penalty, x, y + 7), r"Got 7 in the batch"
    if trouble == "frozen":
        with penalty.shared_forward():
            outputs = model(x)
        model.get_submodule(layer).weight.requires_grad_(False)
        return lambda: penalty(x, y, outputs=outputs), rf"layer '{layer}' .* Got a frozen one"
    if trouble == "infinite weight":
        with torch.no_grad():
            model.get_submodule(last).weight[0, 0] = float("inf")
    text = r"outputs of the batch must be finite\. Got NaN or infinity.*Nothing was changed"
    return lambda: call(penalty, x * float("nan") if trouble == "nan" else x, y), text


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
