"""Input–output Jacobians against jacrev and explicit masks, whatever the form of the batches."""

import math

import pytest
import torch
from torch import nn
from torch.func import jacrev

import spiritlevel as sl
from zoo.plain import drawn, mlp, normal


def value(model, data, name, **options):
    return sl.measure(model, data, measures=name, **options)[name]


def jacobians(model, x):
    """∂z/∂x of each sample, one at a time."""
    return [jacrev(lambda v: model(v[None])[0])(sample).detach() for sample in x]


def root_mean_square(parts):
    return math.sqrt(sum(float(J.square().sum()) for J in parts) / len(parts))


def convnet(outputs, generator):
    return drawn(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(80, outputs)
        ),
        generator,
    )


# -- the Jacobian -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_jacobian_against_jacrev(loss, generator):
    model = mlp([4, 7, 3], nn.GELU, generator)
    x = normal(6, 4, generator=generator)
    y = torch.arange(6) % 3 if loss == "cross_entropy" else normal(6, 3, generator=generator)
    data = [(x[:1], y[:1]), (x[1:], y[1:])]
    found = value(model, data, "sensitivity.jacobian", loss=loss)
    assert found.exact
    assert found.value == pytest.approx(root_mean_square(jacobians(model, x)), rel=1e-12)
    assert (found.cost.forwards, found.cost.backwards) == (6, 6 * 3)


REGION = (1, 2, 2, 3)


def test_region_against_explicit_masking(generator):
    model = convnet(3, generator)
    x, y = normal(5, 2, 4, 5, generator=generator), torch.arange(5) % 3
    keep = torch.ones(4, 5, dtype=torch.float64)
    for row in range(1, 3):
        for column in range(2, 5):
            keep[row, column] = 0.0
    masked = [J * keep for J in jacobians(model, x)]
    expected = root_mean_square(masked) / math.sqrt(4 * 5 - 2 * 3) * math.sqrt(2 * 3)
    names = ["sensitivity.jacobian", "sensitivity.jacobian_outside"]
    report = sl.measure(model, (x, y), measures=names, options={"region": REGION})
    assert report[names[1]].value == pytest.approx(expected, rel=1e-12)
    assert report[names[1]].settings["region"] == REGION
    assert report[names[0]].value == pytest.approx(root_mean_square(jacobians(model, x)), rel=1e-12)
    assert report[names[0]].cost == report[names[1]].cost  # the same passes
    assert report[names[0]].cost.backwards == 5 * 3
    alone = sl.measure(model, (x, y), measures=names[0])
    assert alone.cost.backwards == report.cost.backwards


def test_many_outputs_by_probes(generator):
    model = convnet(40, generator)
    x, y = normal(6, 2, 4, 5, generator=generator), torch.arange(6)
    expected = root_mean_square(jacobians(model, x))
    names = ["sensitivity.jacobian", "sensitivity.jacobian_outside"]
    options = {"options": {"region": REGION}, "measures": names, "method": "output_probes"}
    report = sl.measure(model, (x, y), rtol=0.1, **options)
    found = report[names[0]]
    assert not found.exact
    assert abs(found.value - expected) <= 5 * found.stderr  # exceeded once in a million
    low, high = found.interval
    assert (high - low) / 2 <= 0.1 * found.value
    assert found.status is sl.results.Status.OK
    assert "output probes for 40 columns" in found.text
    assert abs(report[names[1]].value) > 0
    missed = sl.measure(model, (x, y), rtol=0.001, max_passes=8, **options)[names[0]]
    assert missed.status is sl.results.Status.NOT_CONVERGED
    assert "max_passes=" in missed.text
    exact = value(model, (x, y), names[0], method="exact")
    assert exact.exact
    assert exact.value == pytest.approx(expected, rel=1e-12)
    # on its own the rule notices that all columns are no more than the probes it would take
    assert value(model, (x, y), names[0], rtol=0.001).exact


def test_error_bars_of_probes_are_right(generator):
    model = convnet(40, generator)
    x, y = normal(8, 2, 4, 5, generator=generator), torch.arange(8)
    expected = root_mean_square(jacobians(model, x))
    options = {"method": "output_probes", "rtol": 0.3}
    scores = []
    for seed in range(60):
        found = value(model, (x, y), "sensitivity.jacobian", seed=seed, **options)
        scores.append((found.value - expected) / found.stderr)
    spread = math.sqrt(sum(s * s for s in scores) / 60)
    assert 0.6 < spread < 1.5  # 1 for honest bars; 60 repetitions tell it to about 10 %


def test_samples_keep_their_probes_in_other_batches(generator):
    model = convnet(40, generator)
    x, y = normal(7, 2, 4, 5, generator=generator), torch.arange(7)
    options = {"method": "output_probes", "rtol": 0.2}
    one = value(model, (x, y), "sensitivity.jacobian", **options)
    cut = [(x[:3], y[:3]), (x[3:], y[3:])]
    assert value(model, cut, "sensitivity.jacobian", **options).value == pytest.approx(
        one.value, rel=1e-12
    )


