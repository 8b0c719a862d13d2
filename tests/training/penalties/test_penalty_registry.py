"""Penalties by name: the package's own, registered ones, and 'module:factory'."""

import sys

import pytest
import torch
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training import Penalty, build_penalty, register_penalty
from spiritlevel.training.penalties import registry
from training.penalties.penalty_zoo import PENALTIES, NoisyLogits


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.fixture
def _clean(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "own"])
def test_every_penalty_has_a_name(name, model):
    kind, fixed = PENALTIES[name]
    arguments = {"layer": "0"} if name == "kappa" else {}
    penalty = build_penalty(name, model, weight=0.1, every=3, **arguments)
    assert type(penalty) is kind
    assert (penalty.weight, penalty.every) == (0.1, 3)
    assert all(getattr(penalty, key) == (value or "0") for key, value in fixed.items())


@pytest.mark.usefixtures("_clean")
def test_a_registered_penalty(model):
    assert register_penalty("noisy_logits")(NoisyLogits) is NoisyLogits
    register_penalty("noisy_logits")(NoisyLogits)  # a module that is imported again
    assert isinstance(build_penalty("noisy_logits", model, weight=0.1), NoisyLogits)
    with pytest.raises(SpiritlevelError, match=r"'noisy_logits' is registered twice.*Rename one"):
        register_penalty("noisy_logits")(lambda model, weight: NoisyLogits(model, weight))
    with pytest.raises(SpiritlevelError, match=r"'head_kappa' is registered twice"):
        register_penalty("head_kappa")(NoisyLogits)
    with pytest.raises(SpiritlevelError, match=r"letters, digits and underscores\. Got 'a:b'"):
        register_penalty("a:b")(NoisyLogits)


def test_a_factory_in_a_module(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_penalties.py").write_text(
        "from spiritlevel.training import FlatnessPenalty\n"
        "def make(model, weight, every=1, generator=None, probes=1):\n"
        "    return FlatnessPenalty(model, weight, every=every, probes=2 * probes)\n"
        "def wrong(model, **arguments):\n"
        "    return model\n"
        "number = 3\n"
    )
    before = list(sys.path)
    penalty = build_penalty("my_penalties:make", model, weight=0.1, probes=3)
    assert isinstance(penalty, Penalty)
    assert penalty.probes == 6
    for name, text in [
        ("my_penalties:number", r"must name a class or function\. Got 3\."),
        ("my_penalties:nothing", r"has no 'nothing'\. It was imported from"),
        ("no_such_module:make", r"'no_such_module' of the penalty .* cannot be found"),
        ("my_penalties:wrong", r"subclass of spiritlevel.training.Penalty.* Got Sequential"),
    ]:
        with pytest.raises(SpiritlevelError, match=text):
            build_penalty(name, model, weight=0.1)
    with pytest.raises(SpiritlevelError, match=r"no argument 'probe'\. Did you mean 'probes'"):
        build_penalty("my_penalties:make", model, weight=0.1, probe=3)
    assert sys.path == before
    sys.modules.pop("my_penalties")


def test_unknown_names_and_arguments(model):
    for name, arguments, text in [
        ("head_kapa", {}, r"No penalty is called 'head_kapa'\. Did you mean 'head_kappa'"),
        ("nothing", {}, r"There are: head_kappa, .*'module:factory'.*register_penalty"),
        ("head_kappa", {"kind": "trace"}, r"'head_kappa' has no argument 'kind'\. .*It takes: w"),
        ("kappa", {}, r"'kappa' needs the argument 'layer', which was not given"),
    ]:
        with pytest.raises(SpiritlevelError, match=text):
            build_penalty(name, model, weight=0.1, **arguments)
