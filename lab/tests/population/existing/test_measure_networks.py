"""`measure_networks`: modules and checkpoints of a program as a population."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from population.existing.given_runs import networks, small, write
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.data import digits
from spiritlevel_lab import Population, Store, measure_networks, resume
from spiritlevel_lab.population.population_statistics import statistics

pytestmark = pytest.mark.sampled(2)  # the others at night

MEASURES = ["relative.kappa", "norms.weight"]


def given():
    found = networks()
    rows = [row for _, row in found.values()]
    return {
        "networks": {name: model for name, (model, _) in found.items()},
        "settings": {key: [row[key] for row in rows] for key in ("lr", "batch_size")},
        "outcomes": {"accuracy": [row["accuracy"] for row in rows]},
        "seeds": [row["seed"] for row in rows],
        "measures": MEASURES,
    }


def data(split="train"):
    x, y = digits(split)
    return x[:60].double(), y[:60]


def test_numbers_are_those_of_measure_and_modules_stay_as_they_are():
    arguments = given()
    before = {n: [p.clone() for p in m.parameters()] for n, m in arguments["networks"].items()}
    loader = list(zip(*(part.split(25) for part in data()), strict=True))
    found = measure_networks(data=loader, test=data("test"), **arguments)
    assert isinstance(found, Population)
    for row, (name, model) in zip(found.rows, arguments["networks"].items(), strict=True):
        report = sl.measure(model, loader, measures=MEASURES, seed=row["seed"])
        assert {key: row[key] for key in MEASURES} == {k: report[k].value for k in MEASURES}
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(data("test")[0]), data("test")[1])
        assert row["test_loss"] == pytest.approx(float(loss), rel=1e-12)
        assert (row["network"], row["num_train"], row["num_test"]) == (name, 60, 60)
        for old, new in zip(before[name], model.parameters(), strict=True):
            assert torch.equal(old, new)
    assert statistics(found, target="accuracy")["norms.weight"].spearman.n == 8


def test_checkpoints_are_loaded_into_what_the_factory_builds(tmp_path):
    write(tmp_path)
    arguments = given()
    names = list(arguments["networks"])
    by_module = measure_networks(data=data(), **arguments)
    widths: list[int] = []

    def factory(batch_size):
        widths.append(batch_size)
        return small().double()

    files = [tmp_path / name for name in names]
    by_file = measure_networks(
        data=data(),
        **(arguments | {"networks": files}),
        factory=factory,
        factory_settings=["batch_size"],
        initial=[small().double()] * 8,
    )
    assert set(widths) == {10, 40}
    for one, other in zip(by_module.rows, by_file.rows, strict=True):
        assert {key: one[key] for key in MEASURES} == {key: other[key] for key in MEASURES}


def test_an_interrupted_call_goes_on_in_its_folder(tmp_path):
    arguments = given() | {"data": data(), "folder": tmp_path / "kept"}

    def stop(status):
        if status.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_networks(**arguments, watch=stop)
    with Store.open(tmp_path / "kept") as store:
        assert (store.counts().done, store.counts().pending) == (3, 5)
    with resume(tmp_path / "kept") as store:  # which has no networks
        errors = [row["error"] for row in store.rows("runs") if row["status"] == "failed"]
    assert len(errors) == 5
    assert "Call spiritlevel_lab.measure_networks again" in errors[0]
    found = measure_networks(**arguments)
    with Store.open(tmp_path / "kept") as store:
        assert sorted(row["attempt"] for row in store.rows("runs")) == [1] * 3 + [2] * 5
    whole = measure_networks(**(arguments | {"folder": None}))
    for one, other in zip(found.rows, whole.rows, strict=True):
        assert {key: one[key] for key in MEASURES} == {key: other[key] for key in MEASURES}
    with pytest.raises(SpiritlevelError, match="measured in another way"):
        measure_networks(**(arguments | {"data": data("test")}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"outcomes": {"accuracy": [0.5]}},
            "one value for each of the 8 networks. 'accuracy' has 1",
        ),
        ({"outcomes": {"accuracy": [float("nan")] * 8}}, "'accuracy' must hold finite numbers"),
        ({"measures": "norms.wight"}, "No measure is called 'norms.wight'"),
        ({"networks": ["a.pt"] * 8}, "one value for each of the 1 networks"),  # one path is one
        ({"networks": [f"{i}.pt" for i in range(8)]}, "'factory' argument of measure_networks"),
        ({"networks": small()}, "must be a list or mapping of networks. Got one Sequential"),
        ({"networks": [small() for _ in range(8)]}, "have the same weights"),
    ],
)
def test_refusals(change, words):
    with pytest.raises(SpiritlevelError) as error:
        measure_networks(data=data(), **(given() | change))
    assert words in str(error.value)
