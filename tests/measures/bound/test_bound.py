"""The bound's terms against enumeration, closed forms, quadrature and plain sums over the data."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from measures.forms.bound import c2_by_hand


def linear(num_features, num_outputs=3, count=8, seed=0, scale=1.0):
    """One linear layer, so that the features are the data."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Linear(num_features, num_outputs).double().eval()
    x = scale * torch.randn(count, num_features, generator=generator, dtype=torch.float64) + 0.5
    y = torch.randint(num_outputs, (count,), generator=generator)
    return model, x, y


def measure(model, x, y, name, loss="cross_entropy", seed=0, **options):
    return sl.measure(model, (x, y), measures=name, loss=loss, seed=seed, options=options)[name]


def sigma(x):
    return math.sqrt(float(x.var(dim=0).mean()))


# -- representativeness --------------------------------------------------------------------------


def over_all_halves(held_out, smoothed):
    """Mean of |mean of one half's losses − mean of the other's smoothed ones| over every split."""
    count = len(held_out)
    gaps = []
    for inside in itertools.combinations(range(count), count // 2):
        outside = [i for i in range(count) if i not in inside]
        gaps.append(abs(float(held_out[outside].mean()) - float(smoothed[list(inside)].mean())))
    return sum(gaps) / len(gaps)


@pytest.mark.nightly
def test_without_a_kernel_it_is_the_gap_between_halves():
    model, x, y = linear(4)
    losses = F.cross_entropy(model(x), y, reduction="none").detach()
    found = measure(model, x, y, "bound.representativeness", bandwidth=1e-9, splits=3000)
    assert abs(found.value - over_all_halves(losses, losses)) < 5 * found.stderr


def test_squared_error_has_the_kernel_in_closed_form():
    """E‖W(φ+hξ) + b − y‖² = ‖Wφ + b − y‖² + h²‖W‖²."""
    model, x, _ = linear(3, num_outputs=2)
    y = torch.randn(8, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    losses = (model(x) - y).square().mean(dim=1).detach()
    smoothed = losses + (2.5 * sigma(x)) ** 2 * float(model.weight.detach().square().sum()) / 2
    expected = over_all_halves(losses, smoothed)
    assert expected > 1.1 * over_all_halves(losses, losses)  # the kernel shows
    options = {"bandwidth": 2.5, "splits": 3000, "loss": "mse"}
    found = measure(model, x, y, "bound.representativeness", **options)
    assert abs(found.value - expected) < 5 * found.stderr


@pytest.mark.nightly
def test_cross_entropy_by_noise_in_feature_space():
    """The measure draws its noise at the outputs; here it is drawn where the paper has it."""
    model, x, y = linear(5)
    generator = torch.Generator().manual_seed(9)
    noise = torch.randn(20_000, 8, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        moved = model(x + 1.5 * sigma(x) * noise)
        smoothed = F.cross_entropy(moved.flatten(0, 1), y.repeat(20_000), reduction="none")
        smoothed = smoothed.reshape(20_000, 8).mean(dim=0)
        losses = F.cross_entropy(model(x), y, reduction="none")
    expected = over_all_halves(losses, smoothed)
    assert expected > 1.1 * over_all_halves(losses, losses)
    found = measure(model, x, y, "bound.representativeness", bandwidth=1.5, splits=3000)
    assert abs(found.value - expected) < 5 * found.stderr


def test_representativeness_says_what_its_error_means_and_what_would_suffice():
    model, x, y = linear(4)
    found = measure(model, x, y, "bound.representativeness")
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert "100 random draws of a half" in found.text  # max_passes
    assert "not of having only these samples" in found.text
    assert "(likelihood)" in found.text
    enough = int(found.text.split("max_passes=")[1].split()[0])
    name = "bound.representativeness"
    better = sl.measure(model, (x, y), measures=name, max_passes=enough)[name]
    assert better.status is sl.results.Status.OK
    assert abs(better.value - found.value) < 5 * found.stderr
    least = measure(model, x, y, name, splits=300)
    assert "300 random draws" in least.text
    assert least.settings["splits"] == 300


# -- C1 ------------------------------------------------------------------------------------------


def weighted_laplacian_integral(centers, h):
    """∫|∇²(p‖z‖²)| by differences on a grid, without any of the library's formulas."""
    low, high = centers.min() - 8 * h, centers.max() + 8 * h
    axis = np.linspace(float(low), float(high), 200_001 if centers.shape[1] == 1 else 900)
    grids = np.meshgrid(*[axis] * centers.shape[1], indexing="ij")
    p = sum(
        np.exp(-sum((g - float(v)) ** 2 for g, v in zip(grids, c, strict=True)) / (2 * h * h))
        for c in centers
    ) / (len(centers) * (2 * math.pi * h * h) ** (centers.shape[1] / 2))
    f = p * sum(g**2 for g in grids)
    step = axis[1] - axis[0]
    second = sum(
        np.roll(f, 1, axis=d) + np.roll(f, -1, axis=d) - 2 * f for d in range(centers.shape[1])
    )
    return np.abs(second).sum() * step ** (centers.shape[1] - 2)


@pytest.mark.parametrize("m", [1, 2])
def test_c1_by_quadrature(m):
    model, x, y = linear(m)
    largest = float(F.cross_entropy(model(x), y, reduction="none").detach().max())
    found = sl.measure(
        model, (x, y), measures="bound.c1", options={"bandwidth": 0.6}, rtol=0.02, max_passes=900
    )["bound.c1"]
    expected = largest / (2 * m) * weighted_laplacian_integral(x, 0.6 * sigma(x))
    assert found.status is sl.results.Status.OK
    assert abs(found.value - expected) < 5 * found.stderr + 1e-3 * expected
    assert "random draws around every sample" in found.text


def test_c1_asks_for_more_passes_where_they_are_spent():
    model, x, y = linear(3)
    data, options = (x, y), {"bandwidth": 0.3}
    few = sl.measure(model, data, measures="bound.c1", options=options, rtol=0.006, max_passes=10)[
        "bound.c1"
    ]
    assert few.status is sl.results.Status.NOT_CONVERGED
    enough = int(few.text.split("max_passes=")[1].split()[0])
    more = sl.measure(
        model, data, measures="bound.c1", options=options, rtol=0.006, max_passes=enough
    )["bound.c1"]
    assert more.status is sl.results.Status.OK
    assert abs(few.value - more.value) < 5 * few.stderr


# -- C2 ------------------------------------------------------------------------------------------


def test_kernel_constants_by_quadrature():
    """∫k² and the second moment of the kernel behind C1 and C2: one dimension, then its power."""
    for m in (1, 3, 7):
        t = np.linspace(-12, 12, 200_001) / math.sqrt(m)
        k = np.exp(-m * t * t / 2) * math.sqrt(m / (2 * math.pi))
        step = t[1] - t[0]
        assert (k**2).sum() * step == pytest.approx((4 * math.pi / m) ** -0.5, rel=1e-9)
        assert m * (k * t * t).sum() * step == pytest.approx(1.0, rel=1e-9)  # mean ‖u‖² is 1


def test_c2_leaves_out_features_that_do_not_vary():
    model, x, y = linear(4)
    x[:, 1], x[:, 3] = 0.0, 1.7
    largest = float(F.cross_entropy(model(x), y, reduction="none").detach().max())
    found = measure(model, x, y, "bound.c2")
    assert found.exact
    assert found.value == pytest.approx(c2_by_hand(x[:, [0, 2]], largest), rel=1e-12)
    assert "in 2 features, 2 constant ones left out" in found.text


def test_c2_of_a_sample_with_only_zeros():
    model, x, y = linear(3)
    x[2] = 0.0
    largest = float(F.cross_entropy(model(x), y, reduction="none").detach().max())
    found = measure(model, x, y, "bound.c2")
    rest = torch.cat([x[:2], x[3:]])
    volume = (x.max(dim=0).values - x.min(dim=0).values).prod()
    kernel = (4 * math.pi / 3) ** -1.5
    expected = largest * math.sqrt(kernel * float(volume * (rest.norm(dim=1) ** -3).mean()))
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert "1 of 8 samples have only zeros" in found.text
    assert "theorem does not hold" in found.text


def test_c2_goes_through_numbers_too_large_and_too_small_for_a_float():
    model, x, y = linear(300, scale=1e3)
    largest = float(F.cross_entropy(model(x), y, reduction="none").detach().max())
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        np.prod((x.max(dim=0).values - x.min(dim=0).values).numpy())
    sides = (x.max(dim=0).values - x.min(dim=0).values).log().sum()
    norms = (-300 * x.norm(dim=1).log()).logsumexp(dim=0) - math.log(8)
    log_c2 = math.log(largest) + float(150 * math.log(300 / (4 * math.pi)) + norms + sides) / 2
    assert measure(model, x, y, "bound.c2").value == pytest.approx(math.exp(log_c2), rel=1e-9)


def test_c2_says_when_it_overflows():
    model, x, y = linear(1500)
    x[0] *= 1e-3  # one sample near the origin decides β
    found = measure(model, x, y, "bound.c2")
    assert found.status is sl.results.Status.NONFINITE
    assert math.isinf(found.value)
    assert "too large for a float: 10^" in found.text
    bound = measure(model, x, y, "bound.generalization", bandwidth="scott")
    assert bound.status is sl.results.Status.NONFINITE
    assert "vacuous" in bound.text
    assert "C2/√Δ" in bound.text


# -- the bound -----------------------------------------------------------------------------------


def test_bound_is_put_together_from_its_terms():
    model, x, y = linear(3, count=30)
    options = {"failure": 0.2, "bandwidth": "scott"}
    report = sl.measure(model, (x, y), measures=["bound.*", "head.kappa"], options=options)
    value = {name: report[name].value for name in report}
    inner = value["head.kappa"] / 6 + value["bound.c1"] + value["bound.c2"] / math.sqrt(0.2)
    found = report["bound.generalization"]
    assert found.value == pytest.approx(30 ** (-2 / 7) * inner, rel=1e-12)
    assert found.stderr == pytest.approx(30 ** (-2 / 7) * report["bound.c1"].stderr, rel=1e-9)
    assert found.settings["failure"] == 0.2


def test_text_says_whether_it_is_vacuous_and_why():
    model, x, y = linear(3)
    found = measure(model, x, y, "bound.generalization")
    largest = float(F.cross_entropy(model(x), y, reduction="none").detach().max())
    assert found.value > largest
    assert found.text.startswith("vacuous, by the density's ")
    assert f"no sample here has a loss above {largest:.3g}" in found.text


def test_one_feature_and_many_samples_are_not_vacuous():
    generator = torch.Generator().manual_seed(0)
    x = 3 + 0.7 * torch.randn(3000, 1, generator=generator, dtype=torch.float64)
    y = (torch.rand(3000, generator=generator) < 0.5).long()
    model = nn.Linear(1, 2).double().eval()
    nn.init.constant_(model.weight, 0.1)
    found = measure(model, x, y, "bound.generalization", bandwidth="scott", failure=0.5)
    assert found.text.startswith("not vacuous: below the largest loss")
