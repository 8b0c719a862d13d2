"""Path matrices that are too large to form: eigenvalues by products, contractions by probes."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from measures.decomposition.decomposition_by_hand import (
    NAMES,
    check,
    decomposed,
    features,
    measured,
    windows,
)
from zoo.plain import drawn, mlp, normal


@pytest.fixture
def wide(generator):
    model = mlp([5, 8, 6, 40], nn.Tanh, generator)
    x, y = normal(6, 5, generator=generator), torch.arange(6)
    return model, x, y


def test_many_outputs_by_products(wide):
    model, x, y = wide
    expected = decomposed(model, x, ["0", "2", "4"], features)
    report = measured(model, (x, y), method="exact")
    check(report, expected, rel=1e-10)  # a residual of 1e-6 leaves 1e-12 of the value
    for name in NAMES[1:]:
        found = report[name]
        assert 0.0 <= found.residual <= 1e-6 * found.value
        assert "Lanczos steps" in found.text
        assert found.status is sl.results.Status.OK
    assert report[NAMES[0]].exact


def test_products_of_convolutions(generator):
    model = drawn(
        nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 36)), generator
    )
    x, y = normal(4, 1, 4, 4, generator=generator), torch.arange(4)
    check(
        measured(model, (x, y), method="exact"),
        decomposed(model, x, ["0", "3"], windows),
        rel=1e-10,
    )


def test_centered_by_output_probes_has_an_error_bar(wide):
    model, x, y = wide
    expected = sum(row[0] for row in decomposed(model, x, ["0", "2", "4"], features).values())
    loose = measured(model, (x, y), rtol=0.2, method="output_probes")["decomposition.centered"]
    assert not loose.exact
    assert abs(loose.value - expected) <= 5 * loose.stderr  # exceeded once in a million
    assert loose.stderr < 0.15 * expected
    assert "output probes for 39 columns" in loose.text
    scarce = measured(model, (x, y), max_passes=7, rtol=0.01, method="output_probes")
    missed = scarce["decomposition.centered"]
    assert missed.status is sl.results.Status.NOT_CONVERGED
    assert "max_passes=" in missed.text


def test_too_few_steps_are_reported(wide):
    model, x, y = wide
    found = measured(model, (x, y), max_passes=2)["decomposition.upper_bound"]
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert found.text.endswith("Try max_passes=4.")
    exact = measured(model, (x, y))["decomposition.upper_bound"].value
    # the residual is the distance to some eigenvalue of each sample, not always the largest
    assert exact - 2 * found.residual <= found.value <= exact


def test_batches_do_not_matter_with_many_outputs(wide):
    model, x, y = wide
    one = measured(model, (x, y), method="output_probes")
    other = measured(model, [(x[:1], y[:1]), (x[1:], y[1:])], method="output_probes")
    for name in NAMES:
        assert one[name].value == pytest.approx(other[name].value, rel=1e-9)


class Once(torch.autograd.Function):
    """A function whose author forbade second derivatives."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class Sine(nn.Module):
    def forward(self, x):
        return Once.apply(x)


def test_functions_that_are_differentiable_once_are_refused_only_with_many_outputs(generator):
    x = normal(3, 4, generator=generator)
    few = mlp([4, 5, 3], Sine, generator)
    assert measured(few, (x, torch.arange(3)))["decomposition.upper_bound"].exact
    many = mlp([4, 5, 40], Sine, generator)
    with pytest.raises(sl.SpiritlevelError, match=r"layer '0'.*40 outputs.*only once.*Leave"):
        sl.measure(many, (x, torch.arange(3)), measures="decomposition.upper_bound")
