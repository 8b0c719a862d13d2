"""Where a network starts from: schemes, trained weights; and which part of it learns how fast."""

import math

import pytest
import torch
from safetensors.torch import load
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.study import Store, control, run
from spiritlevel.study.checkpoints import save_checkpoint
from spiritlevel.study.models import build
from spiritlevel.study.runs.networks import build_model, head_path
from spiritlevel.study.runs.run_data import derived_generator, load_data
from spiritlevel.study.runs.running import run_one
from study.tiny_study import tiny

MLP = {"name": "mlp", "hidden": [6]}


def only(**changes):
    [settings] = tiny(**({"grid": {}, "seeds": 1, "model": MLP} | changes)).runs()
    return settings


@pytest.fixture
def trained(tmp_path):
    """A study with one run for each of two seeds."""
    with run(tiny(model=MLP, grid={}, seeds=2), tmp_path / "before") as store:
        return store.folder


# -- schemes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "spread", "bound"),
    [
        ("xavier_normal", math.sqrt(2 / (64 + 200)), math.inf),
        ("kaiming_uniform", math.sqrt(2 / 64), math.sqrt(6 / 64)),
        ("uniform", 0.2 / math.sqrt(12), 0.1),
        ("normal", math.sqrt(0.1), math.inf),
        ("narrow_normal", 0.1, math.inf),
    ],
)
def test_weights_start_with_the_spread_of_their_scheme(scheme, spread, bound):
    settings = only(model={"name": "mlp", "hidden": [200], "init": scheme})
    weight = build_model(settings, "cpu").fc1.weight.detach()
    assert float(weight.std()) == pytest.approx(spread, rel=0.05)
    assert float(weight.abs().max()) <= bound
    assert torch.equal(weight, build_model(settings, "cpu").fc1.weight)
    [_, other] = tiny(model=settings.model.to_dict(), grid={}, seeds=2).runs()
    assert not torch.equal(weight, build_model(other, "cpu").fc1.weight)


# -- trained weights -------------------------------------------------------------------------


def test_a_run_starts_from_the_run_of_another_study_with_its_seed(trained):
    [first, second] = tiny(model=MLP | {"init_from": str(trained)}, grid={}, seeds=2).runs()
    with Store.open(trained) as store:
        ids = [row["id"] for row in store.rows("runs")]
        files = [load(store.checkpoint(id_).read_bytes()) for id_ in ids]
    for settings, wanted in zip((first, second), files, strict=True):
        found = build_model(settings, "cpu").state_dict()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    by_id = only(model=MLP | {"init_from": f"{trained}#{ids[1]}"})
    assert torch.equal(build_model(by_id, "cpu").fc1.weight, files[1]["fc1.weight"])


def test_every_seed_starts_from_the_only_run_of_a_study(tmp_path):
    run(tiny(model=MLP, grid={}, seeds=1), tmp_path / "one")
    [file] = (tmp_path / "one" / "checkpoints").iterdir()
    wanted = load(file.read_bytes())["fc1.weight"]
    runs = tiny(model=MLP | {"init_from": str(tmp_path / "one")}, grid={}, seeds=2).runs()
    assert all(torch.equal(build_model(each, "cpu").fc1.weight, wanted) for each in runs)


def test_a_fresh_head_may_have_other_classes(tmp_path):
    save_checkpoint(build("mlp", seed=7, hidden=[6], outputs=3), tmp_path / "three.safetensors")
    start = {"init_from": str(tmp_path / "three.safetensors")}
    model = build_model(only(model=MLP | start | {"init_head": "fresh"}), "cpu")
    assert torch.equal(model.fc1.weight, build("mlp", seed=7, hidden=[6]).fc1.weight)
    assert torch.equal(model.head.weight, build("mlp", seed=0, hidden=[6]).head.weight)
    with pytest.raises(sl.SpiritlevelError, match=r"head.weight is \(3, 6\) in the file"):
        build_model(only(model=MLP | start), "cpu")