class Named(nn.Module):
    """Inputs by name, one of them whole numbers."""

    def __init__(self, generator):
        super().__init__()
        self.body = mlp([4, 5, 3], nn.Tanh, generator)

    def forward(self, pixels, mask=None):
        return self.body(pixels if mask is None else pixels * mask)


def test_any_form_of_batch(generator):
    model = Named(generator)
    x, y = normal(6, 4, generator=generator), torch.arange(6) % 3
    mask = torch.randint(2, (6, 4), generator=generator)
    plain = root_mean_square(jacobians(model, x))
    masked = root_mean_square([J * m for J, m in zip(_at(model, x * mask), mask, strict=True)])
    name = "sensitivity.jacobian"
    assert value(model, [{"pixels": x, "labels": y}], name).value == pytest.approx(plain)
    given = {"pixels": x, "mask": mask, "labels": y}
    assert value(model, [given], name).value == pytest.approx(masked, rel=1e-12)
    assert value(model, [((x, mask), y)], name).value == pytest.approx(masked, rel=1e-12)
    triple = [(y, x, mask)]
    forward = lambda m, batch: (m(batch[1], mask=batch[2]), batch[0])  # noqa: E731
    assert value(model, triple, name, forward=forward).value == pytest.approx(masked, rel=1e-12)


def _at(model, x):
    return jacobians(model.body, x)


def test_ignored_samples_do_not_count(generator):
    model = mlp([4, 5, 3], nn.Tanh, generator)
    x, y = normal(6, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, -100])
    found = value(model, (x, y), "sensitivity.jacobian").value
    assert found == pytest.approx(root_mean_square(jacobians(model, x[:5])), rel=1e-12)


def test_a_users_hook_on_the_model_is_part_of_it(generator):
    model = mlp([4, 5, 3], nn.Tanh, generator)
    x, y = normal(6, 4, generator=generator), torch.arange(6) % 3
    plain = value(model, (x, y), "sensitivity.jacobian").value
    model.register_forward_pre_hook(lambda m, args: (2 * args[0],))
    found = value(model, (x / 2, y), "sensitivity.jacobian").value
    assert found == pytest.approx(2 * plain, rel=1e-12)


# -- what cannot be differentiated --------------------------------------------------------------


def test_tokens_are_refused(generator):
    model = drawn(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), generator)
    x, y = torch.randint(9, (5, 3), generator=generator), torch.arange(5) % 3
    with pytest.raises(
        sl.SpiritlevelError, match=r"sensitivity.jacobian.*one floating-point.*int64.*embedding"
    ):
        value(model, (x, y), "sensitivity.jacobian")
    report = sl.measure(model, (x, y), measures="sensitivity.*", max_passes=8)
    assert "sensitivity.jacobian" not in report  # a pattern leaves out what does not apply
    assert "sensitivity.feature_robustness" in report


def test_two_inputs_are_refused(generator):
    model = Named(generator)
    x, y = normal(5, 4, generator=generator), torch.arange(5) % 3
    with pytest.raises(sl.SpiritlevelError, match=r"exactly one.*Got 2.*float64.*holds the others"):
        value(model, [{"pixels": x, "mask": x.abs(), "labels": y}], "sensitivity.jacobian")


def test_a_model_that_is_called_twice_is_refused(generator):
    model = mlp([4, 5, 3], nn.Tanh, generator)
    x, y = normal(5, 4, generator=generator), torch.arange(5) % 3
    with pytest.raises(sl.SpiritlevelError, match=r"called once.*calls it 2 times"):
        value(
            model,
            (x, y),
            "sensitivity.jacobian",
            forward=lambda m, b: (m(b[0]) + m(-b[0]), b[1]),
        )


def test_samples_in_another_dimension_are_refused(generator):
    model = mlp([4, 5, 3], nn.Tanh, generator)

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = model

        def forward(self, x):
            return self.body(x.T)

    x, y = normal(5, 4, generator=generator), torch.arange(5) % 3
    with pytest.raises(sl.SpiritlevelError, match=r"first dimension.*\(4, 1\) for 1 samples"):
        value(Turned(), (x, y), "sensitivity.jacobian", forward=lambda m, b: (m(b[0].T), b[1]))


@pytest.mark.parametrize(
    ("region", "text"),
    [
        (None, r"needs the option 'region'.*Got none.*options="),
        ((3, 0, 2, 2), r"inside the images of 4 × 5.*top 3.*height 2"),
        ((0, 4, 2, 2), r"inside the images of 4 × 5.*left 4"),
        ((0, 0, 4, 5), r"leave something of the images.*all of them"),
    ],
)
def test_regions_that_do_not_fit_are_refused(region, text, generator):
    model = convnet(3, generator)
    data = (normal(5, 2, 4, 5, generator=generator), torch.arange(5) % 3)
    with pytest.raises(sl.SpiritlevelError, match=text):
        value(model, data, "sensitivity.jacobian_outside", options={"region": region})


def test_regions_need_images(generator):
    model = mlp([4, 5, 3], nn.Tanh, generator)
    data = (normal(5, 4, generator=generator), torch.arange(5) % 3)
    with pytest.raises(sl.SpiritlevelError, match=r"images of shape.*Got inputs of shape \(4,\)"):
        value(model, data, "sensitivity.jacobian_outside", options={"region": (0, 0, 1, 1)})
