"""Products with the Hessian, its residual and the GGN: three methods, against dense matrices."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

import spiritlevel as sl
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.product_methods import choose_method
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.model.surface import Surface
from spiritlevel.testing import references
from zoo.cases import CASES, Case, cast, normal, then_head, tokens
from zoo.losses import LOSSES
from zoo.once_differentiable import OnceTanh
from zoo.plain import random
from zoo.wirings import CLASSES

OPERATORS = ["hessian", "residual", "ggn"]
# Ways and the error they are allowed, relative to the largest entry. A central difference loses a
# third of the digits by its step and gets them back by its order: 1e-5 of 16 digits.
METHODS = {"reverse": 1e-11, "forward": 1e-11, "difference": 1e-5}


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 2, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    """Scaled dot-product attention as torch dispatches it: to a fused kernel where there is one."""

    def __init__(self, backend=None):
        super().__init__()
        self.backend = backend
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, CLASSES)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 2, 2).permute(2, 0, 3, 1, 4)
        if self.backend is None:
            h = F.scaled_dot_product_attention(q, k, v)
        else:
            with sdpa_kernel(self.backend):
                h = F.scaled_dot_product_attention(q, k, v)
        return self.head(h.transpose(1, 2).reshape(n, t, 4).mean(dim=1))


def smooth_mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


NAMED = [
    "mlp",
    "conv2d",
    "attention_batch_first",
    "transformer_block",
    "transformer_block_sequence_first",
    "gru",
    "tied_in_series",
    "tied_in_two_modules",
    "embedding_tied_with_decoder",
    "frozen_and_unused",
    "bare_parameters",
    "two_inputs",
    "outputs_are_images",
]
PROBLEMS = {name: CASES[name] for name in NAMED} | {
    "layernorm_gelu": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 4), nn.Linear(4, CLASSES)
        ),
        normal(4),
    ),
    "smooth_convolution": Case(
        lambda: then_head(nn.Conv2d(2, 3, 2), nn.SiLU(), nn.AvgPool2d(2), features=3),
        normal(2, 3, 3),
    ),
    "lstm": Case(Lstm, normal(3, 3)),
    "fused_attention": Case(Attention, normal(3, 4)),
    "embedding_softplus": Case(
        lambda: nn.Sequential(nn.Embedding(5, 3), nn.Softplus(), nn.Flatten(), nn.Linear(9, 3)),
        tokens(3, 5),
    ),
} | {
    f"smooth_mlp_with_{loss}": Case(smooth_mlp, normal(4), loss)
    for loss in (
        "label_smoothing",
        "class_weights",
        "ignored",
        "ignore_index",
        "soft_targets",
        "mse",
        "bce",
        "bce_weighted",
        "saddle",
        "linear_in_outputs",
    )
}  # fmt: skip
# A difference moves what the model detaches from its graph; derivatives do not see it.
NO_DIFFERENCE = {"frozen_and_unused"}


def truth_of(model, batches, loss):
    call = (lambda m, x: m(*x)) if isinstance(batches[0][0], tuple) else None
    return references.Truth(model, batches, LOSSES[loss].plain, call)


def dense(truth, operator, names):
    if operator == "residual":
        return truth.hessian(names) - truth.ggn(names)
    return {"hessian": truth.hessian, "ggn": truth.ggn}[operator](names)


def check_products(surface, truth, method, *, names=None, chunk=100, rel=None, together=None):
    """Random vectors by each operator, all in one pass, against the dense matrices."""
    space = ParameterSpace(surface, names)
    rows = random(2 if together is None else 2 * together - 1, space.size)
    products = Products(surface, chunk=chunk, method=method, together=together)
    with surface.preserved():
        found = products.multiply([Request(op, space, rows) for op in OPERATORS])
    scale = max(float((rows @ truth.hessian(list(space.names))).abs().max()), 1e-3)
    for operator, values in zip(OPERATORS, found, strict=True):
        expected = rows @ dense(truth, operator, list(space.names))
        torch.testing.assert_close(values, expected, rtol=0, atol=(rel or METHODS[method]) * scale)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_agrees_with_dense_matrices(name, method):
    case = PROBLEMS[name]
    model, batches = case.make()
    surface = Surface(model, batches, loss=LOSSES[case.loss].given)
    if method == "difference" and name in NO_DIFFERENCE:
        pytest.skip("the model detaches a part of itself")
    check_products(surface, truth_of(model, batches, case.loss), method)


@pytest.mark.parametrize("name", PROBLEMS)
def test_several_vectors_in_one_backward(name):
    case = PROBLEMS[name]
    model, batches = case.make()
    surface = Surface(model, batches, loss=LOSSES[case.loss].given)
    with surface.preserved():
        if choose_method(surface) != "reverse":
            pytest.skip("has no second backward")
    check_products(surface, truth_of(model, batches, case.loss), "reverse", together=3)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_method_that_is_chosen_agrees(name):
    case = PROBLEMS[name]
    model, batches = case.make()
    surface = Surface(model, batches, loss=LOSSES[case.loss].given)
    with surface.preserved():
        method = choose_method(surface)
    check_products(surface, truth_of(model, batches, case.loss), method)


@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_parameters(method):
    model, batches = CASES["transformer_block"].make()
    surface, truth = Surface(model, batches), truth_of(model, batches, "cross_entropy")
    for names in (["head.weight"], ["block.self_attn.in_proj_weight", "block.norm1.bias"]):
        check_products(surface, truth, method, names=names)


@pytest.mark.parametrize("method", METHODS)
def test_different_blocks_and_operators_in_one_pass(method):
    model, batches = PROBLEMS["layernorm_gelu"].make()
    surface, truth = Surface(model, batches), truth_of(model, batches, "cross_entropy")
    blocks = {"hessian": ["0.weight"], "ggn": ["1.weight", "3.bias"], "residual": ["0.bias"]}
    requests = [
        Request(op, space, random(k + 1, space.size))
        for k, (op, space) in enumerate(
            (op, ParameterSpace(surface, b)) for op, b in blocks.items()
        )
    ]
    found = Products(surface, chunk=3, method=method).multiply(requests)
    for request, values in zip(requests, found, strict=True):
        expected = request.vectors @ dense(truth, request.operator, list(request.space.names))
        scale = float(truth.hessian(list(request.space.names)).abs().max()) * 10
        torch.testing.assert_close(values, expected, rtol=0, atol=METHODS[method] * scale)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_do_not_matter(method, chunk):
    case = PROBLEMS["smooth_mlp_with_ignore_index"]
    model, batches = case.make()
    surface = Surface(model, batches, loss=LOSSES[case.loss].given)
    check_products(surface, truth_of(model, batches, case.loss), method, chunk=chunk)


@pytest.mark.parametrize("method", METHODS)
def test_float32(method):
    case = PROBLEMS["layernorm_gelu"]
    model, batches = case.make()
    truth = truth_of(model, batches, case.loss)
    expected = random(1, 200)[:, : sum(p.numel() for p in model.parameters())]
    product = expected @ truth.hessian(list(truth.parameters))
    model, batches = cast(model, batches, torch.float32)
    surface = Surface(model, batches)
    space = ParameterSpace(surface)
    request = Request("hessian", space, expected.float())
    (found,) = Products(surface, chunk=9, method=method).multiply([request])
    assert found.dtype is torch.float32
    # 7 digits; the difference is documented to keep two of them
    rel = 1e-2 if method == "difference" else 1e-5
    error = (found.double() - product).abs().max() / product.abs().max()
    assert float(error) < rel


@pytest.mark.parametrize("method", METHODS)
def test_zero_and_scaled_vectors(method):
    model, batches = PROBLEMS["smooth_mlp_with_mse"].make()
    surface = Surface(model, batches, loss="mse")
    space = ParameterSpace(surface)
    v = random(1, space.size)
    rows = torch.cat([torch.zeros_like(v), v, 1e6 * v, 1e-6 * v])
    products = Products(surface, chunk=9, method=method)
    (found,) = products.multiply([Request("hessian", space, rows)])
    assert found[0].abs().max() == 0.0
    for row, factor in ((2, 1e6), (3, 1e-6)):
        error = (found[row] / factor - found[1]).abs().max() / found[1].abs().max()
        assert float(error) < METHODS[method]


def test_unknown_method_is_refused():
    model, batches = CASES["mlp"].make()
    with pytest.raises(sl.SpiritlevelError, match=r"must be one of reverse, forward.*Got 'back'"):
        Products(Surface(model, batches), chunk=1, method="back")


# -- models that forbid a method ------------------------------------------------------------------


class OnceNew(torch.autograd.Function):
    """The same as OnceTanh in the style that torch.func accepts."""

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


def twin(function):
    """A network with a once differentiable tanh, and the same with torch's own."""
    plain, batches = PROBLEMS["smooth_mlp_with_ignored"].make()
    return nn.Sequential(plain[0], Apply(function), plain[2]), plain, batches


