"""Deleted units of a language model: probes of its many outputs against dense matrices."""

import dataclasses
import functools
import itertools
import json
import re
import statistics

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.engine.directions import column_pass
from spiritlevel.engine.directions.tally import ProbeGroups
from spiritlevel.results import Pruning
from spiritlevel.verbs.pruning import measuring

pytestmark = pytest.mark.sampled(2)  # the others at night

NAMES = ("first.weight", "second.weight", "head.weight")
LAYERS = [name.removesuffix(".weight") for name in NAMES]
VOCABULARY, LENGTH, WIDTH, HIDDEN = 3, 2, 5, 6
SIGNS = VOCABULARY * LENGTH
TAKEN = [0, 3, 6, 9, 12, 15]  # some units
SEEDS = 20


class TinyLanguageModel(nn.Module):
    """Each position sees the mean of all before it; the outputs are (N, T, vocabulary)."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        x = x + self.second(F.gelu(self.first(x.cumsum(dim=1) / counts)))
        return self.head(self.norm(x))


@functools.cache
def problem():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = TinyLanguageModel().double().eval()
        rows = torch.randint(0, VOCABULARY, (40, LENGTH + 1))
    return model, (rows[:, :-1], rows[:, 1:])


@pytest.fixture
def many(monkeypatch):
    """The few outputs that a test has are many."""
    monkeypatch.setattr(measuring, "MOST_COLUMNS", 3)


@functools.cache
def dense():
    """Slopes, GGN and the variance of one probe of it, from the Jacobian of the outputs."""
    model, (x, y) = problem()
    parameters = dict(model.named_parameters())
    weights = {name: parameters[name].detach() for name in NAMES}
    scores = model(x).reshape(-1, VOCABULARY)
    moving = [parameters[name] for name in NAMES]
    rows = [torch.autograd.grad(z, moving, retain_graph=True) for z in scores.flatten()]
    J = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    J = J.unflatten(0, (-1, VOCABULARY))  # (N·T, V, parameters)
    scores = scores.detach()
    p = scores.softmax(dim=1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    changes, start = [], 0
    for name in NAMES:
        for j in range(weights[name].shape[1]):
            change = torch.zeros(J.shape[2], dtype=torch.float64)
            column = torch.zeros_like(weights[name])
            column[:, j] = -weights[name][:, j]
            change[start : start + column.numel()] = column.flatten()
            changes.append(change)
        start += weights[name].numel()
    D = torch.stack(changes)
    moved = J @ D.T  # (N·T, V, units)
    gram = torch.einsum("tvi,tvw,twj->ij", moved, A, moved) / len(scores)
    slope = torch.einsum("tv,tvi->i", p - F.one_hot(y.flatten(), VOCABULARY), moved) / len(scores)
    a = p.sqrt()[:, :, None] * (moved - (p[:, :, None] * moved).sum(dim=1, keepdim=True))
    a = a.reshape(len(x), -1, len(D))
    variances = 2 * (a.square().sum(dim=1).square() - a.pow(4).sum(dim=1))
    return slope, gram, variances.sum(dim=0) / len(scores) ** 2


def joined(parts):
    return torch.cat([parts[name] for name in NAMES])


@functools.cache
def drawn(seed, num_probes=8):
    model, data = problem()
    return sl.pruning(model, data, layers=LAYERS, seed=seed, num_probes=num_probes, check=False)


def test_slopes_stay_exact_and_all_columns_give_the_dense_matrix(many, monkeypatch):
    slope, gram, _ = dense()
    torch.testing.assert_close(joined(drawn(0).first), slope, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(measuring, "MOST_COLUMNS", 1024)
    model, data = problem()
    exact = sl.pruning(model, data, layers=LAYERS, check=False)
    torch.testing.assert_close(exact.gram, gram, rtol=1e-8, atol=1e-12)
    assert float(joined(exact.stderr).max()) == 0.0
    assert exact.groups is None


@pytest.fixture
def every_sign(many, monkeypatch):
    """Every pattern of signs is drawn once: means over them leave nothing to chance."""
    patterns = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=SIGNS))).double()
    drawn_so_far = itertools.count()
    monkeypatch.setattr(
        column_pass,
        "random_signs",
        lambda seed, stream, rows, count, dtype: patterns[next(drawn_so_far)].expand(len(rows), -1),
    )
    model, data = problem()
    return sl.pruning(model, data, layers=LAYERS, num_probes=len(patterns), check=False)


def test_the_mean_over_all_signs_is_the_dense_matrix(every_sign):
    slope, gram, _ = dense()
    torch.testing.assert_close(every_sign.gram, gram, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(joined(every_sign.second), gram.diagonal(), rtol=1e-9, atol=1e-12)
    deletion = every_sign._deletion(TAKEN, "given")
    expected = float(slope[TAKEN].sum() + 0.5 * gram[TAKEN][:, TAKEN].sum())
    assert deletion.rise == pytest.approx(expected, rel=1e-9)


def test_the_error_over_all_signs_is_that_of_a_closed_form(every_sign):
    """Var (rᵀa)² = 2(‖a‖⁴ − Σ_k a_k⁴), with a_k = √p_k (v_k − p·v) of each sample."""
    _, _, variances = dense()
    count = 2**SIGNS  # the spread of all 64 patterns is their variance times 64/63
    told = joined(every_sign.stderr).square() * (count - 1)
    torch.testing.assert_close(told, variances, rtol=1e-9, atol=1e-16)


@pytest.mark.nightly
def test_intervals_cover_the_truth(many):
    _, gram, _ = dense()
    gaps = torch.stack([joined(drawn(s).second) for s in range(SEEDS)]) - gram.diagonal()
    errors = torch.stack([joined(drawn(s).stderr) for s in range(SEEDS)])
    # 16 units of 20 seeds, whose squares are skewed: 95 %, give or take a few of them
    assert 0.88 < float((gaps.abs() <= 1.96 * errors).double().mean()) < 0.99


def test_the_error_of_a_sum_is_that_of_independent_groups(many):
    found = drawn(0)
    assert found.groups.sizes == [4, 1, 1, 1, 1]
    grams = found.groups.grams[:, TAKEN][:, :, TAKEN].double().sum(dim=(1, 2))
    mean = float((grams * torch.tensor([4, 1, 1, 1, 1])).sum() / 8)
    slope = float(joined(found.first)[TAKEN].sum())
    deletion = found._deletion(TAKEN, "given")
    assert deletion.rise == pytest.approx(slope + 0.5 * mean, rel=1e-6)  # groups are in float32
    # groups of 1 and 4 of five independent values of variance 1: that of their mean is 1/5
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(1000, 2, 1, generator=generator).double() / torch.tensor([[1.0], [2.0]])
    told = [
        ProbeGroups([1, 4], each, None, 10**9).along([0], joint=False, fresh=False)[1] ** 2
        for each in draws
    ]
    alike = torch.ones(2, 1).double()  # groups that agree by chance leave what one draw varies
    told_least = ProbeGroups([1, 4], alike, None, 10).along([0], joint=False, fresh=False)
    assert told_least == (1.0, pytest.approx((2 / 50) ** 0.5))
    # 1 degree of freedom: its mean over 1000 draws is within 0.2 √(2/1000) = 0.009, times 3.5
    assert statistics.fmean(told) == pytest.approx(0.2, abs=0.03)


def test_a_joint_choice_is_judged_by_probes_that_did_not_choose_it(many):
    """60 units without terms between them, of which 60 draws believe to see some."""
    generator = torch.Generator().manual_seed(0)
    said, believed, errors = [], [], []
    for _ in range(40):
        draws = torch.randn(4, 60, 60, generator=generator, dtype=torch.float64)
        grams = draws.mT @ draws / 60
        groups = ProbeGroups([1, 1, 1, 1], grams.diagonal(dim1=1, dim2=2), grams, 60)
        found = dataclasses.replace(
            drawn(0),
            first={"w": torch.zeros(60).double()},
            second={"w": groups.second.mean(dim=0)},
            owner={"w": torch.arange(60)[None].int()},
            gram=grams.mean(dim=0),
            groups=groups,
        )
        deletion = found.choose(0.5, by="joint")
        gone = deletion.units["w"]
        believed.append(0.5 * float(grams[0][gone][:, gone].sum()))
        said.append(deletion.rise)
        errors.append(deletion.stderr)
    assert statistics.fmean(believed) < 5  # the truth is 15, of 30 units with ½ each
    # three groups of 60 draws: √(2/180) of 15 is 1.6; the mean of 40 is within 0.25, times 3.5
    assert statistics.fmean(said) == pytest.approx(15, abs=0.9)
    made = statistics.fmean((value - 15) ** 2 for value in said)
    assert statistics.fmean(error**2 for error in errors) == pytest.approx(made, rel=0.6)


def test_more_probes_are_more_precise_and_groups_may_differ_in_size(many):
    _, gram, _ = dense()
    found = drawn(1, 32)
    assert found.groups.sizes == [16, *[2] + [1] * 14]
    assert float(joined(found.stderr).sum()) < 0.75 * float(joined(drawn(1).stderr).sum())
    gaps = (joined(found.second) - gram.diagonal()).abs()
    assert float((gaps / joined(found.stderr)).max()) < 4.5
    sizes = torch.tensor(found.groups.sizes).double()
    mean = (sizes[:, None, None] * found.groups.grams).sum(dim=0) / sizes.sum()
    torch.testing.assert_close(mean, found.gram, rtol=1e-5, atol=1e-9)  # groups are in float32


def test_batches_change_nothing(many):
    model, (x, y) = problem()
    batches = [(x[i : i + 5], y[i : i + 5]) for i in range(0, len(x), 5)]
    found = sl.pruning(model, batches, layers=LAYERS, check=False)
    torch.testing.assert_close(found.gram, drawn(0).gram, rtol=1e-9, atol=1e-12)


def test_text_and_file_say_that_probes_were_used(many):
    model, data = problem()
    found = sl.pruning(model, data, layers=LAYERS, share=0.3)
    text = str(found)
    error = (found.stderr["head.weight"] / found.second["head.weight"]).median()
    assert re.search(rf"head\.weight +5( +\S+){{3}} +ggn ±{float(error):.0%}", text), text
    alone = "sum of single-unit predictions"
    assert re.search(rf"predicted loss increase \S+ ± \S+; {alone} \S+ ± ", text)
    assert "± is one standard error, from 8 random probes per sample" in text
    assert found.chosen.by == "curvature"
    assert not any(found.exact.values())
    assert found.text["head.weight"] == "8 output probes for 4 columns"
    assert "bend along it" in found.text["first.weight"]
    assert found.settings["num_probes"] == 8
    data = json.loads(found.to_json())
    assert data["stderr"]["head.weight"] == pytest.approx(found.stderr["head.weight"].tolist())
    assert data["chosen"]["stderr"] == pytest.approx(found.chosen.stderr)
    again = Pruning.from_json(found.to_json())
    assert str(again) == text
    assert again.chosen == found.chosen
    assert again.choose(0.3).stderr is None


def test_too_many_units_leave_the_error_of_their_sum(many, monkeypatch):
    monkeypatch.setattr(measuring, "MOST_PROBED_PAIRS", 15)
    model, data = problem()
    found = sl.pruning(model, data, layers=LAYERS, share=0.3, check=False)
    assert found.gram is None
    assert found.chosen.rise is found.chosen.stderr is None
    assert found.chosen.separate_stderr > 0.0


@pytest.mark.parametrize("num_probes", [3, 0])
def test_too_few_probes_are_refused(num_probes):
    model, data = problem()
    with pytest.raises(sl.SpiritlevelError, match=rf"at least 4.*Got {num_probes}\. The default"):
        sl.pruning(model, data, num_probes=num_probes)
