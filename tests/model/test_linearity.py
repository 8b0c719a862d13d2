"""What a graph says about bending, against torch's list of operations and second differences."""

import pathlib
import re

import pytest
import torch
import torch.nn.functional as F
import torchgen

from spiritlevel.model import elementwise, linearity
from spiritlevel.model.autograd_graph import nodes
from spiritlevel.model.linearity import bends, operation_of

TABLES = {
    "harmless": linearity._HARMLESS,
    "products": frozenset(linearity._PRODUCTS),
    "curved arguments": frozenset(linearity._CURVED_ARGUMENTS),
    "batch norms": linearity.BATCH_NORMS,
    "elementwise": elementwise._ELEMENTWISE,
}
# Not in torch's list of derivatives: written by hand in its C++, or listed by another name.
BY_HAND = {"Copy", "LogSigmoid"}


def torch_operations():
    """The names that torch gives to the nodes of its generated derivatives, on any device."""
    packaged = pathlib.Path(torchgen.__file__).parent / "packaged/autograd/derivatives.yaml"
    functions = re.findall(r"^- name: (\w+)", packaged.read_text(), flags=re.MULTILINE)
    return {"".join(word.title() for word in name.split("_")) for name in functions}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_name_is_one_of_torch(table):
    assert table - torch_operations() - BY_HAND == set()


def test_an_invented_name_would_be_noticed():
    assert {"Relu", "MaxPool2DWithIndices", "FftR2C"} <= torch_operations()
    assert not {"ReLU", "MaxPool2dWithIndices", "Copy"} & torch_operations()


# -- operations with one argument that depends on the parameter ------------------------------------


