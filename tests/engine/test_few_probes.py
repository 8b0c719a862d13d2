"""Estimates from very few passes: never exact, and their intervals cover the dense truth.

Signs take few values on a small problem. Two of them agree half of the time where only two
directions interact, and then say nothing about their error. The intervals here must cover the truth
in 95 % of the cases. Each cell of the tables below has 100 seeds; it fails where a coverage of 95 %
would give so few hits with a probability of FALSE_ALARM. The seeds are fixed. Every run of the
tests has some numbers of passes, a night has all.
"""

import contextlib
import dataclasses
import math
import pathlib

import pytest
import scipy.special
import scipy.stats
import torch
from torch import nn

import spiritlevel as sl
from engine.test_coverage import one_direction, one_sample_decides
from spiritlevel.engine.estimate import Estimate, estimate_from_repetitions, estimate_of_draws
from spiritlevel.engine.memory import VectorMemory
from spiritlevel.engine.sweep.sums import FEW, MANY, pooled_estimate
from spiritlevel.engine.weight_space.chunk_products import Images
from spiritlevel.engine.weight_space.metrics import Metric
from spiritlevel.engine.weight_space.probes import PILOT, WeightProbes
from spiritlevel.engine.weight_space.products import AbstractProducts
from spiritlevel.measures.curvature.square_probes import trace_squared
from spiritlevel.results import Status
from zoo.dense_problem import DenseProblem
from zoo.plain import classes, network, random

pytestmark = pytest.mark.usefixtures("quick_quantiles", "only_probes")

SEEDS = range(3000, 3100)
FALSE_ALARM = 1e-4
LEAST_HITS = int(scipy.stats.binom.ppf(FALSE_ALARM, len(SEEDS), 0.95))  # 85 of 100
PASSES = [2, 3, 4, 6, 8, 16]
SOME_OR_ALL = [(2, 3, 8), pytest.param(tuple(PASSES), marks=pytest.mark.nightly)]
METHODS = ["hutchinson", "hutch++", "split", "auto"]


def tiny():
    """Two inputs: ρ of the first layer has two signs, so two values."""
    return DenseProblem(network(nn.Tanh, (2, 6, 3)), random(20, 2), classes(20, 3))


def single():
    """One sample, two of everything."""
    return DenseProblem(network(nn.Tanh, (2, 2, 2)), random(1, 2), classes(1, 2))


PROBLEMS = {"tiny": tiny, "single": single, "one direction": one_direction}
CELLS = [("tiny", "trace", method) for method in METHODS]
CELLS += [("tiny", kind, method) for kind in ("kappa", "rho") for method in ("hutchinson", "auto")]
CELLS += [(name, "trace", "hutchinson") for name in ("single", "one direction")]
CELLS += [(name, "rho", "split") for name in ("single", "one direction")]


@pytest.fixture(scope="module")
def problems():
    return {name: make() for name, make in PROBLEMS.items()}


def hits(problem, kind, **precision):
    truth, count = problem.value(kind), 0
    for seed in SEEDS:
        result = problem.rows(kind, seed, rtol=1e-6, **precision).result()
        assert not result.exact
        # round-off of the truth itself
        margin = result.estimate.half_width(0.95) + 1e-11 * abs(truth)
        count += abs(result.estimate.value - truth) <= margin
    return count


@pytest.mark.parametrize("numbers", SOME_OR_ALL, ids=str)
@pytest.mark.parametrize(("name", "kind", "method"), CELLS)
def test_weight_probes(problems, name, kind, method, numbers):
    by_passes = {
        passes: hits(problems[name], kind, method=method, max_passes=passes) for passes in numbers
    }
    assert min(by_passes.values()) >= LEAST_HITS, by_passes


@pytest.mark.parametrize("numbers", SOME_OR_ALL, ids=str)
@pytest.mark.parametrize("num_classes", [2, 4])
def test_output_probes_of_one_sample(num_classes, numbers):
    """One of 64 samples decides, so that few signs do; without an interval nothing is claimed."""
    problem = one_sample_decides(num_classes)
    by_passes = {
        passes: hits(problem, "trace", method="output_probes", max_passes=passes)
        for passes in numbers
    }
    assert min(by_passes.values()) >= LEAST_HITS, by_passes


def test_every_neuron(problems):
    """ρ(j) of each of eight neurons from three probes; the seeds of one neuron are independent."""
    problem = problems["tiny"]
    truth = [float(v) for v in dense_neurons(problem)]
    counts = [0] * len(truth)
    for seed in SEEDS:
        rows = problem.rows("rho", seed, method="hutchinson", max_passes=3)
        estimates = [e for layer in problem.layers for e in rows.neurons(layer)]
        for j, (estimate, value) in enumerate(zip(estimates, truth, strict=True)):
            assert not estimate.exact
            counts[j] += abs(estimate.value - value) <= estimate.half_width(0.95)
    assert min(counts) >= LEAST_HITS, counts


