"""The parts of the penalties: third derivatives, random signs, the lazy schedule."""

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training import thrice_differentiable, trace_squared_of
from spiritlevel.training.penalties.penalty import StepSchedule
from spiritlevel.training.penalties.random_signs import draw_signs

pytestmark = pytest.mark.sampled(2)  # the others at night

GEOMETRIES = {
    "plain": (1, {}),
    "stride": (2, {"stride": 2, "padding": 1}),
    "uneven": (2, {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
    "groups": (2, {"groups": 2, "padding": 1}),
    "three": (3, {"padding": 1, "stride": 2}),
}


def tensors(spatial, groups=1, bias=True):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, *[3, 4, 2][:spatial]), (2, 4 // groups, *[2] * spatial), (2,)]
    made = [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes
    ]
    return made if bias else made[:2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolutions_and_their_derivatives(name, bias):
    spatial, options = GEOMETRIES[name]
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[spatial]
    inputs = tensors(spatial, options.get("groups", 1), bias)

    def cheap(*given):
        with thrice_differentiable():
            return conv(*given, **options)

    assert "Convolution" in type(cheap(*inputs).grad_fn).__name__
    assert "ConvolutionBackward0" not in type(cheap(*inputs).grad_fn).__name__
    assert torch.equal(cheap(*inputs), conv(*inputs, **options))
    assert torch.autograd.gradcheck(cheap, inputs)
    assert torch.autograd.gradgradcheck(cheap, inputs)


def third(conv, inputs, options):
    """A number made of third derivatives, and its gradients."""
    x, weight, bias = inputs
    loss = torch.tanh(conv(x, weight, bias, **options)).square().sum()
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    second = torch.autograd.grad([g.square().sum() for g in first], inputs, create_graph=True)
    return torch.autograd.grad([g.cos().sum() for g in second], inputs)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_third_derivatives_are_torchs(name):
    spatial, options = GEOMETRIES[name]
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[spatial]
    inputs = tensors(spatial, options.get("groups", 1))
    with thrice_differentiable():
        found = third(conv, inputs, options)
    for a, b in zip(found, third(conv, inputs, options), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_taken_over_passes_through():
    x, weight = tensors(2)[0], torch.randn(2, 4, 3, 3, dtype=torch.float64)
    with thrice_differentiable():
        same = F.conv2d(x, weight, padding="same")
        single = F.conv2d(x[0], weight, padding=1)
        by_name = torch.conv2d(input=x, weight=weight, padding=1)
        transposed = F.conv_transpose2d(x, weight.transpose(0, 1).contiguous())
    assert torch.equal(same, F.conv2d(x, weight, padding="same"))
    assert torch.equal(single, F.conv2d(x[0], weight, padding=1))
    assert torch.equal(by_name, F.conv2d(x, weight, padding=1))
    assert torch.equal(transposed, F.conv_transpose2d(x, weight.transpose(0, 1).contiguous()))


class Written(nn.Module):
    """A normalization by hand: over `dims`, weight and bias of the given shape."""

    def __init__(self, dims, shape):
        super().__init__()
        self.dims, self.shape = dims, shape

    def forward(self, x, weight, bias):
        centred = x - x.mean(self.dims, keepdim=True)
        deviation = (x.var(self.dims, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return centred / deviation * weight.view(self.shape) + bias.view(self.shape)


NORMALIZATIONS = {
    "batch": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        Written((0, 2), (1, 3, 1)),
        (4, 3, 5),
    ),
    "instance": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        Written((2,), (1, 3, 1)),
        (4, 3, 5),
    ),
    "layer": (lambda x, w, b: F.layer_norm(x, (3,), w, b), Written((1,), (1, 3)), (6, 3)),
}


def third_of(function, inputs):
    """The gradients of ‖Hv‖², v = 1."""
    loss = torch.tanh(function(*inputs)).square().sum()
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    second = torch.autograd.grad([g.sum() for g in first], inputs, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in second), inputs)


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_third_derivatives_of_normalizations(name):
    function, written, shape = NORMALIZATIONS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True)
        for s in (shape, (3,), (3,))
    ]
    truth = third_of(written, inputs)
    with thrice_differentiable():
        torch.testing.assert_close(function(*inputs), written(*inputs), rtol=1e-12, atol=1e-12)
        found = third_of(function, inputs)
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    # Meta-test: torch's own are wrong. If this fails, they were repaired and nothing is needed.
    native = third_of(function, inputs)
    assert max(float((a - b).abs().max()) for a, b in zip(native, truth, strict=True)) > 1e-3


def test_third_derivatives_of_group_norm_are_right():
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True)
        for s in ((4, 3, 5), (3,), (3,))
    ]
    truth = third_of(Written((1, 2), (1, 3, 1)), inputs)
    for a, b in zip(third_of(lambda x, w, b: F.group_norm(x, 1, w, b), inputs), truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "module",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm1d(3, momentum=None),
        nn.BatchNorm1d(3).eval(),
        nn.InstanceNorm1d(3, track_running_stats=True, affine=True),
        nn.LayerNorm(5),
    ],
    ids=str,
)
def test_normalizations_keep_their_values_and_statistics(module):
    written, x = copy.deepcopy(module), torch.randn(4, 3, 5)
    for _ in range(2):
        plain = module(x)
        with thrice_differentiable():
            torch.testing.assert_close(written(x), plain)
    assert all(map(torch.equal, module.state_dict().values(), written.state_dict().values()))