@pytest.mark.parametrize("function", [OnceTanh, OnceNew])
def test_once_differentiable_functions_are_worked_around(function):
    model, plain, batches = twin(function)
    surface = Surface(model, batches)
    assert choose_method(surface) == "difference"
    truth = truth_of(plain, batches, "ignored")
    check_products(surface, truth, choose_method(surface))


@pytest.mark.parametrize("function", [OnceTanh, OnceNew])
def test_once_differentiable_functions_are_not_certified(function):
    """Their second derivative is missing from the graph, which must not be read as zero."""
    model, _, batches = twin(function)
    found = sl.measure(model, batches, measures="curvature.trace", method="exact")
    assert not found["curvature.trace"].exact
    assert found["curvature.trace"].status is sl.results.Status.GGN


def test_flash_attention_is_worked_around():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fused = Attention(SDPBackend.FLASH_ATTENTION).double().eval()
    plain = Attention(SDPBackend.MATH).double().eval()
    plain.load_state_dict(fused.state_dict())
    batches = [(random(3, 5, 4), torch.tensor([0, 2, 1])), (random(2, 5, 4), torch.tensor([1, 1]))]
    surface = Surface(fused, batches)
    with surface.preserved():
        method = choose_method(surface)
    assert method == "difference"  # torch has neither derivative of that kernel
    check_products(surface, truth_of(plain, batches, "cross_entropy"), method)


