"""A network that was measured can be freed, and many measurements need no more memory than one."""

import gc
import os
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel import study
from spiritlevel.analysis.equal_confidence import equally_confident
from spiritlevel.measures.setup import Setup
from spiritlevel.training import FlatnessPenalty, HeadPenalty, KappaPenalty
from zoo.cases import CASES
from zoo.losses import LOSSES

pytestmark = pytest.mark.sampled(3)  # the others at night

X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (9,), generator=torch.Generator().manual_seed(1))
DATA = [(X[:5], Y[:5]), (X[5:], Y[5:])]


def network(activation=nn.Tanh):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3)).eval()


def still_alive(make, use):
    """How many of a new model and its parameters exist after `use` and the last reference."""
    model = make()
    watched = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    use(model)
    del model
    gc.collect()
    return sum(reference() is not None for reference in watched)


def train(model, penalty):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with penalty.shared_forward():
            loss = F.cross_entropy(model(X), Y)
        (loss + penalty(X, Y, loss=loss)).backward()
        optimizer.step()
        (F.cross_entropy(model(X), Y) + penalty(X, Y)).backward()


def train_with(optimizer_of):
    def train(model):
        optimizer = optimizer_of(torch.optim.SGD(model.parameters(), lr=0.1))

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        optimizer.step(closure)

    return train


def monitor(model):
    watch = sl.FlatnessMonitor(
        model, DATA, measures=["relative.kappa", "curvature.lambda_max"], every=1
    )
    stopping = sl.FlatnessStopping("both", restore_best=True)
    for epoch in range(2):
        row = watch.step()
        assert row["status"] == "ok"
        stopping.update(epoch=epoch, loss=1.0, flatness=row["relative.kappa"], model=model)


USES = {
    "measure": lambda m: sl.measure(m, DATA),
    "probes": lambda m: sl.measure(m, DATA, measures="curvature.trace", method="output_probes"),
    "split": lambda m: sl.measure(m, DATA, measures="curvature.trace", method="split"),
    "hutchinson": lambda m: sl.measure(m, DATA, measures="curvature.trace", method="hutchinson"),
    "hutch++": lambda m: sl.measure(m, DATA, measures="curvature.trace", method="hutch++"),
    "preflight": lambda m: sl.preflight(m, DATA),
    "audit": lambda m: sl.audit(m, DATA, measures="relative.kappa"),
    "compare": lambda m: sl.compare(
        {"a": m, "b": network()}, DATA, measures="head.trace", match_confidence=False
    ),
    "equally_confident": lambda m: equally_confident(Setup(), {"a": m, "b": network()}, DATA),
    "eigenvalues": lambda m: sl.eigenvalues(m, DATA),
    "density": lambda m: sl.density(m, DATA, num_vectors=2, steps=3),
    "neurons": lambda m: sl.neurons(m, DATA),
    "landscape": lambda m: sl.landscape(m, DATA, points=3),
    "landscape along eigenvectors": lambda m: sl.landscape(m, DATA, points=3, directions="eigen"),
    "monitor and stopping": monitor,
    "FlatnessPenalty": lambda m: train(m, FlatnessPenalty(m, 0.1)),
    "HeadPenalty": lambda m: train(m, HeadPenalty(m, 0.1)),
    "KappaPenalty": lambda m: train(m, KappaPenalty(m, 0.1, layer="0")),
    "SAM": train_with(lambda optimizer: sl.SAM(optimizer, 0.05)),
    "ASAM": train_with(lambda optimizer: sl.ASAM(optimizer, 0.05, adaptive_bias=True)),
    "NoiseSAM": train_with(lambda optimizer: sl.NoiseSAM(optimizer, 0.05)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_model_dies_with_its_last_reference(use):
    assert still_alive(network, use) == 0


def test_the_test_would_see_a_model_that_stays():
    kept = []
    assert still_alive(network, kept.append) == 5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", sorted({card.name.split(".")[0] for card in sl.cards()}))
def test_no_measure_keeps_the_model(family):
    def use(model):
        options = {"initial": network(nn.ReLU)} if family == "norms" else None
        sl.measure(model, DATA, measures=f"{family}.*", max_passes=4, options=options)

    assert still_alive(lambda: network(nn.ReLU), use) == 0


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("mlp_with_")])
def test_no_kind_of_layer_keeps_the_model(case):
    def use(model):
        data, loss = CASES[case].make()[1], LOSSES[CASES[case].loss].given
        sl.measure(model, data, loss=loss, measures="relative.kappa", max_passes=2)

    assert still_alive(lambda: CASES[case].make()[0], use) == 0


class Failing(nn.Module):
    """Raises from one of its calls on."""

    def __init__(self, at):
        super().__init__()
        self.inner, self.at, self.calls = network(), at, 0

    def forward(self, x):
        self.calls += 1
        if self.calls >= self.at:
            raise RuntimeError("planted")
        return self.inner(x)


@pytest.mark.parametrize("at", [1, 2, 4, 5, 6, 8])
def test_a_model_that_failed_dies_too(at):
    def use(model):
        with pytest.raises(RuntimeError, match="planted"):
            sl.measure(model, DATA, measures="relative.kappa")

    assert still_alive(lambda: Failing(at), use) == 0


def num_objects(kind):
    gc.collect()
    return sum(issubclass(type(thing), kind) for thing in gc.get_objects())


def test_a_study_keeps_no_network(tmp_path):
    networks = num_objects(nn.Module)
    definition = {
        "name": "tiny",
        "model": {"name": "mlp", "hidden": 4},
        "data": {"name": "digits", "samples": 30},
        "training": {"epochs": 1},
        "seeds": 3,
        "measures": ["relative.kappa"],
    }
    study.run(study.Study.from_dict(definition), str(tmp_path / "tiny")).close()
    assert num_objects(nn.Module) == networks


def resident_pages():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1])


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="pages are counted by Linux")
def test_many_measurements_need_no_more_memory():
    wide = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3)).eval()
    data = (torch.randn(64, 64), torch.randint(3, (64,)))

    def some(count):
        for _ in range(count):
            sl.measure(wide, data, measures="head.trace")
            sl.preflight(wide, data, measures="head.trace")

    some(10)
    tensors, pages = num_objects(torch.Tensor), resident_pages()
    some(150)
    assert num_objects(torch.Tensor) == tensors
    # One graph kept per call would be 150 × 2 × 64 × 256 floats, 19 MB. The allocator may keep
    # a little more than before.
    assert (resident_pages() - pages) * 4096 < 8 << 20
