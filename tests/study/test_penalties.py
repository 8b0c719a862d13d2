"""Penalties in studies: every one by its name, a user's own, ids, and refusals before a run."""

import json
import sys

import pytest
import torch
from safetensors.torch import load
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.study.checks import check
from spiritlevel.study.executors.ray import files_named
from spiritlevel.study.models import build
from spiritlevel.study.runs.run_data import derived_generator, load_data
from spiritlevel.study.runs.running import run_one
from spiritlevel.study.settings.run import RunSettings
from spiritlevel.training import build_penalty, register_penalty
from spiritlevel.training.penalties import registry
from study.tiny_study import tiny
from training.penalty_zoo import PENALTIES, NoisyLogits

OWN = """
from spiritlevel.training import FlatnessPenalty

def half(model, weight, every=1, generator=None):
    return FlatnessPenalty(model, weight / 2, every=every, generator=generator)
"""


@pytest.fixture
def _registered(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    register_penalty("own")(NoisyLogits)


def study(penalty, **training):
    fields = {"epochs": 2, "batch_size": 20, "lr": 0.1} | training
    return tiny(grid={}, seeds=1, training=fields | {"penalty": penalty})


def only(penalty, **training):
    [run] = study(penalty, **training).runs()
    return run


def by_hand(settings):
    """The weights after the loop that a run stands for."""
    penalty = settings.training.penalty
    data, order = load_data(settings), derived_generator(settings.seed, "shuffling")
    model = build("mlp", seed=settings.seed, hidden=4)
    term = build_penalty(
        penalty.name,
        model,
        weight=penalty.weight,
        every=settings.training.every,
        generator=derived_generator(settings.seed, "penalty"),
        **penalty.arguments,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(settings.training.epochs):
        for batch in torch.randperm(len(data.x), generator=order).split(20):
            x, y = data.x[batch], data.y[batch]
            optimizer.zero_grad()
            with term.shared_forward():
                loss = F.cross_entropy(model(x), y)
            (loss + term(x, y, loss=loss)).backward()
            optimizer.step()
    return model.state_dict()


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_trains_as_the_loop_written_by_hand(name):
    arguments = {"layer": "fc1"} if name == "kappa" else {}
    penalty = {"name": name, "weight": 0.5, **arguments}
    check(study(penalty, every=2))
    settings = only(penalty, every=2)
    weights = load(run_one(settings).checkpoint)
    for path, value in by_hand(settings).items():
        assert torch.equal(weights[path], value), path
    plain = load(run_one(only(0.0)).checkpoint)
    assert any(not torch.equal(plain[path], value) for path, value in weights.items())


@pytest.mark.parametrize("name", ["trace_squared", "head_kappa"])
def test_a_run_that_diverges_is_a_result_as_without_a_penalty(name):
    linear, penalty = {"name": "mlp", "hidden": []}, {"name": name, "weight": 0.1}
    training = {"epochs": 9, "batch_size": 10, "lr": 1e38, "penalty": penalty}
    [settings] = tiny(grid={}, seeds=1, model=linear, training=training).runs()
    result = run_one(settings)
    assert (result.outcome, result.error) == ("diverged", None)
    assert len(result.epochs) < 9


def test_a_factory_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_penalty.py").write_text(OWN)
    own, built_in = only({"name": "half_penalty:half", "weight": 0.4}), only(0.2)
    check(study({"name": "half_penalty:half", "weight": 0.4}))
    assert run_one(own).checkpoint == run_one(built_in).checkpoint
    assert own.id != built_in.id
    assert files_named(own) == ["half_penalty:half"]
    assert files_named(built_in) == []
    sys.modules.pop("half_penalty")


def test_the_weight_alone_is_the_same_run_as_its_long_form():
    short = only(0.1, every=4)
    assert short.id == "eb3c2ffd0d64baf0"  # as before there were other penalties
    for same in ({"weight": 0.1}, {"name": "trace_squared", "weight": "1e-1"}):
        assert only(same, every=4).id == short.id
    assert only({"name": "head_trace", "weight": 0}).id == only(0).id
    ids = {
        only(penalty).id
        for penalty in (
            0.1,
            {"weight": 0.1, "probes": 2},
            {"name": "head_trace", "weight": 0.1},
            {"name": "head_kappa", "weight": 0.1},
            {"name": "head_kappa", "weight": 0.2},
        )
    }
    assert len(ids) == 5


def test_a_store_is_read_without_the_module_of_its_penalty():
    settings = only({"name": "gone:make", "weight": 0.1, "sizes": [1, 2]})
    again = RunSettings.from_json(json.dumps(settings.to_dict()), "{}")
    assert again.id == settings.id
    assert again.training.penalty == settings.training.penalty


def test_penalties_are_compared_with_variants():
    ways = {"plain": {"penalty": 0}, "head": {"penalty": {"name": "head_kappa", "weight": 0.1}}}
    runs = tiny(variants=ways, grid={}, seeds=1).runs()
    assert [run.training.penalty and run.training.penalty.name for run in runs] == [
        None,
        "head_kappa",
    ]


@pytest.mark.parametrize(
    ("penalty", "text"),
    [
        (-1, r"training.penalty must be a number of at least 0, or a mapping .* Got -1"),
        (
            "head_kappa",
            r"or a mapping such as \{name: head_kappa, weight: 0.1\}\. Got 'head_kappa'",
        ),
        ({"name": "head_kappa"}, r"penalty.weight must be a number of at least 0\. Got None"),
        ({"name": 3, "weight": 1}, r"penalty.name must be the name of a penalty.* Got 3"),
        ({"weight": 1, "every": 2}, r"must not contain 'every'\. Write it as training.every"),
        ({"weight": 1, "generator": 2}, r"must not contain 'generator'\. The seed"),
        ({"weight": 1, "layers": {"a": 1}}, r"penalty.layers must be a plain value"),
    ],
    ids=str,
)
def test_what_is_not_a_penalty_is_refused_in_the_study(penalty, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        study(penalty)


@pytest.mark.parametrize(
    ("penalty", "text"),
    [
        ({"name": "head_kapa", "weight": 1}, r"No penalty is called 'head_kapa'.*'head_kappa'"),
        ({"weight": 1, "probe": 2}, r"'trace_squared' has no argument 'probe'.*'probes'"),
        ({"name": "kappa", "weight": 1}, r"'kappa' needs the argument 'layer'"),
        ({"name": "no_such_module:make", "weight": 1}, r"cannot be found"),
        (
            {"name": "kappa", "weight": 1, "layer": "fc9"},
            r"training.penalty does not suit its model 'mlp': .*Got 'fc9'\. There are: fc1, head",
        ),
    ],
    ids=str,
)
def test_what_would_fail_in_every_run_is_refused_before_the_first(penalty, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        check(study(penalty))
