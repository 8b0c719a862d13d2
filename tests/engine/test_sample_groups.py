"""Probes where the curvature is: no bias, a smaller variance, and intervals that hold."""

import math
import statistics
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel.engine import sample_draws
from spiritlevel.engine.sample_draws import SampleGroups, Slots
from spiritlevel.model.distributed import Processes
from spiritlevel.testing import references

Problem = tuple[nn.Module, Iterable[tuple[Tensor, Tensor]]]
TRACE = "curvature.trace"


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A trained network that is sure of most of its samples, and unsure of a few."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(96, 4, generator=generator, dtype=torch.float64)
    y = x[:, :3].argmax(dim=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh())
        model = nn.Sequential(*model, nn.Linear(5, 3)).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), [(x[:50], y[:50]), (x[50:], y[50:])]


@pytest.fixture(scope="module")
def truth(problem: Problem) -> float:
    dense = references.Truth(*problem, F.cross_entropy)
    return float(dense.hessian(list(dense.parameters)).trace())


def measured(problem: Problem, seed: int = 0, **options: object) -> sl.results.Measurement:
    asked = {"max_passes": 12, "rtol": 1e-4} | options
    report = sl.measure(
        *problem,
        measures=TRACE,
        method="sample_probes",
        seed=seed,
        **asked,  # type: ignore[arg-type]
    )
    return report[TRACE]


def test_the_mean_is_the_trace(problem: Problem, truth: float) -> None:
    m = measured(problem, max_passes=40)
    assert m.stderr is not None
    assert m.stderr < 0.1 * truth
    assert abs(m.value - truth) <= 4 * m.stderr  # once in 15,000 times by chance


@pytest.mark.nightly
def test_the_variance_is_smaller_at_equal_cost(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for name, worthwhile in [("groups", 1.5), ("all alike", math.inf)]:
        monkeypatch.setattr(sample_draws, "WORTHWHILE", worthwhile)
        runs = [measured(problem, seed=seed) for seed in range(16)]
        found[name] = (
            statistics.variance(m.value for m in runs),
            statistics.mean(m.cost.products for m in runs),
        )
    assert found["groups"][1] <= 1.15 * found["all alike"][1]
    # a fifth in long runs; the ratio of two variances of 16 draws is off by two or less
    assert found["groups"][0] < 0.6 * found["all alike"][0]


@pytest.mark.nightly
def test_intervals_hold_the_truth(problem: Problem, truth: float) -> None:
    """200 seeds; 95 % minus three standard deviations of 200 draws are 90 %."""
    runs = [measured(problem, seed=seed) for seed in range(200)]
    ends = [m.interval for m in runs if m.interval is not None]
    assert len(ends) >= 150
    assert sum(low <= truth <= high for low, high in ends) >= 0.9 * len(ends)


def test_batches_do_not_matter(problem: Problem) -> None:
    model, batches = problem
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    whole = measured((model, [(x, y)]))
    small = measured((model, [(x[i : i + 7], y[i : i + 7]) for i in range(0, 96, 7)]))
    assert small.value == pytest.approx(whole.value, rel=1e-9)
    assert small.stderr == pytest.approx(whole.stderr, rel=1e-9)


def test_a_sample_has_its_group_in_whatever_order_it_comes(problem: Problem, truth: float) -> None:
    """A loader that shuffles gives every pass another order: by place it took four times as much.

    The errors are those of other probes, and differ by a tenth or two.
    """
    model, batches = problem
    pairs = TensorDataset(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    loader = DataLoader(pairs, 32, shuffle=True, generator=torch.Generator().manual_seed(5))
    shuffled, ordered = (measured((model, data), max_passes=40) for data in (loader, batches))
    assert shuffled.stderr is not None
    assert ordered.stderr is not None
    assert shuffled.stderr < 1.5 * ordered.stderr
    assert abs(shuffled.value - truth) <= 4 * shuffled.stderr  # once in 15,000 times by chance


def test_shares_follow_the_curvature() -> None:
    curvatures = torch.tensor([0.01] * 90 + [1.0] * 10)
    groups = SampleGroups(curvatures, Processes(join=False))
    assert groups.pay
    assert groups.of(curvatures).tolist() == [0] * 90 + [2] * 10
    assert groups.sizes == pytest.approx([0.9, 0.0, 0.1])
    counts = groups.probes(10)
    # a tenth for all alike: 10 · (0.1 + 0.9 · 0.01/0.109), and 10 · (0.1 + 0.9 · 1/0.109)
    assert counts == [2, 0, 84]
    assert groups.cost(counts) == pytest.approx(0.9 * 2 + 0.1 * 84)
    assert all(count != 1 for passes in range(1, 30) for count in groups.probes(passes))


@pytest.mark.parametrize(
    "curvatures",
    [torch.ones(100), torch.zeros(100), torch.tensor([0.01] * 9 + [1.0]), torch.zeros(0)],
    ids=["equal", "none", "few samples", "no samples"],
)
def test_where_nothing_is_to_be_gained_all_are_alike(curvatures: Tensor) -> None:
    assert not SampleGroups(curvatures, Processes(join=False)).pay


@pytest.mark.parametrize(
    ("count", "most", "rows", "rounds"),
    [(10, 32, 30, 1), (84, 32, 30, 9), (2, 32, 6, 1), (7, 3, 3, 7), (7, 2, 3, 7), (11, 7, 6, 6)],
)
def test_draws_of_a_sample_stand_beside_each_other(
    count: int, most: int, rows: int, rounds: int
) -> None:
    """Each of three samples has each of its draws once, in a batch of nearly the rows allowed."""
    members = torch.tensor([3, 8, 20])
    slots = Slots.of_group(members, 5, count, most)
    assert slots.samples is not None
    assert (len(slots.samples), slots.rounds) == (rows, rounds)
    values = [(100 * slots.samples + slots.draws + i)[None] for i in range(rounds)]
    found = slots.in_order(values, count, len(members))
    assert [draw[0].tolist() for draw in found] == [
        (100 * members + 5 + draw).tolist() for draw in range(count)
    ]


def test_weights_of_the_classes_count_in_the_groups_too(problem: Problem) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64))
    dense = references.Truth(*problem, loss)
    expected = float(dense.hessian(list(dense.parameters)).trace())
    m = measured(problem, loss=loss, max_passes=40)
    assert m.stderr is not None
    assert m.stderr < 0.1 * expected
    assert abs(m.value - expected) <= 4 * m.stderr  # once in 15,000 times by chance
