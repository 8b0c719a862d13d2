"""The 1×1-convolution head beside the linear one."""

import pytest
import torch
from torch import nn

from spiritlevel.inputs.models import build, digits_cnn, vgg_small

# options for a narrow network, and the size of its images
NARROW = {
    "resnet18": ({"width": 4}, 16),
    "vgg16": ({"width": 4}, 64),
    "densenet121": ({"growth": 3, "blocks": (2, 2)}, 8),
}


def images(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", NARROW)
def test_both_heads_are_the_same_function_with_the_same_weights(name, generator):
    options, size = NARROW[name]
    linear = build(name, seed=0, **options).double().eval()
    conv = build(name, seed=1, head="conv", **options).double().eval()
    state = linear.state_dict()
    state["head.weight"] = state["head.weight"][:, :, None, None]
    x = images(size, generator)
    assert not torch.allclose(conv(x), linear(x), rtol=1e-3)
    conv.load_state_dict(state)
    torch.testing.assert_close(conv(x), linear(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NARROW)
def test_a_seed_draws_the_same_function_with_either_head(name, generator):
    options, size = NARROW[name]
    linear, conv = (
        build(name, seed=5, head=head, **options).double().eval() for head in ("linear", "conv")
    )
    x = images(size, generator)
    torch.testing.assert_close(conv(x), linear(x), rtol=1e-12, atol=1e-12)


def test_vgg_small_linear_head_has_a_copy_of_the_weights_for_each_quarter(generator):
    linear = vgg_small(width=4).double().eval()
    conv = vgg_small(width=4, head="conv").double().eval()
    state = conv.state_dict()
    assert "head.bias" not in state
    state["head.weight"] = (state["head.weight"] / 4).expand(-1, -1, 2, 2).flatten(1)
    linear.load_state_dict(state)
    x = images(64, generator)
    torch.testing.assert_close(conv(x), linear(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*NARROW, "vgg_small", "digits_cnn"])
def test_output_is_the_average_of_the_head_over_the_image(name, generator):
    if name == "digits_cnn":
        model, x = digits_cnn(), images(8, generator)[:, :1]
    else:
        options, size = NARROW.get(name, ({"width": 4}, 64))
        model, x = build(name, head="conv", **options), images(size, generator)
    model = model.double().eval()
    maps: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda module, args, out: maps.append(out))
    scores = model(x)
    assert isinstance(model.head, nn.Conv2d)
    assert maps[0].shape[2] > 1
    torch.testing.assert_close(scores, maps[0].mean(dim=(2, 3)), rtol=1e-12, atol=1e-14)
