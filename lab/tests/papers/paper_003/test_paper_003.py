"""Paper 003: rescaling that leaves the function, networks taken over, and the two analyses."""

import dataclasses
import itertools
import math
import re

import numpy
import pytest
import torch
from scipy import stats
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build
from spiritlevel_lab import Study
from spiritlevel_lab.papers import find
from spiritlevel_lab.papers.judgement import judged
from spiritlevel_lab.papers.paper_003.fig_1 import COUNTERPARTS, LARGEST, TRACE, VERSIONS, WORDS
from spiritlevel_lab.papers.paper_003.fig_3 import BY_LAYER, KAPPA, MAX, NETWORK, SUM
from spiritlevel_lab.papers.paper_003.tasks_networks import KINDS, output_change, rescaled
from spiritlevel_lab.population import control
from spiritlevel_lab.population.runs.running import run_one

pytestmark = pytest.mark.sampled(4)  # the others at night

NAMES = ("003-fig-1", "003-fig-3")


# -- rescaling -------------------------------------------------------------------------------


def images(size=(5, 1, 12, 12)):
    return torch.rand(size, generator=torch.Generator().manual_seed(0)).double()


@pytest.fixture
def lenet():
    return build("lenet5", seed=0, size=12).double().eval()


def moved(model, kind, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return rescaled(model, kind, low=5.0, high=25.0, generator=drawn)


@pytest.mark.parametrize("kind", KINDS)
def test_rescaling_leaves_the_function_and_the_network_given(lenet, kind):
    before = {name: value.clone() for name, value in lenet.state_dict().items()}
    other = moved(lenet, kind)
    assert torch.allclose(other(images()), lenet(images()), rtol=1e-9)
    assert output_change(lenet, other, images()) < 1e-9
    assert all(torch.equal(value, before[name]) for name, value in lenet.state_dict().items())


def test_every_layer_gets_a_factor_of_its_own(lenet):
    """The first layer grows by its factor, the last shrinks by that of the one before it."""
    other = moved(lenet, "layers")
    growth = [
        (getattr(other, name).weight / getattr(lenet, name).weight).detach()
        for name in ("conv1", "conv2", "fc1", "fc2", "head")
    ]
    for ratio in growth:
        assert torch.allclose(ratio, ratio.flatten()[0].expand_as(ratio))
    factors = numpy.cumprod([float(ratio.flatten()[0]) for ratio in growth])
    assert all(5.0 <= factor <= 25.0 for factor in factors[:-1])
    assert factors[-1] == pytest.approx(1.0)
    assert len(set(factors.round(6))) == 5


def test_every_neuron_gets_a_factor_of_its_own(lenet):
    ratio = (moved(lenet, "neurons").conv1.weight / lenet.conv1.weight)[:, 0, 0, 0]
    assert ((ratio >= 5.0) & (ratio <= 25.0)).all()
    assert len(ratio.unique()) == 6
    again, others = moved(lenet, "neurons"), moved(lenet, "neurons", seed=1)
    assert torch.equal(again.conv1.weight, moved(lenet, "neurons").conv1.weight)
    assert not torch.equal(again.conv1.weight, others.conv1.weight)


def test_network_that_cannot_be_rescaled_is_refused():
    smooth = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = images((5, 3))
    with pytest.raises(SpiritlevelError, match=r"must be a chain of .* for example lenet5 or mlp"):
        output_change(smooth, moved(smooth, "layers"), x)


# -- the task --------------------------------------------------------------------------------

MODEL = {"name": "mlp", "hidden": [12, 10]}
TRAINED = {
    "data": {"name": "digits", "samples": 120},
    "training": {"epochs": 6, "lr": 0.1, "batch_size": 20},
}


def settings_of(**task):
    study = Study(
        "tiny",
        model=MODEL,
        task={"name": "tasks_003_networks"} | task,
        measures=["scaled.trace", "scaled.lambda_max", "neuron.rho_sum", "softmax.gini"],
        **TRAINED,
    )
    [settings] = study.runs()
    return settings


def values_of(result):
    assert all(row.layer == "" for row in result.measurements)
    return {row.measure: row.value for row in result.measurements}


@pytest.fixture(scope="module")
def result():
    return run_one(settings_of())


def test_layers_under_rescaling(result):
    found = values_of(result)
    for layer in ("fc1", "fc2", "head"):
        kappa, rho = f"scaled.trace[{layer}]", f"neuron.rho_sum[{layer}]"
        assert found[f"{kappa}/layers"] == pytest.approx(found[kappa], rel=1e-4)
        assert found[f"{rho}/layers"] == pytest.approx(found[rho], rel=1e-4)
        assert found[f"{rho}/neurons"] == pytest.approx(found[rho], rel=1e-4)
        largest = f"scaled.lambda_max[{layer}]"
        assert found[f"{largest}/layers"] == pytest.approx(found[largest], rel=1e-2)  # an estimate
    assert found["scaled.trace[head]/neurons"] != pytest.approx(found["scaled.trace[head]"], 0.01)
    assert 25.0 <= found["task.trace[head]/layers"] / found["task.trace[head]"] <= 625.0
    assert 0.0 <= found["task.output_change/layers"] < 1e-4
    assert len([name for name in found if name.startswith("softmax.gini")]) == 3


def test_hessian_without_the_norm_is_that_of_the_weights(result, tmp_path):
    """Against the closed form: mean of Gini impurity times squared feature norm."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes(result.checkpoint)
    model = build("mlp", seed=1, hidden=[12, 10])
    load_checkpoint(model, path)
    x, _ = digits("train")
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:120]
    with torch.no_grad():
        features = model[:-1](x[chosen]).double()
        p = model[-1].double()(features).softmax(dim=1)
        expected = ((1 - p.square().sum(1)) * features.square().sum(1)).mean()
    found = values_of(result)
    assert found["task.trace[head]"] == pytest.approx(float(expected), rel=1e-4)
    norm = float(model[-1].weight.detach().square().sum())
    assert found["scaled.trace[head]"] == pytest.approx(norm * float(expected), rel=1e-4)


def test_task_is_repeatable_and_measures_alone_if_asked(result):
    again = run_one(settings_of())
    assert again.measurements == result.measurements
    assert again.checkpoint == result.checkpoint
    plain = values_of(run_one(settings_of(rescale="")))
    assert plain == {k: v for k, v in values_of(result).items() if "/" not in k}


def test_networks_of_another_study_are_not_trained_again(result, tmp_path):
    population = Study(
        "population", model=MODEL, seeds=2, measures=["softmax.gini"], presets={}, **TRAINED
    )
    folder = tmp_path / "population"
    control.run(population, folder).close()
    taken = run_one(settings_of(population=str(folder)))
    assert taken.epochs == result.epochs
    assert taken.outcome == result.outcome == "epochs"
    assert taken.checkpoint == result.checkpoint
    assert taken.measurements == result.measurements
    other = dataclasses.replace(settings_of(population=str(folder)), seed=2)
    with pytest.raises(SpiritlevelError, match=r"seed 2. It has 0. Run that study to its end"):
        run_one(other)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"rescale": "layer"}, r"task.rescale must hold the words layers and neurons.* 'layer'"),
        ({"population": "nowhere"}, r"'nowhere' must hold a study"),
    ],
)
def test_wrong_options(task, text):
    with pytest.raises(SpiritlevelError, match=text):
        run_one(settings_of(**task))


def test_network_that_diverged_has_no_measures():
    settings = settings_of()
    wild = dataclasses.replace(settings, training=dataclasses.replace(settings.training, lr=1e30))
    found = run_one(wild)
    assert (found.outcome, found.measurements) == ("diverged", ())


# -- the studies -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_can_be_read(name):
    study = control.find(name)
    assert {"quick", "h200", "paper"} <= set(study.presets)
    sizes = {preset: len(study.with_preset(preset).runs()) for preset in study.presets}
    assert sizes["quick"] < len(study.runs()) < sizes["h200"] < sizes["paper"]


@pytest.mark.parametrize(
    ("preset", "trained_by", "count"),
    [
        ("h200", "002-fig-5", 140),
        ("h200-full", "003-fig-1-networks", 81),
        ("h200-accuracy", "003-fig-1-networks", 96),
    ],
)
def test_lenet_study_takes_networks_over(preset, trained_by, count):
    def networks(name):
        runs = control.find(name).with_preset(preset).runs()
        keys = ("model", "data", "training", "interventions", "stop", "seed")
        return [{key: run.to_dict()[key] for key in keys} for run in runs]

    ours, theirs = networks("003-fig-1"), networks(trained_by)
    assert len(ours) == len(theirs) == count
    assert all(network in theirs for network in ours)
    folder = control.find("003-fig-1").with_preset(preset).runs()[0].task.arguments["population"]
    assert folder == control.default_folder(trained_by, preset).as_posix()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_quick_study_runs_on_small_data(name, tmp_path):
    """The whole way to the outcome: the columns it asks for are those that the task gives."""
    study = control.find(name).with_preset("quick")
    path, random = tmp_path / "data.npz", numpy.random.default_rng(0)
    shape = (3, 32, 32) if name == "003-fig-1" else (1, 28, 28)
    y = numpy.arange(20) % 10
    x = random.random((20, *shape)).astype("float32") + y[:, None, None, None] / 10
    numpy.savez(path, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    study = study.with_values({"data.name": str(path), "data.samples": 20, "epochs": 1, "seeds": 1})
    study = dataclasses.replace(study, measure_options={"samples": 4})
    with control.run(study, tmp_path / "store") as store:
        assert control.state(store).counts.done == len(study.runs()) == 2
        names = {row["measure"] for row in store.rows("measurements")}
    wanted = {column for column in find(name).columns if "." in column}
    assert wanted <= names


# -- the analyses ----------------------------------------------------------------------------


def lenet_rows(invariant, alone, noise=0.3):
    """60 networks; `invariant` and `alone` say how strongly the measures follow the gap."""
    random = numpy.random.default_rng(0)
    rows = []
    for seed in range(60):
        gap = random.normal()
        row = {"outcome": "train_loss", "seed": seed, "gap": gap, "train_loss": 0.1}
        row |= {"train_loss": random.uniform(0, 0.4), "softmax.gini": random.normal()}
        row |= {f"task.output_change/{kind}": 1e-6 for kind in KINDS}
        for name in WORDS:
            trained = invariant * gap + noise * random.normal()
            row |= {name + version: math.exp(trained) for version in VERSIONS}
        for name in COUNTERPARTS.values():
            row[f"{name}/layers"] = math.exp(alone * gap + noise * random.normal())
        rows.append(row)
    lost = dict.fromkeys(WORDS, math.nan) | {"gap": math.nan, "train_loss": math.nan}
    stuck = {"outcome": "epochs", "train_loss": 2.3, "gap": 9.0}
    return [*rows, rows[0] | lost | {"outcome": "diverged"}, rows[1] | stuck]


@pytest.mark.parametrize(
    ("invariant", "alone", "agrees"),
    [(1, 0, "yes"), (1, 1, "partly"), (0, 0, "no"), (-1, 0, "no")],
)
def test_lenet_before_and_after(invariant, alone, agrees):
    rows = lenet_rows(invariant, alone)
    outcome = judged(find("003-fig-1"), rows)
    assert outcome.agrees == agrees
    assert "Over 60 networks " in outcome.conclusion
    assert outcome.left_out.startswith("2 runs, of which 1 diverged, are left out")
    kept = rows[:60]
    gap = [row["gap"] for row in kept]
    for cells, name in zip(outcome.table.rows, WORDS, strict=True):
        assert cells[:2] == [WORDS[name], 60]
        for cell, version in zip(cells[2:5], VERSIONS, strict=True):
            expected = stats.spearmanr([row[name + version] for row in kept], gap).statistic
            assert cell.value == pytest.approx(expected)
    assert next(iter(outcome.reproduced_values.values())) == outcome.table.rows[1][2]
    settings, rescaled = outcome.figure.figures
    assert sum(len(series.x) for series in settings.series) == 60
    assert [len(series.x) for series in rescaled.series] == [60] * 4
    assert set(outcome.reproduced_values) == set(find("003-fig-1").paper_values)


def test_copies_of_a_network_in_one_setting_say_nothing_new():
    """Six settings of ten networks each that hardly differ: six points, whatever their number."""
    rows = lenet_rows(1, 0)[:60]
    for number, row in enumerate(rows):
        first = rows[number - number % 10]
        row |= {key: first[key] * (1 + 1e-6 * (number % 10)) for key in ("gap", *WORDS)}
        row |= {"variant": f"batch-{number // 20}", "model.init": f"init-{number // 10 % 2}"}
    outcome = find("003-fig-1").analyse(rows)
    unsaid = [{k: v for k, v in r.items() if k not in ("variant", "model.init")} for r in rows]
    assert find("003-fig-1").analyse(unsaid).findings[0].result == "held"
    assert outcome.findings[0].result == "undecided"
    assert "widest interval" in outcome.table.columns[2]
    table, *_ = outcome.more
    assert table.caption.startswith("6 settings. ")
    assert table.rows[0][2] == 60


def test_measure_that_moves_with_the_rescaling_is_noticed():
    rows = lenet_rows(1, 0)
    for row in rows:
        row[f"{TRACE}/layers"] = math.exp(row["gap"])  # even a stronger correlation is another one
    assert judged(find("003-fig-1"), rows).agrees == "partly"


def test_one_of_two_correlations_is_not_enough():
    rows, none = lenet_rows(1, 0), lenet_rows(0, 0)
    for row, other in zip(rows, none, strict=True):
        row |= {LARGEST + version: other[LARGEST + version] for version in VERSIONS}
    assert find("003-fig-1").analyse(rows).agrees == "partly"


def mnist_rows(layers, network, only=None):
    """Signals of the layers and of the whole network; `only`: the measure that has any."""
    random = numpy.random.default_rng(1)
    rows = []
    for seed in range(50):
        gap = random.normal()
        row = {"outcome": "epochs", "variant": "batch-100", "seed": seed, "gap": gap}
        row |= {"train_loss": random.uniform(0, 0.07), "softmax.gini": random.normal()}
        for measure, names in BY_LAYER.items():
            signal = layers if only in (None, measure) else 0
            row |= {name: signal * gap + random.normal() for name in names}
        row |= {name: network * gap + random.normal() for name in NETWORK}
        rows.append(row)
    return [*rows, rows[0] | {"train_loss": 0.0701}, rows[0] | {"outcome": "diverged"}]


@pytest.mark.parametrize(
    ("given", "parts", "agrees"),
    [
        ((1, 9), "+++", "yes"),
        ((9, 1), "++-", "partly"),  # every layer, but the network less than they
        ((0, 9), "-?+", "partly"),  # the network alone
        ((1, 0, KAPPA), "+?-", "partly"),
        ((1, 0, MAX), "-?-", "no"),  # one kind of neuron-wise flatness is not all of Figs. 4, 5
        ((1, 0, SUM), "-?-", "no"),
        ((-1, 9, KAPPA), "-?+", "partly"),
        ((0, 0), "-??", "no"),
    ],
)
def test_layers_neurons_and_network(given, parts, agrees):
    rows = mnist_rows(*given)
    outcome = judged(find("003-fig-3"), rows)
    assert outcome.agrees == agrees
    marks = {"held": "+", "not held": "-", "undecided": "?"}
    assert "".join(marks[finding.result] for finding in outcome.findings) == parts
    assert "Over 50 networks " in outcome.conclusion
    assert outcome.left_out.startswith("2 runs, of which 1 diverged, are left out")
    gap = [row["gap"] for row in rows[:50]]
    names = [*itertools.chain(*BY_LAYER.values()), *NETWORK]
    assert [cells[0] for cells in outcome.table.rows] == names
    expected = {n: stats.spearmanr([row[n] for row in rows[:50]], gap).statistic for n in names}
    for name, _, linear, ranks, *_ in outcome.table.rows:
        assert ranks.value == pytest.approx(expected[name])
        assert linear.value == pytest.approx(
            stats.pearsonr([row[name] for row in rows[:50]], gap).statistic
        )
    [smallest] = outcome.reproduced_values.values()
    assert smallest.value == pytest.approx(min(expected[name] for name in BY_LAYER[KAPPA]))
    by_layer, networks = outcome.figure.figures
    assert sum(len(series.x) for series in networks.series) == 50
    assert [list(series.y) for series in by_layer.series] == [
        pytest.approx([expected[n] for n in (*BY_LAYER[measure], measure)]) for measure in BY_LAYER
    ]


def test_correlations_at_one_batch_size_are_shown_beside_that_over_all():
    """Here the gap differs between batch sizes and κ_τ with it; at one size nothing is left."""
    rows = [row | {"seed": 0} for row in mnist_rows(0, 0)[:50]]
    for i, row in enumerate(rows):
        row["variant"] = f"batch-{100 if i < 30 else 800}"
        row["gap"] += 100 * (i < 30)
        row[KAPPA] = row["softmax.gini"] + 100 * (i < 30)
    outcome = find("003-fig-3").analyse(rows)
    for variant, own in (("batch-100", rows[:30]), ("batch-800", rows[30:])):
        value = stats.spearmanr([row[KAPPA] for row in own], [row["gap"] for row in own]).statistic
        assert abs(value) < 0.3
        found = re.search(
            rf"([+-]\d\.\d\d) \[[^]]*\] for {variant} \(n = {len(own)}\)", outcome.why
        )
        assert float(found[1]) == pytest.approx(value, abs=0.005)
    assert "is not judged" in outcome.why
    assert "batch-100" not in find("003-fig-3").analyse(rows[:30]).why  # one size is all there is
    assert find("003-fig-3").analyse(rows[:9]).why == ""