def fixed(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def unpooled(x):
    places = torch.tensor([[[[0, 3], [8, 15]]]])
    return F.max_unpool2d(x.flatten()[:4].reshape(1, 1, 2, 2), places, 2)


def normalized(x, *, training):
    mean, variance = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    return F.batch_norm(x, mean, variance, training=training)


def written(x):
    """A tensor of fixed numbers that x is copied into."""
    return fixed(4, 6).copy_(x)


def image(x):
    return x.reshape(1, 1, 4, 6)


def volume(x):
    return x.reshape(1, 1, 2, 2, 6)


INDEX = torch.tensor([2, 0, 1])
MASK = fixed(4, 6) > 0

# By the name of the node they make. x has shape (4, 6).
STRAIGHT = {
    "Add": lambda x: x + fixed(4, 6),
    "Sub": lambda x: x - fixed(4, 6),
    "Rsub": lambda x: torch.rsub(x, 1.0),
    "Neg": lambda x: -x,
    "Sum": lambda x: x.sum(1),
    "Mean": lambda x: x.mean(1),
    "Nansum": lambda x: x.nansum(1),
    "Cumsum": lambda x: x.cumsum(1),
    "Trace": lambda x: x.trace(),
    "View": lambda x: x.view(6, 4),
    "UnsafeView": lambda x: x.t().reshape(4, 6),
    "AsStrided": lambda x: x.as_strided((3, 2), (2, 5)),
    "T": lambda x: x.t(),
    "Transpose": lambda x: x.transpose(0, 1),
    "Permute": lambda x: x.permute(1, 0),
    "Squeeze": lambda x: x[:1].squeeze(0),
    "Unsqueeze": lambda x: x.unsqueeze(0),
    "Expand": lambda x: x.expand(2, 4, 6),
    "Repeat": lambda x: x.repeat(2, 1),
    "Select": lambda x: x[1],
    "Slice": lambda x: x[1:3],
    "Split": lambda x: x.split(2)[1],
    "SplitWithSizes": lambda x: x.split([1, 3])[1],
    "Unbind": lambda x: x.unbind()[2],
    "Cat": lambda x: torch.cat([x, x]),
    "Stack": lambda x: torch.stack([x, x]),
    "BlockDiag": lambda x: torch.block_diag(x, x),
    "Diagonal": lambda x: x.diagonal(),
    "DiagEmbed": lambda x: x.diag_embed(),
    "Tril": lambda x: x.tril(),
    "Triu": lambda x: x.triu(),
    "Flip": lambda x: x.flip(0),
    "Roll": lambda x: x.roll(1, 0),
    "Rot90": lambda x: x.rot90(),
    "Unfold": lambda x: x.unfold(0, 2, 1),
    "Clone": lambda x: x.clone(),
    "Copy": written,
    "ToCopy": lambda x: x.to(torch.complex128).real,
    "Index": lambda x: x[INDEX],
    "IndexSelect": lambda x: x.index_select(0, INDEX),
    "IndexAdd": lambda x: x.index_add(0, INDEX, fixed(3, 6)),
    "IndexCopy": lambda x: x.index_copy(0, INDEX, fixed(3, 6)),
    "IndexFill": lambda x: x.index_fill(0, INDEX, 2.0),
    "IndexPut": lambda x: x.index_put((INDEX,), fixed(3, 6)),
    "Gather": lambda x: x.gather(0, INDEX[:, None]),
    "Scatter": lambda x: x.scatter(0, INDEX[:, None], 2.0),
    "ScatterAdd": lambda x: x.scatter_add(0, INDEX[:, None], fixed(3, 1)),
    "SelectScatter": lambda x: x.select_scatter(fixed(6), 0, 1),
    "SliceScatter": lambda x: x.slice_scatter(fixed(1, 6), 0, 0, 1),
    "DiagonalScatter": lambda x: x.diagonal_scatter(fixed(4)),
    "Take": lambda x: x.take(INDEX),
    "Put": lambda x: x.put(INDEX, fixed(3)),
    "MaskedFill": lambda x: x.masked_fill(MASK, 2.0),
    "MaskedSelect": lambda x: x.masked_select(MASK),
    "MaskedScatter": lambda x: x.masked_scatter(MASK, fixed(24)),
    "Where": lambda x: torch.where(MASK, x, fixed(4, 6)),
    "ConstantPadNd": lambda x: F.pad(x, (1, 1), value=2.0),
    "ReflectionPad1D": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "ReflectionPad2D": lambda x: F.pad(x[None], (1, 1, 1, 1), mode="reflect"),
    "ReplicationPad1D": lambda x: F.pad(x, (1, 1), mode="replicate"),
    "ReplicationPad2D": lambda x: F.pad(x[None], (1, 1, 1, 1), mode="replicate"),
    "Im2Col": lambda x: F.unfold(image(x), 2),
    "Col2Im": lambda x: F.fold(x.reshape(1, 4, 6), (3, 4), 2),
    "PixelShuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "PixelUnshuffle": lambda x: F.pixel_unshuffle(image(x), 2),
    "AvgPool2D": lambda x: F.avg_pool2d(image(x), 2),
    "AvgPool3D": lambda x: F.avg_pool3d(volume(x), 2),
    "AdaptiveAvgPool2D": lambda x: F.adaptive_avg_pool2d(image(x), 2),
    "AdaptiveAvgPool3D": lambda x: F.adaptive_avg_pool3d(volume(x), 2),
    "UpsampleNearest2D": lambda x: F.interpolate(image(x), scale_factor=2),
    "UpsampleLinear1D": lambda x: F.interpolate(x[None], scale_factor=2, mode="linear"),
    "UpsampleBilinear2D": lambda x: F.interpolate(image(x), scale_factor=2, mode="bilinear"),
    "UpsampleBicubic2D": lambda x: F.interpolate(image(x), scale_factor=2, mode="bicubic"),
    "UpsampleTrilinear3D": lambda x: F.interpolate(volume(x), scale_factor=2, mode="trilinear"),
    "Embedding": lambda x: F.embedding(INDEX, x),
    "Complex": lambda x: torch.view_as_real(torch.complex(x, fixed(4, 6))),
    "FftR2C": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "FftC2R": lambda x: torch.fft.irfft(torch.view_as_complex(x.reshape(4, 3, 2))),
    "FftC2C": lambda x: torch.view_as_real(
        torch.fft.fft(torch.view_as_complex(x.reshape(4, 3, 2)))
    ),
    "Relu": lambda x: x.relu(),
    "Threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "LeakyRelu": lambda x: F.leaky_relu(x, 0.2),
    "Hardtanh": lambda x: F.hardtanh(x),
    "Hardsigmoid": lambda x: F.hardsigmoid(x),
    "Hardshrink": lambda x: F.hardshrink(x),
    "Softshrink": lambda x: F.softshrink(x),
    "Abs": lambda x: x.abs(),
    "Clamp": lambda x: x.clamp(-1, 1),
    "ClampMin": lambda x: x.clamp_min(-0.5),
    "ClampMax": lambda x: x.clamp_max(0.5),
    "Maximum": lambda x: torch.maximum(x, fixed(4, 6)),
    "Minimum": lambda x: torch.minimum(x, fixed(4, 6)),
    "Fmax": lambda x: torch.fmax(x, fixed(4, 6)),
    "Max": lambda x: x.max(1).values,
    "Min": lambda x: x.min(1).values,
    "Amax": lambda x: x.amax(1),
    "Amin": lambda x: x.amin(1),
    "Aminmax": lambda x: x.aminmax(dim=1).max,
    "Cummax": lambda x: x.cummax(1).values,
    "Sort": lambda x: x.sort(1).values,
    "Topk": lambda x: x.topk(2, 1).values,
    "Kthvalue": lambda x: x.kthvalue(2, 1).values,
    "Median": lambda x: x.median(1).values,
    "MaxPool2DWithIndices": lambda x: F.max_pool2d(image(x), 2),
    "MaxPool3DWithIndices": lambda x: F.max_pool3d(volume(x), 2),
    "AdaptiveMaxPool2D": lambda x: F.adaptive_max_pool2d(image(x), 2),
    "MaxUnpool2D": unpooled,
    "Sign": lambda x: x.sign() + x,
    "Floor": lambda x: x.floor() + x,
    "Round": lambda x: x.round() + x,
    "Frac": lambda x: x.frac(),
    "NanToNum": lambda x: x.nan_to_num(),
    "Mul": lambda x: x * fixed(4, 6),
    "Mm": lambda x: x @ fixed(6, 2),
    "Bmm": lambda x: x.reshape(2, 2, 6) @ fixed(2, 6, 3),
    "Mv": lambda x: x.mv(fixed(6)),
    "Dot": lambda x: x[0].dot(fixed(6)),
    "Addmm": lambda x: F.linear(fixed(5, 6), x, x.sum(1)),
    "Addmv": lambda x: torch.addmv(x[:, 0], x, fixed(6)),
    "Addr": lambda x: torch.addr(x, x[:, 0], fixed(6)),
    "Baddbmm": lambda x: torch.baddbmm(x.reshape(2, 2, 6), x.reshape(2, 2, 6), fixed(2, 6, 6)),
    "Addcmul": lambda x: torch.addcmul(x, x, fixed(4, 6)),
    "Lerp": lambda x: torch.lerp(x, 2 * x, fixed(4, 6)),
    "Convolution": lambda x: F.conv1d(fixed(2, 4, 5), x.reshape(2, 4, 3)),
    "PreluKernel": lambda x: F.prelu(x, fixed(6)),
    "EmbeddingBag": lambda x: F.embedding_bag(INDEX[None], x),
    "Trilinear": lambda x: F.bilinear(x, fixed(4, 2), fixed(3, 6, 2)),
    "Div": lambda x: x / fixed(4, 6),
    "Addcdiv": lambda x: torch.addcdiv(x, x, fixed(4, 6)),
    "Fmod": lambda x: x.fmod(0.7),
    "Remainder": lambda x: x.remainder(0.7),
    "GridSampler2D": lambda x: F.grid_sample(image(x), fixed(1, 2, 2, 2), align_corners=False),
    "NativeLayerNorm": lambda x: F.layer_norm(fixed(3, 4, 6), (4, 6), weight=x, bias=x),
    "NativeGroupNorm": lambda x: F.group_norm(fixed(2, 6, 3), 2, weight=x[0], bias=x[1]),
    "NativeBatchNorm": lambda x: normalized(x, training=False),
    "ScaledDotProductFlashAttentionForCpu": lambda x: F.scaled_dot_product_attention(
        fixed(1, 1, 4, 6), fixed(1, 1, 4, 6), image(x)
    ),
}

# Curved, or products in which both factors depend on x.
BENT = {
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "exp": lambda x: x.exp(),
    "log": lambda x: x.abs().log(),
    "sin": lambda x: x.sin(),
    "gelu": lambda x: F.gelu(x),
    "silu": lambda x: F.silu(x),
    "elu": lambda x: F.elu(x),
    "softplus": lambda x: F.softplus(x),
    "hardswish": lambda x: F.hardswish(x),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: x.norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "pow": lambda x: x**2,
    "sqrt": lambda x: x.abs().sqrt(),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "prod": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "erf": lambda x: x.erf(),
    "reciprocal": lambda x: x.reciprocal(),
    "inverse": lambda x: torch.linalg.inv(x[:, :4]),
    "det": lambda x: torch.linalg.det(x[:, :4]),
    "product with itself": lambda x: x * x,
    "product with a sum of itself": lambda x: x * x.sum(),
    "matrix product": lambda x: x @ x.T,
    "batched product": lambda x: x.reshape(2, 2, 6) @ x.reshape(2, 6, 2),
    "addmm": lambda x: torch.addmm(fixed(4, 4), x, x.T),
    "addcmul": lambda x: torch.addcmul(fixed(4, 6), x, x),
    "lerp": lambda x: torch.lerp(x, fixed(4, 6), x),
    "convolution": lambda x: F.conv1d(x.reshape(2, 4, 3), x.reshape(2, 4, 3)),
    "prelu": lambda x: F.prelu(x, x[0]),
    "bilinear": lambda x: F.bilinear(x, x, fixed(3, 6, 6)),
    "weighted bag": lambda x: F.embedding_bag(
        INDEX[None], x, per_sample_weights=x[:1, :3], mode="sum"
    ),
    "division": lambda x: fixed(4, 6) / x,
    "addcdiv": lambda x: torch.addcdiv(fixed(4, 6), fixed(4, 6), x),
    "grid": lambda x: F.grid_sample(
        fixed(1, 1, 3, 3), 0.1 * x[:, :4].reshape(1, 2, 4, 2), align_corners=False
    ),
    "layer norm": lambda x: F.layer_norm(x, (6,)),
    "group norm": lambda x: F.group_norm(x, 2),
    "batch norm": lambda x: normalized(x, training=True),
    "weight of a fixed batch norm": lambda x: F.batch_norm(
        x, torch.zeros(6).double(), torch.ones(6).double(), weight=x[0]
    ),
    "query": lambda x: F.scaled_dot_product_attention(
        image(x), fixed(1, 1, 4, 6), fixed(1, 1, 4, 6)
    ),
    "key": lambda x: F.scaled_dot_product_attention(fixed(1, 1, 4, 6), image(x), fixed(1, 1, 4, 6)),
    "size of a complex number": lambda x: torch.view_as_complex(x.reshape(4, 3, 2)).abs(),
}


@pytest.fixture
def parameter(generator):
    return torch.randn(4, 6, generator=generator, dtype=torch.float64).requires_grad_()


def second_difference(function, parameter, step=1e-4):
    """How much the outputs bend along a random direction, relative to how much they move."""
    generator = torch.Generator().manual_seed(7)
    x = parameter.detach()
    along = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    ahead, here, behind = (function(x + t * along) for t in (step, 0, -step))
    moved = float((ahead - behind).abs().max())
    assert moved > 0
    return float((ahead - 2 * here + behind).abs().max()) / moved


@pytest.mark.parametrize("name", STRAIGHT)
def test_what_is_straight_does_not_bend(name, parameter):
    function = STRAIGHT[name]
    outputs = function(parameter)
    assert name in {operation_of(node) for node in nodes(outputs)}
    assert bends(outputs, {id(parameter): "x"}) == {}
    assert second_difference(function, parameter) < 1e-10  # rounding, over a step of 1e-4


@pytest.mark.parametrize("name", BENT)
def test_what_bends_is_named(name, parameter):
    function = BENT[name]
    assert list(bends(function(parameter), {id(parameter): "x"})) == ["x"]
    assert second_difference(function, parameter) > 1e-8


def test_a_function_that_torch_did_not_write_counts_as_bending(parameter):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    assert list(bends(Twice.apply(parameter), {id(parameter): "x"})) == ["x"]


def test_two_parameters_are_told_apart(parameter):
    other = fixed(4, 6).requires_grad_()
    names = {id(parameter): "x", id(other): "y"}
    assert bends(parameter * other, names) == {}
    assert list(bends(parameter * other.exp(), names)) == ["y"]
    assert list(bends((parameter * other).relu() * other, names)) == ["y"]