def test_compiled_model():
    """Wrapping does not compile; the products run the module inside."""
    model, batches = PROBLEMS["layernorm_gelu"].make()
    truth = truth_of(model, batches, "cross_entropy")
    surface = Surface(torch.compile(model), batches)
    with surface.preserved():
        method = choose_method(surface)
    check_products(surface, truth, method)


def test_compiled_parts():
    model, batches = PROBLEMS["layernorm_gelu"].make()
    truth = truth_of(model, batches, "cross_entropy")
    names = list(truth.parameters)
    H = truth.hessian(names)
    model[2] = torch.compile(model[2])
    surface = Surface(model, batches)
    with surface.preserved():
        method = choose_method(surface)
    space = ParameterSpace(surface)
    assert len(space.names) == len(names)
    rows = random(1, space.size)
    with surface.preserved():
        (found,) = Products(surface, chunk=9, method=method).multiply(
            [Request("hessian", space, rows)]
        )
    torch.testing.assert_close(found, rows @ H, rtol=1e-9, atol=1e-11)


def test_a_model_without_any_gradient_says_so():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.tanh()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no backward here")

    model, _, batches = twin(Broken)
    with pytest.raises(sl.SpiritlevelError, match=r"No product.*reverse: no backward here"):
        choose_method(Surface(model, batches))
