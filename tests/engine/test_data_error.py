"""`± data`, the error from having these samples, against dense matrices of every sample.

The truth is the standard error of the mean over the samples of exact values. Probes add noise of
their own to every sample, and may hide how much the samples differ: then there is no number, and
never a 0.
"""

import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import row_probing
from spiritlevel.engine.estimate import Estimate
from spiritlevel.engine.moments import without_noise
from spiritlevel.measures import registry
from zoo.dense_samples import DenseSampleProbes, SampleProblem
from zoo.plain import classes, random

pytestmark = pytest.mark.usefixtures("quick_quantiles", "only_probes")

KINDS = {"trace": "curvature.trace", "kappa": "relative.kappa", "rho": "neuron.rho_sum"}


def trained(count, steps, sizes=(3, 5, 4)):
    """A tanh network, as far from its minimum as `steps` say."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        i, h, o = sizes
        model = nn.Sequential(nn.Linear(i, h), nn.Tanh(), nn.Linear(h, o), nn.Tanh())
        model = nn.Sequential(*model, nn.Linear(o, 3)).double()
    x, y = random(count, i), classes(count, 3)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return SampleProblem(model.eval(), x, y)


@pytest.fixture(scope="module")
def few():
    return trained(10, 60)


@pytest.fixture(scope="module")
def unequal():
    """Few of its samples carry the curvature, so that these get more probes than others."""
    return trained(40, 250)


def measured(problem, kind, seed, **precision):
    work = problem.workspace(seed, **precision)
    with problem.surface.preserved(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_probing, "SampleProbes", DenseSampleProbes)
        return registry.get(KINDS[kind]).measured(work)


def error_of_the_mean(values):
    return float(values.std()) / math.sqrt(len(values))


def test_of_an_exact_sweep(few):
    for kind in KINDS:
        found = measured(few, kind, 0, method="exact").whole
        truth = error_of_the_mean(sum(few.values(kind, "ggn").values()))
        assert found.data_stderr == pytest.approx(truth, rel=1e-9)


# Many probes leave an error of a tenth or so: what the noise of theirs adds is taken off again.
WAYS = [("sample_probes", "few"), ("sample_probes", "unequal"), ("hutchinson", "few")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "name"), WAYS)
def test_of_many_probes(method, name, kind, request):
    problem = request.getfixturevalue(name)
    squares, asked = [], {"method": method, "rtol": 1e-6, "max_passes": 32}
    for seed in range(6):
        found = measured(problem, kind, seed, **asked).whole
        assert found.data_stderr is not None
        squares.append(found.data_stderr**2)
    truth = error_of_the_mean(sum(problem.values(kind).values()))
    spread = statistics.stdev(squares) / math.sqrt(len(squares))
    # how GGN and residual go together is known from a few probes of the Hessian alone: 40 % of the
    # square here, in the mean of 80 seeds
    least = 0.5 if "of the residual" in found.text else 0.1
    assert abs(statistics.fmean(squares) - truth**2) < 4 * spread + least * truth**2


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_residual_as_the_hessian_shows_it(few, kind):
    """GGN and residual go against each other: the sum of their errors would be too large."""
    found = measured(few, kind, 0, method="auto", rtol=0.02, max_passes=400).whole
    assert "of the residual" in found.text
    truth = error_of_the_mean(sum(few.values(kind).values()))
    parts = [
        error_of_the_mean(sum(few.values(kind, operator).values()))
        for operator in ("ggn", "residual")
    ]
    assert found.data_stderr <= sum(parts) * 1.3
    assert found.data_stderr == pytest.approx(truth, rel=0.5)  # from six probes of the Hessian


def test_equal_samples_have_no_number_and_never_0():
    """All of their spread is that of the probes: half of the differences would be below 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh()).double()
    data = [(random(1, 3).expand(12, 3), torch.ones(12, dtype=torch.int64))]
    asked = {"method": "sample_probes", "rtol": 0.01, "max_passes": 8}
    hidden = 0
    for seed in range(12):
        found = sl.measure(model.eval(), data, measures="curvature.trace", seed=seed, **asked)
        m = found["curvature.trace"]
        assert m.data_stderr != 0.0
        if m.data_stderr is None:
            assert "no ± data: the noise of the probes hides it" in m.text
            hidden += 1
    assert hidden >= 8  # a sixth of them look different by chance


def test_what_hides_it():
    assert without_noise(2.0, 0.0, count=8, dof=24) == 2.0
    assert without_noise(0.9, 1.0, count=8, dof=24) is None
    assert without_noise(1.3, 1.0, count=8, dof=24) is None
    assert without_noise(3.0, 1.0, count=8, dof=24) == 2.0
    assert without_noise(1.3, 1.0, count=800, dof=2400) == pytest.approx(0.3)


@pytest.mark.parametrize(("direct", "expected"), [(1.5, 1.5), (0.2, 1.0), (9.0, 3.0)])
def test_between_the_difference_and_the_sum(direct, expected):
    ggn = Estimate(5.0, data_variance=2.0**2)
    residual = Estimate(1.0, 0.01, 9.0, 1.0**2, drawn=True)
    whole = ggn + residual
    assert whole.data_stderr == 3.0
    hessian = Estimate(6.0, 0.1, 9.0, direct**2, drawn=True)
    assert whole.with_data_error(ggn, residual, hessian).data_stderr == expected


def test_one_that_is_hidden_beside_a_large_one():
    large = Estimate(10.0, data_variance=4.0)
    for stderr, data in [(0.4, 4.0), (0.6, None)]:
        hidden = Estimate(1.0, stderr**2, 9.0, drawn=True)
        assert (large + hidden).data_variance == (hidden + large).data_variance == data
    assert (large + Estimate(1.0)).data_variance is None  # exact, of a single sample


@pytest.fixture(scope="module")
def single():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(random(3, 3, seed=2))
    return SampleProblem(model, random(10, 3), classes(10, 3))


@pytest.mark.parametrize(
    ("name", "method"), [("single", "sample_probes"), ("few", "auto"), ("few", "hutchinson")]
)
def test_the_library_itself_gives_these_numbers(name, method, request):
    """One seed through `measure`: noise, products, sweeps and data as a user has them."""
    problem = request.getfixturevalue(name)
    asked = {"method": method, "rtol": 0.1, "max_passes": 24}
    for kind, measure in KINDS.items():
        expected = measured(problem, kind, 3, **asked)
        data = problem.x, problem.y
        report = sl.measure(problem.model, data, measures=measure, seed=3, **asked)
        pairs = [(report[measure], expected.whole)]
        pairs += [(report.layers[measure][row], m) for row, m in expected.layers.items()]
        for found, wanted in pairs:
            assert found.value == pytest.approx(wanted.value, rel=1e-9)
            for each in ("stderr", "data_stderr"):
                one, other = getattr(found, each), getattr(wanted, each)
                assert (one is None) == (other is None)
                assert (one or 0.0) == pytest.approx(other or 0.0, rel=1e-6)