def dense_neurons(problem):
    for name in problem.layers.values():
        H = problem.truth.hessian([name])
        W = problem.truth.parameters[name].detach()
        index = torch.arange(W.numel()).view(W.shape)
        for j in range(W.shape[1]):
            place = index[:, j]
            yield W[:, j] @ H[place][:, place] @ W[:, j]


def test_probes_that_agree_are_not_exact():
    """Two signs that agree in all four probes were taken for an exact value."""
    problem = tiny()
    model, data = problem.model, (problem.x, problem.y)
    for seed in range(4):
        report = sl.measure(
            model, data, measures=["neuron.rho_sum", "relative.kappa"], max_passes=4, seed=seed
        )
        for measurement in report.values():
            assert not measurement.exact
            low, high = measurement.interval
            assert low < measurement.value < high


def test_repetitions_whose_squares_underflow_have_an_error():
    values = [1e-90 * number for number in (1.0, 2.0, 4.0, 8.0, 9.0)]
    tiny, plain = (estimate_from_repetitions([k * v for v in values]) for k in (1.0, 1e90))
    assert tiny.dof == pytest.approx(plain.dof, rel=1e-9)
    assert tiny.stderr == pytest.approx(1e-90 * plain.stderr, rel=1e-9)


def test_agreeing_repetitions_prove_nothing():
    agreeing = estimate_from_repetitions([2.0, 2.0, 2.0])
    assert (agreeing.value, agreeing.variance, agreeing.exact) == (2.0, 0.0, False)
    assert Estimate(2.0).exact
    assert not (Estimate(2.0) + agreeing).exact
    assert not agreeing.scaled(3.0).exact
    assert Estimate(2.0).scaled(3.0).exact


class OnePair(AbstractProducts):
    """H is diagonal but for two entries: signs see it or not, in all directions alike."""

    def __init__(self, problem, coupling):
        super().__init__(problem.surface, "reverse", VectorMemory())
        size = sum(p.numel() for p in problem.surface.parameters.values())
        self.H = torch.eye(size).double()
        self.H[0, 1] = self.H[1, 0] = coupling
        self.truth = float(size)

    def by_chunk(self, requests, *, chunk=None):
        yield 1.0, self.images(requests)

    def images(self, requests):
        return [Images(request.vectors @ self.H) for request in requests]

    def keeping_graph(self):
        return contextlib.nullcontext()

    sought = 0.0


@pytest.mark.parametrize(
    "count",
    [n if n in SOME_OR_ALL[0] else pytest.param(n, marks=pytest.mark.nightly) for n in PASSES],
)
def test_one_pair_that_interacts(problems, count):
    """Half of all pairs of signs agree, and miss the truth."""
    problem = problems["tiny"]
    products = OnePair(problem, coupling=50.0)
    metric = Metric(problem.surface, "trace", problem.names)
    factors = dict.fromkeys(problem.names, 1.0)
    covered = {True: 0, False: 0}
    for few in covered:
        for seed in SEEDS:
            probes = WeightProbes(products, metric, seed=seed, num_samples=1, few=few)
            probes.draw(["hessian"], count)
            estimate = probes.estimate("hessian", factors)
            covered[few] += abs(estimate.value - products.truth) <= estimate.half_width(0.95)
    assert covered[True] >= LEAST_HITS
    if count < 4:
        assert covered[False] < LEAST_HITS  # the signs that these replace


def test_nothing_is_known_only_of_nothing(problems):
    """Normal probes have no spread only where the matrix is 0."""
    problem = problems["tiny"]
    metric = Metric(problem.surface, "trace", problem.names)
    factors = dict.fromkeys(problem.names, 1.0)
    products = OnePair(problem, coupling=0.0)
    spreads = []
    for scale in (1.0, 0.0):
        products.H *= scale
        probes = WeightProbes(products, metric, seed=0, num_samples=1, few=True)
        probes.draw(["hessian"], 2)
        spreads.append(probes.estimate("hessian", factors).variance)
    assert spreads[0] > 0.0 == spreads[1]


@pytest.mark.parametrize("count", PASSES)
def test_few_draws_of_a_skewed_number(count):
    """Squares of one normal number; 93 % is what the docstring promises."""
    squares = random(400, count, seed=count).square().tolist()
    hits = 0
    for values in squares:
        estimate = estimate_of_draws(values)
        assert not estimate.exact
        hits += abs(estimate.value - 1.0) <= estimate.half_width(0.95)
    assert hits >= scipy.stats.binom.ppf(FALSE_ALARM, 400, 0.93)
    usual = [estimate_from_repetitions(values) for values in squares]
    missed = sum(abs(e.value - 1.0) > e.half_width(0.95) for e in usual)
    if count < 16:  # what these replace
        assert missed > 400 - scipy.stats.binom.ppf(FALSE_ALARM, 400, 0.95)


