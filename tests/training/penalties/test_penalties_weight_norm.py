"""Penalties of networks with weight_norm, of whose fused kernel torch's second derivative is wrong.

The truths: differences of values and of gradients, and a dense Hessian of the network by hand.
"""

import pytest
import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.training import thrice_differentiable, trace_squared_of
from training.penalties import penalty_truths as truths
from zoo.weight_norms import NORMS, network

SIGNS = "flatness_penalty"  # whose random signs are replaced


def batch(size=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=generator).double()
    return x, torch.randint(2, (size,), generator=generator)


def value_of(model, x, y, shared, weight=1.0):
    penalty = sl.FlatnessPenalty(model, weight, generator=torch.Generator().manual_seed(7))
    if not shared:
        return penalty(x, y)
    with penalty.shared_forward():
        loss = F.cross_entropy(model(x), y)
    return penalty(x, y, loss=loss)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("kind", NORMS)
def test_value_and_gradient_are_those_of_the_dense_hessian(kind, dim, shared):
    (model, by_hand), (x, y) = network(kind, dim), batch()
    names = [name for name, _ in model.named_parameters()]
    places = {id(p): name for name, p in by_hand.named_parameters()}
    rows = truths.orthogonal_signs(sum(p.numel() for p in model.parameters()))
    penalty = sl.FlatnessPenalty(model, 1.0, probes=len(rows))
    with truths.signs_from(SIGNS, rows):
        if shared:
            with penalty.shared_forward():
                loss = F.cross_entropy(model(x), y)
            value = penalty(x, y, loss=loss)
        else:
            value = penalty(x, y)
    truth, slopes = truths.trace_squared(by_hand, x, y, F.cross_entropy)
    slopes = {name: slopes[places[id(p)]] for name, p in model.named_parameters()}
    assert list(slopes) == names
    truths.assert_same((value, truths.gradients_of(value, model)), (truth, slopes))


@pytest.mark.parametrize("kind", NORMS)
def test_gradients_are_differences_of_values_and_accumulate(kind):
    model, (x, y) = network(kind, 0)[0], batch(8)
    parts = [(x[:3], y[:3]), (x[3:], y[3:])]
    for x_part, y_part in parts:
        (value_of(model, x_part, y_part, shared=True) / 2).backward()
    step = 1e-5
    for p in model.parameters():
        slopes = torch.zeros_like(p).flatten()
        for i in range(p.numel()):
            ends = []
            for move in (step, -2 * step):
                p.detach().view(-1)[i] += move
                ends.append(sum(value_of(model, *part, shared=False).item() for part in parts) / 2)
            p.detach().view(-1)[i] += step
            slopes[i] = (ends[0] - ends[1]) / (2 * step)
        # the differences' own error is of the order of step²
        torch.testing.assert_close(p.grad.flatten(), slopes, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", NORMS)
def test_autocast_costs_no_more_than_its_digits(kind):
    model, (x, y) = network(kind, 0)[0], batch(8)
    true = value_of(model, x, y, shared=True)
    slopes = torch.cat([g.flatten() for g in torch.autograd.grad(true, [*model.parameters()])])
    model = model.float()
    with torch.autocast("cpu", torch.bfloat16):
        value = value_of(model, x.float(), y, shared=True)
    found = torch.cat([g.flatten() for g in torch.autograd.grad(value, [*model.parameters()])])
    assert value.dtype == torch.float32
    # bfloat16 has units of 2⁻⁸, and a few of them add up
    assert abs((value / true).item() - 1) < 2**-4
    assert float((found - slopes).norm() / slopes.norm()) < 2**-4


def test_a_weight_that_was_made_outside_of_the_block_is_refused():
    model, (x, y) = network("parametrization", 0)[0], batch()
    loss = F.cross_entropy(model(x), y)
    for create_graph in (True, False):  # its second derivative is wrong already
        with pytest.raises(sl.SpiritlevelError, match=r"WeightNorm.*shared_forward"):
            trace_squared_of(loss, model.parameters(), len(x), create_graph=create_graph)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_the_weight_is_the_same(dim):
    v, g = torch.randn(3, 4, 5).double(), torch.rand(()).double()
    if dim >= 0:
        g = torch.rand([n if d == dim else 1 for d, n in enumerate(v.shape)]).double()
    with thrice_differentiable():
        found = torch._weight_norm(v, g, dim)
    torch.testing.assert_close(found, torch._weight_norm(v, g, dim), rtol=1e-14, atol=0)
