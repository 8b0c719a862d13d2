import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.models import (
    build,
    densenet121,
    digits_cnn,
    lenet5,
    mlp,
    names,
    resnet18,
    vgg16,
    vgg_small,
    vit_small,
)

pytestmark = pytest.mark.sampled(3)  # the others at night


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel**2 + outputs


def block(inputs: int, outputs: int) -> int:
    """A residual block: convolutions without bias, two BatchNorm parameters a channel."""
    main = 9 * inputs * outputs + 9 * outputs * outputs + 4 * outputs
    return main + (inputs * outputs + 2 * outputs if inputs != outputs else 0)


def resnet(channels: int, classes: int, width: int) -> int:
    stem = 9 * channels * width + 2 * width
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = sum(block(i, o) + block(o, o) for i, o in itertools.pairwise(widths))
    return stem + stages + dense(8 * width, classes)


def vgg(channels: int, classes: int, width: int, *, batch_norm: bool = True) -> int:
    units = [1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8]
    widths = [channels, *(unit * width for unit in units)]
    convs = sum(conv(i, o, 3) for i, o in itertools.pairwise(widths))
    return convs + batch_norm * 2 * sum(widths[1:]) + dense(8 * width, classes)


def densenet(channels: int, classes: int, growth: int, blocks: tuple[int, ...]) -> int:
    width = 2 * growth
    total = 9 * channels * width
    for i, depth in enumerate(blocks):
        for _ in range(depth):  # BatchNorm, 1×1 to 4 × growth, BatchNorm, 3×3 to growth
            total += 2 * width + 4 * growth * width + 8 * growth + 36 * growth**2
            width += growth
        if i + 1 < len(blocks):
            total += 2 * width + width * (width // 2)
            width //= 2
    return total + 2 * width + dense(width, classes)


def encoder(width: int, depth: int) -> int:
    """Pre-LN blocks without a bias of the keys, and the last LayerNorm."""
    attention = 4 * dense(width, width) - width
    perceptron = dense(width, 4 * width) + dense(4 * width, width)
    return depth * (attention + perceptron + 4 * width) + 2 * width


# model, shape of one image, outputs, parameters by hand
CASES = {
    "mlp": (mlp, {}, (64,), 10, dense(64, 64) * 2 + dense(64, 10)),
    "mlp-image": (mlp, {}, (1, 8, 8), 10, dense(64, 64) * 2 + dense(64, 10)),
    "mlp-options": (
        mlp,
        {"inputs": 6, "hidden": (5, 4, 3), "outputs": 2, "activation": "gelu"},
        (2, 3),
        2,
        dense(6, 5) + dense(5, 4) + dense(4, 3) + dense(3, 2),
    ),
    "mlp-linear": (mlp, {"inputs": 6, "hidden": ()}, (6,), 10, dense(6, 10)),
    "lenet5-28": (lenet5, {}, (1, 28, 28), 10, 61_706),
    "lenet5-32": (lenet5, {"size": 32}, (1, 32, 32), 10, 61_706),
    "lenet5-color": (
        lenet5,
        {"channels": 3, "classes": 7, "size": 12},
        (3, 12, 12),
        7,
        conv(3, 6, 5) + conv(6, 16, 5) + dense(16, 120) + dense(120, 84) + dense(84, 7),
    ),
    "lenet5-large": (
        lenet5,
        {"size": 40},
        (1, 40, 40),
        10,
        conv(1, 6, 5) + conv(6, 16, 5) + dense(16 * 7 * 7, 120) + dense(120, 84) + dense(84, 10),
    ),
    "vgg_small": (
        vgg_small,
        {},
        (3, 32, 32),
        10,
        conv(3, 64, 3) + conv(64, 128, 3) + conv(128, 256, 3) + conv(256, 512, 3) + 2048 * 10,
    ),
    "vgg_small-options": (
        vgg_small,
        {"channels": 1, "classes": 3, "width": 4},
        (1, 28, 28),
        3,
        conv(1, 4, 3) + conv(4, 8, 3) + conv(8, 16, 3) + conv(16, 32, 3) + 128 * 3,
    ),
    "resnet18": (resnet18, {}, (3, 32, 32), 10, 11_173_962),
    "resnet18-options": (
        resnet18,
        {"channels": 1, "classes": 5, "width": 4},
        (1, 16, 16),
        5,
        resnet(1, 5, 4),
    ),
    "resnet18-conv": (resnet18, {"width": 4, "head": "conv"}, (3, 8, 8), 10, resnet(3, 10, 4)),
    "vgg_small-conv": (
        vgg_small,
        {"width": 4, "head": "conv"},
        (3, 16, 16),
        10,
        conv(3, 4, 3) + conv(4, 8, 3) + conv(8, 16, 3) + conv(16, 32, 3) + 32 * 10,
    ),
    "vgg16": (vgg16, {}, (3, 32, 32), 10, 14_728_266),
    "vgg16-conv": (
        vgg16,
        {"channels": 1, "classes": 4, "width": 2, "head": "conv"},
        (1, 64, 64),
        4,
        vgg(1, 4, 2),
    ),
    "vgg16-plain": (
        vgg16,
        {"width": 4, "batch_norm": False},
        (3, 32, 32),
        10,
        vgg(3, 10, 4, batch_norm=False),
    ),
    "densenet121": (densenet121, {}, (3, 8, 8), 10, 6_956_298),
    "densenet121-conv": (densenet121, {"head": "conv"}, (3, 8, 8), 10, 6_956_298),
    "densenet121-options": (
        densenet121,
        {"channels": 1, "classes": 3, "growth": 3, "blocks": (2, 1, 3)},
        (1, 9, 9),
        3,
        densenet(1, 3, 3, (2, 1, 3)),
    ),
    "densenet121-one-block": (
        densenet121,
        {"growth": 2, "blocks": 2},
        (3, 4, 4),
        10,
        densenet(3, 10, 2, (2,)),
    ),
    "vit_small": (
        vit_small,
        {},
        (3, 32, 32),
        10,
        conv(3, 192, 4) + (1 + 65) * 192 + encoder(192, 6) + dense(192, 10),
    ),
    "vit_small-options": (
        vit_small,
        {"channels": 1, "classes": 3, "size": 8, "patch": 2, "width": 6, "depth": 1, "heads": 2}
        | {"pooling": "mean", "activation": "relu"},
        (1, 8, 8),
        3,
        conv(1, 6, 2) + 16 * 6 + encoder(6, 1) + dense(6, 3),
    ),
    "digits_cnn": (
        digits_cnn,
        {},
        (1, 8, 8),
        10,
        conv(1, 16, 3) + conv(16, 32, 3) + conv(32, 10, 3),
    ),
    "digits_cnn-options": (
        digits_cnn,
        {"classes": 4, "width": 3},
        (1, 8, 8),
        4,
        conv(1, 3, 3) + conv(3, 6, 3) + conv(6, 4, 3),
    ),
}


def test_hand_counts_are_the_published_ones():
    assert resnet(3, 10, 64) == 11_173_962
    assert vgg(3, 10, 64) == 14_728_266
    assert densenet(3, 10, 32, (6, 12, 24, 16)) == 6_956_298


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_shapes_and_parameter_counts(case, generator):
    make, options, image, outputs, parameters = CASES[case]
    model = make(**options).eval()
    assert model(torch.randn(2, *image, generator=generator)).shape == (2, outputs)
    assert count(model) == parameters


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_every_parameter_gets_a_gradient(case, generator):
    make, options, image, _, _ = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(**options).eval()  # in train mode a bias before BatchNorm does nothing
    model(torch.randn(3, *image, generator=generator)).square().sum().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_done_in_place(case):
    make, options, *_ = CASES[case]
    assert [m for m in make(**options).modules() if getattr(m, "inplace", False)] == []


def test_in_place_modules_would_be_noticed():
    # Meta-test of the one above.
    model = nn.Sequential(nn.ReLU(inplace=True))
    assert [m for m in model.modules() if getattr(m, "inplace", False)] != []


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_mlp_uses_the_activation_asked_for(activation):
    model = mlp(2, hidden=(3,), activation=activation)
    x = torch.tensor([[0.3, -2.0]])
    hidden = getattr(torch.nn.functional, activation)(model.fc1(x))
    assert torch.equal(model(x), model.head(hidden))


def test_resnet_block_adds_its_shortcut(generator):
    model = resnet18(width=4).double().eval()
    x = torch.randn(1, 4, 8, 8, generator=generator, dtype=torch.float64)
    first, second = model.layer1[0], model.layer2[0]
    for conv_bn in (first.bn2, second.bn2):
        nn.init.zeros_(conv_bn.weight)
    assert torch.equal(first(x), x.relu())
    assert torch.equal(second(x), second.shortcut(x).relu())


def test_dense_layer_keeps_its_input_and_adds_channels(generator):
    layer = densenet121(growth=2, blocks=(1,)).block1.layer1.double().eval()
    x = torch.randn(2, 4, 5, 5, generator=generator, dtype=torch.float64)
    scale = 1 / math.sqrt(1 + layer.bn1.eps)  # BatchNorm as it starts
    hidden = F.conv2d((x * scale).relu(), layer.conv1.weight)
    added = F.conv2d((hidden * scale).relu(), layer.conv2.weight, padding=1)
    torch.testing.assert_close(layer(x), torch.cat([x, added], 1), rtol=1e-12, atol=1e-12)


def test_densenet_halves_channels_and_image_between_blocks(generator):
    model = densenet121(growth=2, blocks=(3, 1)).eval()
    x = model.block1(model.conv1(torch.randn(1, 3, 8, 8, generator=generator)))
    assert x.shape == (1, 10, 8, 8)
    assert model.transition1(x).shape == (1, 5, 4, 4)


def test_signal_survives_thirteen_layers_without_batch_norm(generator):
    x = torch.randn(8, 3, 32, 32, generator=generator)
    maps = []
    model = build("vgg16", seed=0, width=16, batch_norm=False)
    model.pool5.register_forward_hook(lambda module, args, out: maps.append(out))
    model(x)
    assert 0.1 < maps[0].std() < 10


@pytest.mark.parametrize("size", [1, 8, 11])
def test_lenet_refuses_small_images(size):
    message = rf"'size' argument of lenet5 must be at least 12.* Got {size}\. .*digits_cnn"
    with pytest.raises(SpiritlevelError, match=message):
        lenet5(size=size)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (mlp, {"inputs": 0}, r"'inputs' argument of mlp .* at least 1\. Got 0\."),
        (mlp, {"hidden": (4, -2)}, r"'hidden' argument of mlp .* Got -2\."),
        (mlp, {"outputs": 2.5}, r"'outputs' argument of mlp .* Got 2\.5\."),
        (mlp, {"activation": "swish"}, r"one of 'relu', 'gelu', 'tanh'\. Got 'swish'\."),
        (lenet5, {"channels": True}, r"'channels' argument of lenet5 .* Got True\."),
        (vgg_small, {"width": -64}, r"'width' argument of vgg_small .* Got -64\."),
        (resnet18, {"classes": 0}, r"'classes' argument of resnet18 .* Got 0\."),
        (resnet18, {"head": "mlp"}, r"must be 'linear' or 'conv'\. Got 'mlp'\."),
        (mlp, {"hidden": 2.5}, r"'hidden' argument of mlp .* Got 2\.5\."),
        (vgg_small, {"head": "cnv"}, r"'head' argument of vgg_small must .* Got 'cnv'\."),
        (vgg16, {"width": 0}, r"'width' argument of vgg16 .* Got 0\."),
        (vgg16, {"head": None}, r"'head' argument of vgg16 must .* Got None\."),
        (vgg16, {"batch_norm": 1}, r"'batch_norm' argument of vgg16 must be True or .* Got 1\."),
        (densenet121, {"growth": -1}, r"'growth' argument of densenet121 .* Got -1\."),
        (densenet121, {"blocks": (6, 0)}, r"'blocks' argument of densenet121 .* Got 0\."),
        (densenet121, {"blocks": "6,12"}, r"'blocks' argument of densenet121 .* Got '6,12'\."),
        (densenet121, {"blocks": ()}, r"'blocks' argument of densenet121 .* one entry.* Got \(\)"),
        (densenet121, {"head": "mlp"}, r"'head' argument of densenet121 must .* Got 'mlp'\."),
        (digits_cnn, {"width": "16"}, r"'width' argument of digits_cnn .* Got '16'\."),
    ],
)
def test_bad_options_are_named(make, options, message):
    with pytest.raises(SpiritlevelError, match=message):
        make(**options)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", names())
def test_every_name_builds(name):
    assert isinstance(build(name), nn.Module)


@pytest.mark.parametrize("name", names())
def test_seed_decides_the_weights(name):
    first, again, other = (build(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
