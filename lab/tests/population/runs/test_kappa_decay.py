"""Relative flatness with a decay term: dense Hessians of such a loss."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from zoo.plain import normal

NAME = "relative.kappa_decay"


def net(generator):
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(normal(*p.shape, generator=generator))
    return model.eval()


def dense_kappa(model, weight, groups, x, y, decay):
    """Σ ⟨w_s, w_s'⟩ Tr H_ss' over the groups, of the loss with its decay."""
    name = next(n for n, p in model.named_parameters() if p is weight)

    def loss(w):
        outputs = torch.func.functional_call(model, {name: w}, (x,))
        return F.cross_entropy(outputs, y) + decay / 2 * w.square().sum()

    rows = weight.shape[0]
    H = torch.func.hessian(loss)(weight.detach()).reshape(rows, -1, rows, weight[0].numel())
    W = weight.detach().flatten(1)
    inner = (W @ W.T) * torch.einsum("atbt->ab", H)
    size = rows // groups
    return sum(
        inner[g * size : (g + 1) * size, g * size : (g + 1) * size].sum() for g in range(groups)
    )


def test_against_dense_hessians_of_the_loss_with_its_decay(generator):
    model, decay = net(generator), 0.3
    x, y = normal(7, 2, 4, 4, generator=generator), torch.arange(7) % 3
    found = sl.measure(model, (x, y), measures=NAME, options={"weight_decay": decay})
    layers = {"0": (model[0].weight, 2), "3": (model[3].weight, 1)}
    expected = {k: float(dense_kappa(model, w, g, x, y, decay)) for k, (w, g) in layers.items()}
    assert found[NAME].exact
    for layer, truth in expected.items():
        assert found.layers[NAME][layer].value == pytest.approx(truth, rel=1e-10)
    assert found[NAME].value == pytest.approx(sum(expected.values()), rel=1e-10)


def test_without_decay_it_is_kappa(generator):
    model = net(generator)
    data = normal(5, 2, 4, 4, generator=generator), torch.arange(5) % 3
    both = sl.measure(model, data, measures=["relative.kappa", NAME], options={"weight_decay": 0})
    assert both[NAME].value == both["relative.kappa"].value


def test_it_must_be_told(generator):
    data = normal(5, 2, 4, 4, generator=generator), torch.arange(5) % 3
    with pytest.raises(sl.SpiritlevelError, match=r"Got none\. Pass what the optimizer had"):
        sl.measure(net(generator), data, measures=NAME)
    with pytest.raises(sl.SpiritlevelError, match=r"must be 0 or a number .* Got -1"):
        sl.measure(net(generator), data, measures=NAME, options={"weight_decay": -1})
