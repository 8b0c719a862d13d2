"""`spiritlevel quantize` and `spiritlevel prune`: tables, files, and refusals before work."""

import json
import re

import pytest
import torch

from command_line import run
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.inputs.models import build
from spiritlevel.results import Quantization
from spiritlevel.verbs.pruning import measuring

pytestmark = pytest.mark.sampled(2)  # the others at night

SMALL = ("--model", "mlp", "--model-arg", "hidden=8", "--samples", "40")


def test_quantize_writes_what_was_asked_for(tmp_path):
    paths = {name: tmp_path / name for name in ("bits.json", "bits.png", "rounded.safetensors")}
    shown = run(
        *("quantize", *SMALL, "--bits", "2,4", "--mean-bits", "3"),
        *("--json", paths["bits.json"], "--plot", paths["bits.png"]),
        *("--save", paths["rounded.safetensors"]),
    ).stdout
    assert "Chosen:" in shown
    assert "measured" in shown
    found = Quantization.from_json(paths["bits.json"].read_text("utf-8"))
    assert found.chosen.mean_bits <= 3.0
    assert paths["bits.png"].read_bytes().startswith(b"\x89PNG")
    model = build("mlp", seed=0, hidden=8)
    rounded = build("mlp", seed=1, hidden=8)
    load_checkpoint(rounded, paths["rounded.safetensors"])
    expected = found.apply(model, found.chosen)
    for name, parameter in rounded.named_parameters():
        torch.testing.assert_close(parameter, dict(expected.named_parameters())[name])


def test_prune_writes_what_was_asked_for(tmp_path):
    paths = {name: tmp_path / name for name in ("units.json", "units.svg", "pruned.safetensors")}
    shown = run(
        *("prune", *SMALL, "--share", "0.4", "--by", "fisher"),
        *("--json", paths["units.json"], "--plot", paths["units.svg"]),
        *("--save", paths["pruned.safetensors"]),
    ).stdout
    assert "by magnitude" in shown
    assert "Chosen:" in shown
    data = json.loads(paths["units.json"].read_text("utf-8"))
    assert data["chosen"]["by"] == "fisher"
    assert paths["units.svg"].read_text("utf-8").lstrip().startswith("<?xml")
    pruned = build("mlp", seed=1, hidden=8)
    load_checkpoint(pruned, paths["pruned.safetensors"])
    weights = dict(pruned.named_parameters())
    for name, gone in data["chosen"]["units"].items():
        assert not weights[name][:, gone].any()
    assert any(data["chosen"]["units"].values())


def test_prune_tells_the_error_of_probes(monkeypatch):
    monkeypatch.setattr(measuring, "MOST_COLUMNS", 3)
    shown = run("prune", *SMALL, "--num-probes", "6", "--share", "0.4").output
    told = " ".join(shown.split())  # lines are broken at 80 columns
    assert re.search(r"head\.weight +8 .*ggn ±\d+%", shown)
    assert re.search(r"predicted loss increase \S+ ± ", told)
    assert "from 6 random probes per sample" in told


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("quantize", "--mean-bits", "1"), "must be at least 2"),
        (("quantize", "--bytes", "10"), "'bytes' must be at least"),
    ],
)
def test_budgets_that_cannot_be_met(args, words):
    result = run(args[0], *SMALL, *args[1:], code=1)
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("quantize", "--bits", "two"), "whole numbers with commas"),
        (("quantize", "--scheme", "rows"), "per_tensor, per_channel, per_group. Got 'rows'"),
        (("quantize", "--save", "x.safetensors"), "needs a budget"),
        (("quantize", "--plot", "bits.gif"), ".png, .svg, .pdf"),
        (("prune", "--share", "2"), "between 0 and 1"),
        (("prune", "--share", "0.3", "--by", "size"), "Got 'size'"),
        (("prune", "--save", "x.safetensors"), "needs a --share"),
    ],
)
def test_refusals(args, words):
    result = run(args[0], *SMALL, *args[1:], code=2)
    assert words in " ".join(result.stderr.split())
