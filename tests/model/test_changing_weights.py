"""Weights that change while they are measured are refused, and so is what has no values."""

import threading

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.model.weights import hash_weights

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))
DATA = [(X[:10], Y[:10]), (X[10:], Y[10:])]


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


def step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()
    optimizer.zero_grad()


def swap_units(model):
    model[3].weight.data = model[3].weight.data[:, torch.arange(7, -1, -1)]


def one_bit(model):
    model[0].weight.data.view(torch.int32)[3, 2] ^= 1


CHANGES = {
    "an optimizer step": step,
    ".data": lambda model: model[0].weight.data.mul_(1.01),
    "one bit": one_bit,
    "units swapped": swap_units,
    "a new parameter": lambda model: setattr(model[0], "bias", nn.Parameter(torch.ones(8))),
    "a frozen parameter": lambda model: model[1].weight.data.add_(1),
    "a checkpoint": lambda model: model.load_state_dict(
        {name: value + (value.is_floating_point()) for name, value in model.state_dict().items()}
    ),
}
VERBS = {
    "measure": lambda model, **k: sl.measure(model, DATA, measures="curvature.trace", **k),
    "eigenvalues": lambda model, **k: sl.eigenvalues(model, DATA, **k),
    "density": lambda model, **k: sl.density(model, DATA, num_vectors=1, steps=2, **k),
    "neurons": lambda model, **k: sl.neurons(model, DATA, **k),
    "landscape": lambda model, **k: sl.landscape(model, DATA, points=3, **k),
    "audit": lambda model, **k: sl.audit(model, DATA, measures="head.trace", **k),
    "compare": lambda model, **k: sl.compare(
        {"a": model, "b": network()}, DATA, measures="head.trace", match_confidence=False, **k
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_callback_that_changes_weights_is_noticed(change):
    model = network()
    model[1].weight.requires_grad_(False)
    calls = []

    def progress(*_):  # once: some changes undo themselves
        if not calls:
            change(model)
        calls.append(1)

    with pytest.raises(SpiritlevelError, match=r"weights must not change .* '\d\.\w+' has changed"):
        VERBS["measure"](model, progress=progress)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_notices(verb):
    model = network()
    with pytest.raises(SpiritlevelError, match=r"'3\.bias' has changed"):
        verb(model, progress=lambda *_: model[3].bias.data.add_(1.0))


def test_another_thread_that_trains_the_model_is_noticed():
    model = network()

    def progress(*_):
        thread = threading.Thread(target=step, args=(model,))
        thread.start()
        thread.join()

    with pytest.raises(SpiritlevelError, match=r"weights must not change.*another thread"):
        VERBS["measure"](model, progress=progress)


def test_an_error_of_the_call_itself_is_not_hidden():
    model = network()

    def progress(*_):
        step(model)
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        VERBS["measure"](model, progress=progress)


def test_every_value_of_a_large_weight_counts():
    model = nn.Linear(700, 300).double()  # several blocks of factors
    before = hash_weights(model)
    assert hash_weights(model) == before
    flat = model.weight.data.view(-1)
    for index in (0, 65_535, 65_536, 131_072, 209_999):
        old = flat[index].item()
        flat[index] += 1e-12
        assert hash_weights(model)["weight"] != before["weight"]
        flat[index] = old
    first, second = flat[:65_536].clone(), flat[65_536:131_072].clone()
    flat[:65_536], flat[65_536:131_072] = second, first
    assert hash_weights(model)["weight"] != before["weight"]


def unmaterialized():
    return nn.Sequential(nn.LazyLinear(3))


def not_differentiable():
    with torch.inference_mode():
        return nn.Linear(6, 3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (unmaterialized, "is not initialized yet. Run the model once"),
        (not_differentiable, "was made under torch.inference_mode"),
    ],
)
def test_weights_without_values_are_refused(make, reason):
    with pytest.raises(
        SpiritlevelError, match=f"must have weights to measure. '.*weight' {reason}"
    ):
        sl.measure(make(), DATA)


def test_a_quantized_weight_is_hashed_by_its_parts():
    base = pytest.importorskip("torch.testing._internal.two_tensor")
    model = nn.Module()
    parts = torch.ones(3), torch.arange(3.0)
    model.register_buffer("weight", base.TwoTensor(*parts))
    before = hash_weights(model)
    parts[1][2] = 5.0
    assert hash_weights(model) != before


# -- modes of torch around a call ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_a_call_is_switched_off_and_the_result_says_so(dtype):
    model, measures = network(), ["curvature.trace", "curvature.lambda_max"]
    expected = sl.measure(model, DATA, measures=measures)
    with torch.autocast("cpu", dtype):
        found = sl.measure(model, DATA, measures=measures)
        pairs = sl.eigenvalues(model, DATA)
        picture = sl.landscape(model, DATA, points=3)
        assert torch.is_autocast_enabled("cpu")
    for name in measures:
        assert found[name].value == expected[name].value
        assert found[name].exact == expected[name].exact
    name = str(dtype).removeprefix("torch.")
    said = f"{name} on cpu was switched off"
    for settings in (found.settings, pairs.settings, picture.settings):
        assert settings["autocast"] == said
    assert f"autocast: {said}" in str(found)
    assert "autocast" not in expected.settings
    assert "autocast" not in str(expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients_make_no_difference(mode):
    model = network()
    expected = sl.measure(model, DATA, measures="curvature.lambda_max")
    with mode():
        data = [(x + 0.0, y + 0) for x, y in DATA]  # made in this mode
        found = sl.measure(model, data, measures="curvature.lambda_max")
        assert not torch.is_grad_enabled()
    assert found["curvature.lambda_max"].value == expected["curvature.lambda_max"].value
