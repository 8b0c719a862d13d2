"""The rows behind the bound: which they are, that draws do not depend on them, what is refused."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from forked import needs_gloo, run_in_two_processes, run_script
from measures.forms.bound import c2_by_hand
from spiritlevel import symmetries
from spiritlevel.engine.head import features as rows_module
from spiritlevel.model.losses import CrossEntropy
from spiritlevel.verbs import reference_problems as problems

NAMES = ["bound.representativeness", "bound.c1", "bound.c2", "bound.generalization"]


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


# -- the features --------------------------------------------------------------------------------


def test_convolution_under_average_pooling():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = model.double().eval()
    x = torch.randn(9, 1, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(9) % 3
    with torch.no_grad():
        patches = F.unfold(model[1](model[0](x)), 2).mean(dim=2)  # (N, channels · 4)
        largest = float(F.cross_entropy(model(x), y, reduction="none").detach().max())
    found = measure(model, x, y, "bound.c2")
    assert found.value == pytest.approx(c2_by_hand(patches, largest), rel=1e-11)


@pytest.mark.parametrize("loss", ["tokens", "mse"])
def test_every_position_that_counts_is_a_sample(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4)).double().eval()
    x = torch.randn(5, 6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        features, outputs = model[:2](x).flatten(0, 1), model(x).flatten(0, 1)
    if loss == "tokens":
        y = torch.randint(4, (5, 6), generator=torch.Generator().manual_seed(2))
        y[:, ::3] = -100
        kept = y.flatten() >= 0
        given, features = CrossEntropy(class_dim=-1), features[kept]
        losses = F.cross_entropy(outputs[kept], y.flatten()[kept], reduction="none")
    else:
        y = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        given, losses = "mse", (outputs - y.flatten(0, 1)).square().mean(dim=1)
    found = measure(model, x, y, "bound.c2", loss=given)
    assert found.value == pytest.approx(c2_by_hand(features, float(losses.max())), rel=1e-12)
    other = measure(model, x, y, "bound.representativeness", loss=given)
    assert f"density of {len(features)} points in 3 features" in other.text


def test_class_weights_are_those_of_the_mean_loss():
    model, x, y = linear(4)
    weights = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    given = nn.CrossEntropyLoss(weight=weights)
    values = F.cross_entropy(model(x), y, weight=weights, reduction="none").detach()
    largest = float((values / weights[y].mean()).max())
    assert float((values / weights[y].mean()).mean()) == pytest.approx(
        float(given(model(x), y).detach())
    )
    found = measure(model, x, y, "bound.c2", loss=given)
    assert found.value == pytest.approx(c2_by_hand(x, largest), rel=1e-12)


def test_a_loss_of_your_own():
    model, x, _ = linear(3, num_outputs=2)
    y = torch.ones(8, 2, dtype=torch.float64)

    def quartic(outputs, targets):
        return (outputs - targets).pow(4).sum(dim=1)

    largest = float((model(x) - y).detach().pow(4).sum(dim=1).max())
    found = measure(model, x, y, "bound.c2", loss=quartic)
    assert found.value == pytest.approx(c2_by_hand(x, largest), rel=1e-12)


# -- the same numbers on any cut of the data, with the same seed ----------------------------------


def differing(one, other, rel):
    return [n for n in NAMES if one[n].value != pytest.approx(other[n].value, rel=rel)]


@pytest.mark.parametrize("make", [problems.relu_mlp, problems.relu_convnet])
def test_draws_do_not_depend_on_order_cut_numbering_or_scale(make):
    problem = make()
    x, y = problem.inputs(), problem.targets()
    before = sl.measure(problem.model, problem.data, measures="bound.*")
    order = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    shuffled = sl.measure(problem.model, (x[order], y[order]), measures="bound.*")
    assert differing(before, shuffled, 1e-11) == []
    model = problem.model
    for producer, consumer in problem.pairs:
        width = len(model.get_submodule(producer).weight)
        model = symmetries.rescale_layers(model, producer, consumer, 7.3)
        model = symmetries.permute_units(model, producer, consumer, torch.arange(width).roll(1))
    moved = sl.measure(model, problem.data, measures="bound.*")
    assert differing(before, moved, 1e-9) == []
    neurons = symmetries.rescale_neurons(
        problem.model, *problem.pairs[-1], torch.linspace(1, 9, width, dtype=torch.float64)
    )
    moved = sl.measure(neurons, problem.data, measures="bound.*", options={"bandwidth": 1.0})
    before = sl.measure(problem.model, problem.data, measures="bound.*", options={"bandwidth": 1.0})
    assert differing(before, moved, 1e-3) == NAMES  # isotropic kernel and norm notice it


def test_one_pass_serves_all_four():
    problem = problems.relu_mlp()
    sl.measure(problem.model, problem.data, measures="bound.c2")  # finds out about the network
    alone = sl.measure(problem.model, problem.data, measures="bound.c2").cost
    every = sl.measure(problem.model, problem.data, measures="bound.*").cost
    assert every == alone


# -- refusals ------------------------------------------------------------------------------------


def refusal(model, x, y, name="bound.c1", **options):
    with pytest.raises(sl.SpiritlevelError) as caught:
        sl.measure(model, (x, y), measures=name, **options)
    return str(caught.value)


def test_large_vocabularies_are_refused_by_name_and_left_out_by_a_pattern():
    model, x, y = linear(2, num_outputs=4096)
    text = refusal(model, x, y)
    assert "'bound.c1'" in text
    assert "fewer than 4096 outputs. Got 4096" in text
    assert "head.kappa holds for any vocabulary" in text
    report = sl.measure(model, (x, y), measures=["bound.*", "head.kappa"])
    assert list(report) == ["head.kappa"]


def test_too_few_and_too_many_rows(monkeypatch):
    model, x, y = linear(2)
    text = refusal(model, x[:3], y[:3])
    assert "needs 4 to 20000 of them. Got 3 rows (3 samples × 1 positions)" in text
    assert "Pass more data" in text
    monkeypatch.setattr(rows_module, "MAX_ROWS", 5)
    assert "a random part of the data" in refusal(model, x, y)


def test_memory_is_checked_before_anything_is_kept():
    model, x, y = linear(50)
    text = refusal(model, x, y, memory=5000)
    assert "keeps the features of all samples: 8 rows" in text
    assert "memory=" in text


def test_ignored_targets_do_not_count_as_rows():
    model, x, y = linear(2)
    y[:5] = -100
    assert "at least 4 targets that count. Got 3 of 8" in refusal(model, x, y)


def test_doubles_have_no_most_likely_bandwidth():
    model, x, y = linear(2)
    text = refusal(model, x[[0, 1, 2, 3] * 2], y[[0, 1, 2, 3] * 2])
    assert "'bandwidth'='likelihood'" in text
    assert "Use bandwidth='scott'" in text
    measure(model, x[[0, 1, 2, 3] * 2], y[[0, 1, 2, 3] * 2], "bound.c1", bandwidth="scott")


def test_features_that_are_all_constant():
    model, x, y = linear(2)
    text = refusal(model, torch.ones_like(x), y)
    assert "All 2 inputs of layer '(model)' are constant" in text


def test_a_loss_that_is_not_one_of_rows_is_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1)).double().eval()
    x = torch.randn(6, 1, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (torch.rand(6, 2, 2, 2, generator=torch.Generator().manual_seed(1)) < 0.5).double()
    weight = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]).double()  # one a pixel
    text = refusal(model, x, y, loss=nn.BCEWithLogitsLoss(weight=weight))
    assert "must be a loss of each row of the head alone" in text
    assert "Leave bound.* out of 'measures'" in text


# -- several processes ---------------------------------------------------------------------------

WORKER = """
import json, os, pathlib, sys, torch, torch.distributed as dist, spiritlevel as sl
from torch import nn
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
x = torch.randn(11, 4, dtype=torch.float64)
y = torch.randint(3, (11,))
found = []
for cuts in sys.argv[1:-1]:
    start, end = map(int, cuts.split(",")[rank].split(":"))
    own = list(zip(x[start:end].split(4), y[start:end].split(4))) if end > start else []
    report = sl.measure(model, own, measures=["bound.*", "relative.kappa_*"])
    found.append({name: report[name].value for name in report})
pathlib.Path(f"{sys.argv[-1]}.{rank}").write_text(json.dumps(found))
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way
"""


@needs_gloo
def test_two_processes_find_what_one_finds(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    run_script(worker, "0:11", tmp_path / "one")
    (expected,) = json.loads((tmp_path / "one.0").read_text())
    assert {*NAMES, "relative.kappa_std", "relative.kappa_var"} <= set(expected)
    cuts = ["0:7,7:11", "0:0,0:11"]  # the first process may have nothing at all
    run_in_two_processes(worker, *cuts, tmp_path / "two")
    for rank in range(2):
        for found in json.loads((tmp_path / f"two.{rank}").read_text()):
            assert found == pytest.approx(expected, rel=1e-10)


def test_state_is_left_as_it_was():
    problem = problems.relu_mlp()
    before = copy.deepcopy(problem.model.state_dict())
    rng = torch.random.get_rng_state()
    sl.measure(problem.model, problem.data, measures="bound.*")
    assert torch.equal(torch.random.get_rng_state(), rng)
    for name, value in problem.model.state_dict().items():
        assert torch.equal(value, before[name])
