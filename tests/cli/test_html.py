"""`--html` writes a page of what the command found, and nothing where it cannot."""

import json
import re
import sys

import pytest
import torch

from command_line import run
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build

pytestmark = pytest.mark.sampled(2)  # the others at night

pytest.importorskip("plotly")
SMALL = ("--model", "mlp", "--model-arg", "hidden=6", "--samples", "30")
MEASURES = ("--measures", "curvature.trace", "--measures", "neuron.rho_sum")
HOSTILE = "<svg onload>"  # no "=": on this command line it ends a name


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(build("mlp", seed=1, hidden=6).state_dict(), path)
    return path


def page(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?https?:", text)
    return text


@pytest.mark.parametrize(
    ("command", "more", "shown"),
    [
        ("measure", MEASURES, "curvature.trace"),
        ("audit", MEASURES, "layer_rescale"),
        ("spectrum", ("--num", "1", "--vectors", "1", "--steps", "5"), "density"),
        ("landscape", ("--points", "3"), "random direction"),
        ("landscape", ("--points", "3", "--dimensions", "2"), "random direction 2"),
        ("quantize", ("--bits", "2,4", "--mean-bits", "3"), "bits per weight"),
        ("prune", ("--share", "0.3"), "by magnitude"),
    ],
)
def test_a_command_writes_its_page(command, more, shown, tmp_path):
    path = tmp_path / "new" / "page.html"
    out = run(command, *SMALL, *more, "--html", path).stdout
    assert f"written: {path}" in out.replace("\n", "")
    assert shown in page(path)


def test_names_are_text_on_the_page(checkpoint, tmp_path):
    path = tmp_path / "page.html"
    networks = (f"first={checkpoint}", f"{HOSTILE}={checkpoint}")
    run("compare", *networks, *SMALL, *MEASURES, "--no-match", "--html", path)
    text = page(path)
    assert HOSTILE not in text
    assert "&lt;svg onload&gt;" in text


def test_a_page_that_cannot_be_made_is_refused_before_measuring(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    result = run("measure", *SMALL, "--html", tmp_path / "page.html", code=1)
    assert result.stdout == ""
    expected = "error: An HTML page needs plotly: pip install 'spiritlevel[report]'\n"
    assert result.stderr == expected


def test_page_and_json_say_what_was_measured(checkpoint, tmp_path):
    html, json_path = tmp_path / "page.html", tmp_path / "measured.json"
    written = ("--measures", "head.kappa", "--html", html, "--json", json_path)
    run("measure", *SMALL, "--checkpoint", checkpoint, *written)
    subject = json.loads(json_path.read_text())["settings"]["subject"]
    x, y = digits("train")
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:30].sort().values
    model = build("mlp", seed=1, hidden=6).eval()
    outputs = model(x[chosen]).detach()
    assert subject.pop("mean_loss") == pytest.approx(
        float(torch.nn.functional.cross_entropy(outputs, y[chosen])), rel=1e-5
    )
    assert subject.pop("accuracy") == pytest.approx(
        float((outputs.argmax(dim=1) == y[chosen]).double().mean())
    )
    assert subject == {
        "model": "mlp",
        "model_arguments": ["hidden=6"],
        "checkpoint": str(checkpoint),
        "trained": True,
        "data": "30 of 1297 samples of digits (train), drawn with seed 0",
    }
    assert "net.pt" in page(html)
    assert "is not trained" not in page(html)


@pytest.mark.parametrize("command", ["measure", "audit"])
def test_an_untrained_network_says_so_on_its_page(command, tmp_path):
    html = tmp_path / "page.html"
    run(command, *SMALL, "--measures", "head.kappa", "--html", html)
    assert "This network is not trained" in page(html)
