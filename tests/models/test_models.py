import itertools

import pytest
import torch
from torch import nn

from spiritlevel._core import SpiritlevelError
from spiritlevel.models import build, digits_cnn, lenet5, mlp, names, resnet18, vgg_small


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


def test_hand_count_of_the_resnet_is_the_published_one():
    assert resnet(3, 10, 64) == 11_173_962


@pytest.mark.parametrize("case", CASES)
def test_shapes_and_parameter_counts(case, generator):
    make, options, image, outputs, parameters = CASES[case]
    model = make(**options).eval()
    assert model(torch.randn(2, *image, generator=generator)).shape == (2, outputs)
    assert count(model) == parameters


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_gets_a_gradient(case, generator):
    make, options, image, _, _ = CASES[case]
    model = make(**options)
    model(torch.randn(3, *image, generator=generator)).square().sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None]
    assert silent == []


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


def test_conv_and_linear_head_are_the_same_function(generator):
    linear = resnet18(width=4).double().eval()
    conv_head = resnet18(width=4, head="conv").double().eval()
    state = linear.state_dict()
    state["head.weight"] = state["head.weight"][:, :, None, None]
    conv_head.load_state_dict(state)
    x = torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(conv_head(x), linear(x), rtol=1e-12, atol=1e-12)


def test_resnet_block_adds_its_shortcut(generator):
    model = resnet18(width=4).double().eval()
    x = torch.randn(1, 4, 8, 8, generator=generator, dtype=torch.float64)
    first, second = model.layer1[0], model.layer2[0]
    for conv_bn in (first.bn2, second.bn2):
        nn.init.zeros_(conv_bn.weight)
    assert torch.equal(first(x), x.relu())
    assert torch.equal(second(x), second.shortcut(x).relu())


@pytest.mark.parametrize("case", ["digits_cnn", "resnet18-conv"])
def test_output_is_the_average_of_the_head_over_the_image(case, generator):
    make, options, image, _, _ = CASES[case]
    model = make(**options).double().eval()
    maps = []
    model.head.register_forward_hook(lambda module, args, out: maps.append(out))
    x = torch.randn(2, *image, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(model(x), maps[0].mean(dim=(2, 3)), rtol=1e-12, atol=1e-14)


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
        (digits_cnn, {"width": "16"}, r"'width' argument of digits_cnn .* Got '16'\."),
    ],
)
def test_bad_options_are_named(make, options, message):
    with pytest.raises(SpiritlevelError, match=message):
        make(**options)


@pytest.mark.parametrize("name", names())
def test_every_name_builds(name):
    assert isinstance(build(name), nn.Module)
