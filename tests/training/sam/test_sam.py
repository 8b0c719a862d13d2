"""The gradient that the wrapped optimizer sees, against formulas written by hand."""

import pytest
import torch
from torch import nn

from spiritlevel.training.sam.optimizers import SAM
from spiritlevel.training.sam.perturbation import Block, draw_in_ball
from training.sam.sam_problem import (
    KINDS,
    RHO,
    batch,
    by_blocks,
    by_closure,
    by_parts,
    by_passes,
    gradient_at,
    length,
    loss_of,
    network,
    plus,
    sam_gradient,
    seeded,
    weights_of,
)

pytestmark = pytest.mark.sampled(2)  # the others at night

USES = [by_closure, by_passes, by_parts, by_blocks]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_that_of_the_formula(kind, use):
    make, by_hand = KINDS[kind]
    net, (x, y) = network(), batch()
    optimizer = make(torch.optim.SGD(net.parameters(), lr=1.0))
    expected, before = by_hand(net, x, y), weights_of(net)
    use(optimizer, net, x, y)
    for name, weight in net.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], rtol=1e-12, atol=1e-14)
        assert torch.equal(weight, before[name] - weight.grad)  # from the very weights


def test_formulas_differ():
    """Meta: the comparison above can tell the members of the family apart."""
    net, (x, y) = network(), batch()
    found = [by_hand(net, x, y)["0.weight"] for _, by_hand in KINDS.values()]
    plain = gradient_at(net, weights_of(net), x, y)["0.weight"]
    for i, one in enumerate([plain, *found]):
        for other in [plain, *found][:i]:
            assert float((one - other).norm()) > 1e-4


BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("base", BASES)
def test_base_optimizer_steps_with_that_gradient(base):
    """Five steps against the base optimizer fed by hand."""
    net, other, (x, y) = network(), network(), batch()
    optimizer, plain = SAM(BASES[base](net.parameters()), RHO), BASES[base](other.parameters())
    for _ in range(5):
        by_closure(optimizer, net, x, y)
        for name, gradient in sam_gradient(other, x, y).items():
            other.get_parameter(name).grad = gradient
        plain.step()
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-13)


def test_groups_share_an_ellipsoid():
    net, (x, y) = network(), batch()
    weights = weights_of(net)
    g = gradient_at(net, weights, x, y)
    rho = {"0.weight": 0.3, "0.bias": 0.3, "2.weight": 0.7, "2.bias": 0.0}
    norm = length([rho[name] * g[name] for name in g])
    moves = {name: rho[name] ** 2 * g[name] / norm for name in g}
    inside = length([moves[name] / rho[name] for name in g if rho[name]])
    assert inside == pytest.approx(1.0, rel=1e-12)
    expected = gradient_at(net, plus(weights, moves), x, y)
    groups = [
        {"params": net[0].parameters()},
        {"params": [net[2].weight], "rho": 0.7},
        {"params": [net[2].bias], "rho": 0.0},
    ]
    optimizer = SAM(torch.optim.SGD(groups, lr=1.0), 0.3)
    loss_of(net, x, y).backward()
    with optimizer.perturbed():
        for name, weight in net.named_parameters():
            torch.testing.assert_close(weight.detach(), weights[name] + moves[name])
        assert torch.equal(net[2].bias, weights["2.bias"])
        loss_of(net, x, y).backward()
    for name, weight in net.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name], rtol=1e-12, atol=1e-14)


def test_frozen_and_unused_weights_take_no_part():
    net, (x, y) = network(), batch()
    net.unused = nn.Linear(2, 2).double()
    net[0].weight.requires_grad_(False)
    before = weights_of(net)

    def loss():
        return nn.functional.cross_entropy(net[2](net[1](net[0](x))), y)

    g = torch.autograd.grad(loss(), [net[0].bias, net[2].weight, net[2].bias])
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=1.0), RHO)
    loss().backward()
    with optimizer.perturbed():
        moved = [net[0].bias, net[2].weight, net[2].bias]
        for weight, name, gradient in zip(moved, ["0.bias", "2.weight", "2.bias"], g, strict=True):
            expected = before[name] + RHO * gradient / length(g)
            torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-15)
        for name in ("0.weight", "unused.weight", "unused.bias"):
            assert torch.equal(net.get_parameter(name), before[name])
        loss().backward()
    optimizer.step()
    for name in ("0.weight", "unused.weight", "unused.bias"):
        assert torch.equal(net.get_parameter(name), before[name])


@pytest.mark.parametrize("kind", ["sam", "asam", "asam_bias"])
@pytest.mark.parametrize("gradient", [0.0, 1e-45])  # the second one's square is 0 in float32
def test_zero_gradient_displaces_nothing(kind, gradient):
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = KINDS[kind][0](torch.optim.SGD([weight], lr=0.1))
    weight.grad = torch.full_like(weight, gradient)
    with optimizer.perturbed():
        torch.testing.assert_close(weight.detach(), torch.tensor([1.0, -2.0]), rtol=0, atol=RHO)
        (weight * 0).sum().backward()
    optimizer.step()
    assert weight.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_radius_holds_in_half_precision(dtype):
    weight = nn.Parameter(torch.zeros(40000, dtype=dtype))
    weight.grad = torch.full_like(weight, 400.0)  # its length, 80000, is more than float16 can hold
    optimizer = SAM(torch.optim.SGD([weight], lr=0.1), rho=1.0)
    with optimizer.perturbed():
        # 1/√40000, to the precision of the type
        torch.testing.assert_close(
            weight.detach().float().norm(), torch.tensor(1.0), rtol=5e-3, atol=0
        )
        weight.sum().backward()


def test_draws_are_uniform_in_the_ball():
    """In 3 dimensions: E‖ε‖ = ¾ρ, E ε = 0, E ε_i² = ρ²/5, each within 4 standard errors."""
    num, rho = 4000, 2.0
    generator = seeded(3)
    blocks = [Block(rho, [torch.zeros(2), torch.zeros(1, dtype=torch.float64)])]
    drawn = [draw_in_ball(blocks, generator) for _ in range(num)]
    points = torch.stack([d.factors[0] * torch.cat(d.directions[0]) for d in drawn])
    lengths = points.norm(dim=1)
    assert float(lengths.max()) <= rho * (1 + 1e-6)
    assert float(lengths.mean()) == pytest.approx(
        0.75 * rho, abs=4 * float(lengths.std()) / num**0.5
    )
    for i in range(3):
        error = float(points[:, i].std()) / num**0.5
        assert abs(float(points[:, i].mean())) < 4 * error
        squares = points[:, i].square()
        assert float(squares.mean()) == pytest.approx(
            rho**2 / 5, abs=4 * float(squares.std()) / num**0.5
        )


def test_every_spends_it_on_one_step_in_k():
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=0.1), RHO, every=3)
    for number in range(7):
        sharp = number % 3 == 0
        assert optimizer.due == sharp
        plain = gradient_at(net, weights_of(net), x, y)
        expected = sam_gradient(net, x, y) if sharp else plain
        (by_closure if number % 2 else by_passes)(optimizer, net, x, y)
        for name, weight in net.named_parameters():
            torch.testing.assert_close(weight.grad, expected[name], rtol=1e-12, atol=1e-14)
