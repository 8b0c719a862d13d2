"""The look at a model's derivatives keeps to the memory that it says it takes."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.engine.plan import make_plan
from spiritlevel.engine.weight_space import parameter_space, product_methods, trusted_derivatives
from spiritlevel.engine.weight_space.chunk_products import product_of_hessian
from spiritlevel.engine.weight_space.products import Products
from spiritlevel.model.surface import Surface
from zoo.wrong_gradients import Scaled

WIDTH, LAYERS, CLASSES = 200, 8, 3
AT_NIGHT = pytest.mark.nightly  # by day every kind has one case


def network(width=WIDTH):
    """Smooth, with weights that are much larger than everything a sample has."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.Tanh())]
        return nn.Sequential(*inner, nn.Linear(width, CLASSES)).eval()


def data(count=6, width=WIDTH, dtype=torch.float32):
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return x, torch.arange(count) % CLASSES


def bytes_of(model):
    return sum(p.nbytes for p in model.parameters())


@dataclasses.dataclass
class Peak:
    """Bytes that tensors take, from what the allocator reports of each."""

    most: int = 0

    def __enter__(self):
        cpu = torch.profiler.ProfilerActivity.CPU
        self._profile = torch.profiler.profile(activities=[cpu], profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error):
        self._profile.__exit__(*error)
        events = self._profile.profiler.kineto_results.events()
        changes = [event for event in events if event.name() == "[memory]"]
        now = 0
        for event in sorted(changes, key=lambda event: event.start_ns()):
            now += event.nbytes()
            self.most = max(self.most, now)


def test_the_peak_counts_what_is_held_and_not_what_is_gone():
    """A meta-test."""
    with Peak() as two:
        held = [torch.ones(1000, 1000) for _ in range(2)]
    with Peak() as one:
        for _ in range(3):
            held = torch.ones(1000, 1000)
            del held
    assert two.most == pytest.approx(8e6, rel=0.01)
    assert one.most == pytest.approx(4e6, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [
        ("its own type", 6),
        pytest.param("its own type", 1, marks=AT_NIGHT),
        pytest.param("wide in its own", 6, marks=AT_NIGHT),
        ("wide in its own", 1),
        ("held in float64", 6),
        pytest.param("held in float64", 1, marks=AT_NIGHT),
    ],
)
def test_four_vectors_as_large_as_the_weights_are_held(kind, chunk, monkeypatch):
    if kind == "its own type":
        monkeypatch.setattr(trusted_derivatives, "MOST_PARAMETERS", 0)  # as for a very large model
    model = network()
    if kind == "wide in its own":
        model.double()
    surface = Surface(model, data(dtype=next(model.parameters()).dtype))
    unit = bytes_of(model) * (2 if kind == "held in float64" else 1)
    with surface.preserved(), Peak() as peak:
        method = Products(surface, chunk=chunk, together=1).method
    assert method == "reverse"
    # and of one parameter of eight the gradient that has just come
    assert peak.most < (product_methods.VECTORS + 0.4) * unit, peak.most / unit


def test_a_product_holds_the_gradient_or_its_direction_and_the_value():
    model = network()
    surface = Surface(model, data())
    with surface.preserved(), Peak() as peak:
        product_of_hessian(
            surface,
            surface.first_samples(1),
            trusted_derivatives.BatchLocation(0),
            lambda _, p: p.clone(),
        )
    assert peak.most < 2.0 * bytes_of(model), peak.most / bytes_of(model)


def test_without_products_two_such_vectors_are_held(monkeypatch):
    monkeypatch.setattr(trusted_derivatives, "MOST_PARAMETERS", 0)
    model = network()
    surface = Surface(model, data())

    def look():
        trusted_derivatives.check_gradient(
            surface, surface.first_samples(3), trusted_derivatives.BatchLocation(0)
        )

    with surface.preserved(), Peak() as peak:
        trusted_derivatives.beside_the_parameters(surface, 0, look)
    assert peak.most < 2.4 * bytes_of(model), peak.most / bytes_of(model)


@pytest.mark.parametrize(("chunk", "together"), [(1, 1), (2, 1), (4, 2), (6, 2), (60, 2)])
def test_no_more_samples_run_together_than_in_the_products(chunk, together):
    """A float32 model in float64 takes twice the memory, so half as many."""
    model = network(width=20)
    seen = []
    surface = Surface(model, data(width=20))
    with surface.preserved():
        surface.first_samples(trusted_derivatives.SAMPLES)
        model.register_forward_hook(lambda m, args, out: seen.append(len(out)))
        product_methods._find_method(
            surface,
            min(trusted_derivatives.SAMPLES, trusted_derivatives.samples_at_once(surface, chunk)),
        )
    assert max(seen) == together


