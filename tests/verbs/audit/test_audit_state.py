"""An audit leaves the model as it was, bit for bit, whenever and however it ends."""

import pytest
import torch
from torch import nn

import spiritlevel as sl

pytestmark = pytest.mark.sampled(3)  # the others at night

CHOSEN = ["curvature.trace", "curvature.lambda_max"]
SEARCH, FIRST, LATER = "looking for symmetries", "measuring", "measuring after weight_scale"


class Planted(Exception):
    pass


@pytest.fixture
def model():
    """With a gradient, a frozen bias, a buffer, and modes that differ: all of that is to stay."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)]
        model = nn.Sequential(*layers).double()
        model(torch.randn(16, 4).double())
    model.eval()
    model[2].train()
    model[0].bias.requires_grad_(False)
    model[3].weight.grad = torch.full_like(model[3].weight, 7.0)
    return model


def state(model):
    """Everything that must not change: tensors with their values, and plain facts."""
    held = model.state_dict(keep_vars=True)
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    tensors = {**held, **{f"grad of {name}": grad for name, grad in grads.items()}}
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    facts = {
        "trainable": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "generator": torch.get_rng_state().tolist(),
        "fast attention": torch.backends.mha.get_fastpath_enabled(),
    }
    return tensors, copies, facts


def assert_same(before, after):
    tensors, copies, facts = before
    assert after[0].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert after[0][name] is tensor, name
        assert torch.equal(tensor, copies[name]), name
    assert after[2] == facts


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (None, LATER),
        (KeyboardInterrupt, SEARCH),
        (Planted, FIRST),
        (KeyboardInterrupt, FIRST),
        (Planted, LATER),
        (KeyboardInterrupt, LATER),
    ],
)
def test_the_model_comes_back_as_it_was(model, error, phase):
    """`error` is raised in the midst of a measure, by the user's own code."""
    data = (
        torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).double(),
        torch.arange(8) % 3,
    )
    texts, calls = [], []

    def forward(network, batch):
        calls.append(texts[-1])
        if error is not None and calls.count(phase) == 5:
            raise error("planted")
        noise = 0 * torch.rand(1, dtype=torch.float64)  # draws from the global generator
        return network(batch[0] + noise), batch[1]

    def audit():
        return sl.audit(
            model,
            data,
            forward=forward,
            measures=CHOSEN,
            max_passes=3,
            draws=1,
            progress=lambda done, total, text: texts.append(text),
        )

    before = state(model)
    if error is None:
        assert set(audit().original) >= set(CHOSEN)
        assert calls.count(SEARCH) > 5
        assert calls.count(FIRST) > 5
        assert calls.count(LATER) > 5  # so that the errors below come before the end
    else:
        with pytest.raises(error, match="planted"):
            audit()
    assert_same(before, state(model))


def test_a_measure_that_fails_leaves_no_trace(model):
    """`curvature.lambda_max` breaks after the trace was taken, on the second moved copy."""
    data = (
        torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).double(),
        torch.arange(8) % 3,
    )
    broken, times = sl.cards("curvature.lambda_max")[0], []

    def function(workspace):
        times.append(workspace)
        torch.rand(1)  # it has used the global generator by then
        if len(times) == 3:
            raise Planted
        return original(workspace)

    original = broken.function
    object.__setattr__(broken, "function", function)
    try:
        before = state(model)
        with pytest.raises(Planted):
            sl.audit(model, data, measures=CHOSEN, max_passes=3)
        assert len(times) == 3
        assert_same(before, state(model))
    finally:
        object.__setattr__(broken, "function", original)