def test_many_draws_have_the_usual_interval():
    values = random(32, seed=1).square().tolist()
    assert estimate_of_draws(values) == estimate_from_repetitions(values)
    assert estimate_of_draws(values[:-1]).variance > estimate_from_repetitions(values[:-1]).variance
    assert estimate_of_draws([1.0, -1.0]).unknown
    assert estimate_of_draws([0.0, 0.0]).variance == 0.0


# -- the table in the docs ------------------------------------------------------------------------

DIRECTIONS = random(3, 20, seed=4)
PAIR = torch.eye(20).double()
PAIR[0, 1] = PAIR[1, 0] = 3.0
TABLE = {
    "one direction": torch.outer(DIRECTIONS[0], DIRECTIONS[0]),
    "one pair of entries that interacts": PAIR,
    "2 × 2": torch.tensor([[1.0, 0.7], [0.7, -0.2]]).double(),
    "three directions, both signs": (DIRECTIONS.T * torch.tensor([3.0, -1.0, -2.0])) @ DIRECTIONS,
}


def coverage(B, *, normal, count, draws):
    """The share of 95 % intervals that cover Tr B, from definitions alone."""
    xi = random(draws, count, len(B), seed=count)
    xi = xi if normal else xi.sign()
    images = xi @ B
    values = (xi * images).sum(dim=2)
    variance = 2 * images.square().sum(dim=2).mean(dim=1) if normal else values.var(dim=1)
    quantile = scipy.special.stdtrit(count if normal else count - 1, 0.975)
    margin = quantile * (variance / count).sqrt() + 1e-9 * B.abs().max()
    return float(((values.mean(dim=1) - B.trace()).abs() <= margin).double().mean())


@pytest.mark.parametrize("matrix", TABLE)
def test_the_table_in_the_docs(matrix):
    lines = (
        (pathlib.Path(__file__).parents[2] / "reproduction" / "estimates.md")
        .read_text()
        .splitlines()
    )
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(f"| {matrix} | ")]
    assert [row[1].split(",")[0] for row in rows] == ["signs", "normal"]
    for row, normal in zip(rows, (False, True), strict=True):
        for count, printed in zip(PASSES, row[2:], strict=True):
            share = 100 * coverage(TABLE[matrix], normal=normal, count=count, draws=4000)
            # 3: rounding, and 4 standard errors of 4,000 draws
            assert abs(share - float(printed)) < 3, (count, printed, share)


# -- too few for an interval ----------------------------------------------------------------------


def test_the_square_from_few_probes_has_no_interval(problems):
    problem = problems["tiny"]
    few = trace_squared(problem.workspace(0, max_passes=PILOT - 1))
    assert few.estimate.unknown
    assert not trace_squared(problem.workspace(0, max_passes=PILOT)).estimate.unknown
    found = sl.measure(
        problem.model, (problem.x, problem.y), measures="curvature.trace_squared", max_passes=4
    )["curvature.trace_squared"]
    assert (found.exact, found.stderr, found.interval) == (False, None, None)
    assert found.status is Status.NOT_CONVERGED
    assert "so few probes give no interval; max_passes=32 would give one" in found.text


def test_output_probes_of_one_sample_have_no_interval():
    problem = one_sample_decides(4)
    found = sl.measure(
        problem.model,
        (problem.x, problem.y),
        measures=["curvature.trace", "curvature.ggn_trace", "neuron.rho_max"],
        method="output_probes",
        max_passes=2,
    )
    for measurement in found.values():
        assert (measurement.exact, measurement.interval) == (False, None), measurement.name
        assert measurement.status is Status.NOT_CONVERGED
    assert "no interval: raise max_passes" in found["curvature.trace"].text
    assert "no interval. Raise max_passes" in found["curvature.ggn_trace"].text


def test_few_output_probes_are_judged_together():
    """By the degrees of freedom of all parts, not of each."""
    part = Estimate(10.0, 4.0, dof=FEW - 1, drawn=True)
    assert pooled_estimate([(2, part)]).unknown
    assert not pooled_estimate([(2, part), (2, part)]).unknown
    some = dataclasses.replace(part, dof=MANY / 2)
    many = dataclasses.replace(part, dof=MANY)
    assert pooled_estimate([(2, many)]).variance == 4.0 < pooled_estimate([(2, some)]).variance
    assert pooled_estimate([(1, Estimate(10.0))]) == Estimate(10.0)
    unknown = pooled_estimate([(2, part)]) + Estimate(1.0)
    assert math.isinf(unknown.half_width(0.95))
    assert not unknown.within(0.5, 0.95)


def test_an_interval_is_that_of_students_distribution():
    low, high = scipy.stats.t.interval(0.9, 5.0, loc=10.0, scale=2.0)
    estimate = Estimate(10.0, variance=4.0, dof=5.0, drawn=True)
    assert estimate.errors(0.9)["interval"] == pytest.approx((low, high))