def test_distance_from_the_start_counts_from_the_trained_weights(trained):
    settings = only(
        model=MLP | {"init_from": str(trained)},
        training={"lr": 1e-12, "epochs": 1},
        measures=["norms.distance"],
    )
    [whole] = [m for m in run_one(settings).measurements if m.layer == ""]
    assert whole.value < 1e-6


def test_starts_that_are_not_there_are_refused_before_the_first_run(tmp_path, trained):
    (tmp_path / "empty").mkdir()
    for start, seeds, text in (
        (str(tmp_path / "none.safetensors"), 1, "must be weights that are there"),
        (str(tmp_path / "empty"), 1, "holds no runs.sqlite"),
        (f"{trained}#0123", 1, "must be weights that are there"),
        (str(trained), 3, "one finished run with seed 2 to start from. It has 0"),
    ):
        with pytest.raises(sl.SpiritlevelError) as caught:
            control.check(tiny(model=MLP | {"init_from": start}, grid={}, seeds=seeds))
        assert text in str(caught.value)


# -- parts -----------------------------------------------------------------------------------


def test_a_frozen_backbone_stays_to_the_bit_and_the_head_is_trained_alone():
    settings = only(training={"freeze": "backbone", "epochs": 2, "batch_size": 20, "lr": 0.3})
    weights = load(run_one(settings).checkpoint)
    model = build("mlp", hidden=[6], seed=0)
    assert torch.equal(weights["fc1.weight"], model.fc1.weight)
    data = load_data(settings)
    with torch.no_grad():
        features = model[:-1](data.x)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.3)
    generator = derived_generator(0, "shuffling")
    for _ in range(2):
        for batch in torch.randperm(60, generator=generator).split(20):
            optimizer.zero_grad()
            F.cross_entropy(model.head(features[batch]), data.y[batch]).backward()
            optimizer.step()
    torch.testing.assert_close(weights["head.weight"], model.head.weight.detach())


NETS = """
from torch import nn
def net(): return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
"""


def test_statistics_of_a_frozen_backbone_do_not_move(tmp_path, monkeypatch):
    (tmp_path / "frozen_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    frozen = only(model="frozen_nets:net", training={"freeze": "backbone"})
    weights = load(run_one(frozen).checkpoint)
    assert float(weights["1.running_mean"].abs().max()) == 0.0
    free = load(run_one(only(model="frozen_nets:net")).checkpoint)
    assert float(free["1.running_mean"].abs().max()) > 0.0


def test_all_of_a_frozen_network_is_measured():
    settings = only(training={"freeze": "backbone"}, measures=["curvature.trace"])
    assert {m.layer for m in run_one(settings).measurements} == {"", "fc1", "head"}


def test_the_backbone_has_its_own_rate_under_one_schedule():
    training = {"lr": 0.3, "lr_backbone": 0.05, "schedule": "cosine", "epochs": 2}
    settings = only(training=training | {"batch_size": 20, "momentum": 0.9})
    model = build("mlp", hidden=[6], seed=0)
    groups = [{"params": model.fc1.parameters(), "lr": 0.05}, {"params": model.head.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    data = load_data(settings)
    generator = derived_generator(0, "shuffling")
    for _ in range(2):
        for batch in torch.randperm(60, generator=generator).split(20):
            optimizer.zero_grad()
            F.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
            optimizer.step()
            scheduler.step()
    for name, value in load(run_one(settings).checkpoint).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_the_head_is_the_named_layer_else_the_last():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    assert (head_path(net), head_path(net, "0"), head_path(build("mlp"))) == ("2", "0", "head")
    with pytest.raises(sl.SpiritlevelError, match=r"must name a layer of the model. Got 'x'"):
        head_path(net, "x")
    with pytest.raises(sl.SpiritlevelError, match="must have a head"):
        head_path(torch.nn.ReLU())
