"""The script that runs every quick preset: what it fetches, what it says when one fails."""

import importlib.util
import pathlib
import sys

import pytest

from publishing.public_data import data_to_fetch
from spiritlevel_lab.population import control, registry

SCRIPT = pathlib.Path(__file__).parents[3] / "experiments" / "nightly.py"


@pytest.fixture(scope="module")
def nightly():
    spec = importlib.util.spec_from_file_location("nightly", SCRIPT)
    module = sys.modules["nightly"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", registry.study_names())
def test_every_study_has_a_quick_preset(name):
    assert "quick" in control.find(name).presets


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("001-fig-3", {"data.name": "cifar10"}),
        ("000-fig-7", {"task.pretrain": "mnist"}),
        ("000-table-4", {}),
    ],
)
def test_data_that_must_be_fetched(name, needed):
    assert data_to_fetch(control.find(name).with_preset("quick")) == needed


def test_one_that_fails_and_one_that_takes_too_long(nightly, tmp_path, monkeypatch):
    found = nightly.night("001-fig-3", tmp_path / "a", {"cifar10": str(tmp_path / "none.npz")})
    assert "none.npz" in found.error
    monkeypatch.setattr(nightly, "LIMIT", 0.5)
    found = nightly.night("000-table-4", tmp_path / "b", {})
    assert found.error == "not finished after 0.5 seconds"
    assert found.name in nightly.line_of(found)