def test_relu_and_linear_are_torchs():
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True)
        for s in ((2, 4, 3), (5, 3), (5,))
    ]

    def network(x, weight, bias):
        return torch.tanh(F.relu(F.linear(x, weight, bias)).square())

    truth = third_of(network, inputs)
    with thrice_differentiable():
        out = network(*inputs)
        found = third_of(network, inputs)
    assert torch.equal(out, network(*inputs))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    values = torch.tensor([-1.0, -0.0, 0.0, 2.0, float("inf"), float("nan")], requires_grad=True)
    with thrice_differentiable():
        out = F.relu(values)
        kept = F.relu(values.clone(), inplace=True)
    torch.testing.assert_close(out, F.relu(values), equal_nan=True)
    torch.testing.assert_close(kept, F.relu(values), equal_nan=True)
    (gradient,) = torch.autograd.grad(out.sum(), values)
    assert torch.equal(gradient, torch.autograd.grad(F.relu(values).sum(), values)[0])


def test_deferred_gradients_reach_only_their_caller():
    """A weight behind a parametrization, or with a hook, keeps the gradient's value."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    normed = copy.deepcopy(plain)
    nn.utils.parametrize.register_parametrization(normed[0], "weight", nn.Tanh())
    seen = []
    plain[2].weight.register_hook(lambda g: seen.append(g.detach().clone()))
    for model in (plain, normed):
        values = []
        for context in (thrice_differentiable(), contextlib.nullcontext()):
            with context:
                loss = F.cross_entropy(model(x), y)
            generator = torch.Generator().manual_seed(1)
            value = trace_squared_of(loss, model.parameters(), 6, generator=generator)
            values.append([value.detach(), *torch.autograd.grad(value, list(model.parameters()))])
        for a, b in zip(*values, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(seen[0], seen[len(seen) // 2], rtol=1e-9, atol=1e-12)
    assert float(seen[0].abs().max()) > 0
    with thrice_differentiable():  # and afterwards the loss's own gradient is whole
        loss = F.cross_entropy(plain(x), y)
    trace_squared_of(loss, plain.parameters(), 6)
    found = torch.autograd.grad(loss, list(plain.parameters()))
    truth = torch.autograd.grad(F.cross_entropy(plain(x), y), list(plain.parameters()))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b)


def test_torch_func_is_left_alone():
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    with thrice_differentiable():
        found = torch.func.vmap(torch.func.jacrev(lambda a: F.relu(layer(a))))(x)
    torch.testing.assert_close(found, (layer(x) > 0)[:, :, None] * layer.weight)


def test_frozen_weights_get_no_gradient():
    conv = nn.Conv2d(4, 2, 2).requires_grad_(False)
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    with thrice_differentiable():
        conv(x).sum().backward()
    assert conv.weight.grad is None
    assert x.grad is not None


def test_signs_are_fair_and_independent():
    # 200,000 draws of 13 signs: means and products within 4 standard errors of 0
    like = [torch.zeros(3), torch.zeros(2, 5)]
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(20):
        big = draw_signs([torch.zeros(10_000, 13)], generator)[0]
        rows.append(big)
    rows = torch.cat(rows)
    assert rows.abs().eq(1).all()
    n = len(rows)
    products = rows.T @ rows / n - torch.eye(13)
    assert float(products.abs().max()) < 4.5 / n**0.5  # the largest of 78
    assert float(rows.mean(dim=0).abs().max()) < 4 / n**0.5
    small = draw_signs(like, generator)
    assert [s.shape for s in small] == [t.shape for t in like]


def test_signs_follow_the_generator_alone():
    like = [torch.zeros(100), torch.zeros(7, 9, dtype=torch.float64)]
    before = torch.get_rng_state()
    a, b = (draw_signs(like, torch.Generator().manual_seed(3)) for _ in range(2))
    other = draw_signs(like, torch.Generator().manual_seed(4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, a, b))
    assert not torch.equal(a[0], other[0])
    assert [s.dtype for s in a] == [torch.float32, torch.float64]
    torch.manual_seed(3)
    global_one = draw_signs(like, None)
    assert not torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, global_one, a))


@pytest.mark.parametrize("every", [0, -2, 1.5, True])
def test_every_must_count(every):
    with pytest.raises(SpiritlevelError, match=rf"'every' .* at least 1\. Got {every!r}"):
        StepSchedule(every)
