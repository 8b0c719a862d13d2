"""Convolutions as products are torch's convolutions, alone and in a stack."""

import copy

import pytest
import torch
from torch import nn

from population.executors.test_vmap import assert_same, training
from population.tiny_study import tiny
from spiritlevel.inputs.models import build
from spiritlevel_lab.population.runs import stacked
from spiritlevel_lab.population.runs.stacked_convolutions import (
    PatchConv2d,
    RowConv2d,
    patch_numbers,
    suits,
    use_products,
)

CASES = {
    "plain": {"kernel_size": 5},
    "border": {"kernel_size": 3, "padding": 1},
    "stride": {"kernel_size": (3, 2), "stride": (2, 3), "padding": (0, 1), "bias": False},
}


@pytest.mark.parametrize("options", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize(("channels", "way"), [(4, RowConv2d), (17, PatchConv2d)])
def test_output_and_gradients_are_those_of_torch(options, channels, way):
    torch.manual_seed(0)
    own = nn.Conv2d(3, channels, **options).double()
    patches = use_products(copy.deepcopy(own))
    assert isinstance(patches, way)
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    found, wanted = patches(x), own(x)
    torch.testing.assert_close(found, wanted)
    seed = torch.randn_like(wanted)
    for a, b in zip(
        torch.autograd.grad(found, [x, *patches.parameters()], seed),
        torch.autograd.grad(wanted, [x, *own.parameters()], seed),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(1, 1, 3, dilation=2),
        nn.Conv2d(1, 1, 3, padding="same"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(1, 65, 3),
        nn.Conv1d(1, 1, 3),
        nn.Linear(2, 2),
    ],
    ids=str,
)
def test_others_stay_as_they_are(layer):
    assert not suits(layer)
    assert type(use_products(layer)) in (nn.Conv2d, nn.Conv1d, nn.Linear)


def test_patches_of_one_image_are_counted():
    layer = nn.Conv2d(3, 6, 5)
    assert patch_numbers(layer, layer(torch.zeros(1, 3, 32, 32))) == 28 * 28 * 3 * 25
    model, x = build("lenet5", channels=3, size=32), torch.zeros(1, 3, 32, 32)
    without = stacked._bytes_a_sample(model, x, patches=False)
    with_patches = stacked._bytes_a_sample(model, x, patches=True)
    assert with_patches - without == 4 * (28 * 28 * 3 * 25 + 10 * 10 * 6 * 25)


def test_the_first_one_can_stay_as_it_is():
    model = use_products(build("lenet5"), first=False)
    assert type(model.conv1) is nn.Conv2d
    assert isinstance(model.conv2, RowConv2d)


def test_networks_trained_together_as_products_are_those_trained_alone(tmp_path, monkeypatch):
    made = []

    def as_products(base):  # as on a GPU
        made.append(use_products(copy.deepcopy(base)))
        return plain(made[-1])

    plain = stacked._forward
    monkeypatch.setattr(stacked, "_forward", as_products)
    study = tiny(
        model={"name": "digits_cnn", "width": 3}, training=training(), grid={"lr": [0.1]}, seeds=3
    )
    assert_same(study, tmp_path, rtol=1e-8)
    assert any(isinstance(module, RowConv2d) for module in made[0].modules())