class Wrong(torch.autograd.Function):
    """x², whose second derivative is lost: a number that was saved as a constant."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = 2 * x.detach()
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.slope


class Planted(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.first, self.head = nn.Linear(5, 4), nn.Linear(4, CLASSES)
        self.wrong = wrong

    def forward(self, x):
        h = self.first(x).tanh()
        return self.head(Wrong.apply(h) if self.wrong else h.square())


@pytest.mark.parametrize("layers", [1, pytest.param(4, marks=AT_NIGHT)])
def test_a_large_model_is_looked_at_group_by_group(layers, monkeypatch):
    monkeypatch.setattr(trusted_derivatives, "MOST_PARAMETERS", 0)
    monkeypatch.setattr(parameter_space, "MOST", layers * (WIDTH * WIDTH + WIDTH))
    model = network()
    surface = Surface(model, data())
    with surface.preserved(), Peak() as peak:
        assert Products(surface, chunk=1, together=1).method == "reverse"
    # of a group as many vectors as above, and a parameter of it that has just come
    assert peak.most < (4 * layers + 2) / LAYERS * bytes_of(model)
    assert set(surface.parameters) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("layers", [2, 8])
def test_gradients_by_rules_are_held_for_one_group_at_a_time(layers, monkeypatch):
    monkeypatch.setattr(parameter_space, "MOST", layers * (WIDTH * WIDTH + WIDTH))
    model = network()
    surface = Surface(model, data())
    with surface.preserved(), Peak() as peak:
        plan = make_plan(surface)
    assert not plan.rules.wrong | plan.rules.unseen
    # both gradients of a group, and of one parameter those of three samples twice
    assert peak.most < (2 * layers + 6) / LAYERS * bytes_of(model)


@pytest.mark.parametrize("wrong", ["first.weight", "head.weight"])
def test_a_wrong_gradient_is_found_in_every_group(wrong, monkeypatch):
    monkeypatch.setattr(parameter_space, "MOST", 1)
    model = Planted(wrong=False).double().eval()
    layer = model.get_submodule(wrong.removesuffix(".weight"))
    layer.forward = lambda x: F.linear(x, Scaled.apply(layer.weight), layer.bias)
    surface = Surface(model, data(width=5, dtype=torch.float64))
    with surface.preserved(), pytest.raises(sl.SpiritlevelError, match=f"'{wrong}' is not that"):
        Products(surface, chunk=3)


def test_preflight_knows_of_groups(monkeypatch):
    asked = {"measures": "relative.kappa", "memory": 1 << 20}
    monkeypatch.setattr(trusted_derivatives, "MOST_PARAMETERS", 0)
    whole = sl.preflight(network(), data(), **asked).look_memory
    monkeypatch.setattr(parameter_space, "MOST", 2 * (WIDTH * WIDTH + WIDTH))
    assert sl.preflight(network(), data(), **asked).look_memory < 0.4 * whole


@pytest.mark.parametrize("most", [10**9, 1])
@pytest.mark.parametrize("chunk", [1, 2, pytest.param(3, marks=AT_NIGHT), 50])
@pytest.mark.parametrize("wrong", [False, True])
def test_the_verdict_does_not_depend_on_how_many_run_together(wrong, chunk, most, monkeypatch):
    monkeypatch.setattr(parameter_space, "MOST", most)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Planted(wrong).double().eval()
    surface = Surface(model, data(width=5, dtype=torch.float64))
    with surface.preserved():
        found = product_methods.untrusted_parameter(
            surface, "reverse", surface.first_samples(3), at_once=min(chunk, 3), seed=0
        )
        method = Products(surface, chunk=chunk).method
    assert found == ("first.weight" if wrong else None)
    assert (method == "reverse") is not wrong


@pytest.mark.parametrize(
    ("method", "memory"),
    [
        ("sample_probes", 1),
        pytest.param("sample_probes", 40 << 20, marks=AT_NIGHT),
        ("output_probes", 1),
        pytest.param("exact", 1, marks=AT_NIGHT),
    ],
)
def test_preflight_says_the_peak_that_is_reached(method, memory):
    asked = {"measures": "relative.kappa", "method": method, "memory": memory, "max_passes": 2}
    plan = sl.preflight(network(), data(), **asked)
    model = network()  # of which nothing is known yet
    with Peak() as peak:
        sl.measure(model, data(), **asked)
    # a tenth for a single parameter that is still there when the next one comes
    assert peak.most <= 1.1 * plan.peak_memory
    assert peak.most >= 0.7 * plan.peak_memory


def test_preflight_says_that_the_look_takes_more_than_allowed():
    plan = sl.preflight(network(), data(), measures="relative.kappa", memory=1 << 20)
    assert plan.look_memory > 4 * 2 * bytes_of(network())
    assert plan.peak_memory == plan.look_memory > plan.limit == 1 << 20
    assert "takes more than the limit of 1 MiB" in str(plan)
    wide = sl.preflight(network(), data(), measures="relative.kappa", memory=1 << 30)
    assert "limit" not in str(wide)


def test_a_head_alone_needs_no_look():
    plan = sl.preflight(network(), data(), measures="head.trace", memory=1 << 20)
    assert plan.look_memory == 0
