"""The models as the library sees them: measured, hooked, stacked, and from the command line."""

import json

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli.app import app
from spiritlevel.study.models import build
from spiritlevel.symmetries import find_moves
from spiritlevel.testing.references import Truth

pytestmark = pytest.mark.sampled(3)  # the others at night

# name, options, shape of one image
PIECEWISE_LINEAR = {
    "resnet18-conv": ("resnet18", {"width": 1, "head": "conv"}, (1, 4, 4)),
    "vgg_small-conv": ("vgg_small", {"width": 1, "head": "conv"}, (1, 16, 16)),
    "vgg16": ("vgg16", {"width": 1}, (1, 32, 32)),
    "vgg16-plain-conv": ("vgg16", {"width": 1, "batch_norm": False, "head": "conv"}, (1, 32, 32)),
    "densenet121": ("densenet121", {"growth": 1, "blocks": (2, 2)}, (1, 6, 6)),
    "densenet121-conv": (
        "densenet121",
        {"growth": 1, "blocks": (2, 2), "head": "conv"},
        (1, 6, 6),
    ),
}
SMOOTH = {
    "vit_small": {"channels": 1, "size": 4, "patch": 2, "width": 4, "depth": 1, "heads": 2},
    "text_transformer": {"vocabulary": 6, "length": 4, "width": 4, "depth": 1, "heads": 2},
}
CASES = [*PIECEWISE_LINEAR, *SMOOTH]


def prepared(case: str, generator: torch.Generator) -> tuple[nn.Module, Tensor, Tensor]:
    """A narrow network whose norms do something, in float64 and eval mode, with five samples."""
    if case in SMOOTH:
        name, options, shape = case, SMOOTH[case], (1, 4, 4)
    else:
        name, options, shape = PIECEWISE_LINEAR[case]
        options = {"channels": 1, **options}
    model = build(name, seed=0, classes=3, **options).double().eval()
    with torch.no_grad():
        for key, tensor in (*model.named_buffers(), *model.named_parameters()):
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            if key.endswith("running_var"):
                tensor.copy_(0.5 + noise)
            elif key.endswith("running_mean") or "bias" in key:
                tensor.add_(noise - 0.3)
    x = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    if case == "text_transformer":
        x = torch.tensor([[1, 2, 3, 0], [4, 4, 1, 5], [5, 0, 0, 0], [2, 3, 2, 0], [1, 5, 5, 4]])
    return model, x, torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("case", PIECEWISE_LINEAR)
def test_relu_networks_are_measured_exactly(case, generator):
    model, x, y = prepared(case, generator)
    report = sl.measure(model, (x, y))
    assert all(measurement.exact for measurement in report.values())
    truth = Truth(model, [(x, y)], F.cross_entropy)
    trace = truth.ggn(list(truth.parameters)).diagonal().sum()
    assert trace > 0.1
    assert report["curvature.trace"].value == pytest.approx(float(trace), rel=1e-9)
    # The Hessian itself, where it is small enough to be written down.
    layers = [name for name, keys in truth.layers().items() if name == "head" or "conv" in name]
    for layer in (layers[0], layers[1], "head"):
        block = truth.hessian(truth.layers()[layer]).diagonal().sum()
        measured = report.layers["curvature.trace"][layer].value
        assert measured == pytest.approx(float(block), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", SMOOTH)
def test_transformers_are_measured(case, generator):
    model, x, y = prepared(case, generator)
    report = sl.measure(
        model, (x, y), measures=["curvature.trace", "curvature.ggn_trace", "head.*"]
    )
    truth = Truth(model, [(x, y)], F.cross_entropy)
    everything = list(truth.parameters)
    ggn, head = truth.ggn(everything), truth.hessian(["head.weight"])
    assert report["curvature.ggn_trace"].value == pytest.approx(float(ggn.trace()), rel=1e-9)
    assert report["head.trace"].exact
    assert report["head.trace"].value == pytest.approx(float(head.trace()), rel=1e-9)
    trace = report["curvature.trace"]
    assert trace.stderr > 0
    assert abs(trace.value - float(truth.hessian(everything).trace())) < 4 * trace.stderr


@pytest.mark.parametrize("case", SMOOTH)
def test_no_layer_of_a_transformer_is_slow(case, generator):
    model, x, y = prepared(case, generator)
    assert sl.preflight(model, (x, y)).slow_parameters == ()


@pytest.mark.parametrize("case", SMOOTH)
def test_symmetries_of_the_attention_are_found(case, generator):
    model, x, _ = prepared(case, generator)

    def run(moved: nn.Module) -> Tensor:
        return moved(x.to(moved.head.weight.dtype) if x.is_floating_point() else x)

    moves = find_moves(model, run, generator=generator).moves
    touched = {
        name: {site.module for group in move.groups for site in group.sites}
        for name, move in moves.items()
    }
    assert touched["attention_rescale"] == {"blocks.0.attention.value", "blocks.0.attention.out"}
    norms_and_readers = {
        *("blocks.0.norm1", "blocks.0.attention.query", "blocks.0.attention.key"),
        *("blocks.0.norm2", "blocks.0.fc1", "norm", "head"),
    }
    assert norms_and_readers <= touched["neuron_rescale"]
    # The residual stream is permuted from the embeddings to the head, in one piece.
    stream = {"positions", "patches" if case == "vit_small" else "tokens", "blocks.0.fc2", "head"}
    assert stream <= touched["unit_permute"]


def test_texts_as_pairs_as_dicts_and_as_ragged_batches_give_one_result(generator):
    model, tokens, y = prepared("text_transformer", generator)
    asked = {"measures": ["curvature.ggn_trace", "head.kappa", "relative.kappa"], "layers": "head"}
    mask = (tokens != 0).long()
    ragged = [({"input_ids": tokens[:1, :3]}, y[:1]), (tokens[1:], y[1:])]
    named = [{"input_ids": tokens, "attention_mask": mask, "labels": y}]
    expected = sl.measure(model, (tokens, y), **asked)
    for loader in (named, ragged):
        report = sl.measure(model, loader, **asked)
        for name, measurement in expected.items():
            assert report[name].value == pytest.approx(measurement.value, rel=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_every_layer_runs_once_and_its_output_stays_as_it_was(case, generator):
    model, x, _ = prepared(case, generator)
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, module in model.named_modules():
        if not list(module.children()) and not isinstance(module, nn.Sequential):

            def note(module, args, out, name=name):
                seen.setdefault(name, []).append((out, out.clone()))

            module.register_forward_hook(note)
    model(x)
    assert "head" in seen
    assert {name: len(calls) for name, calls in seen.items()} == dict.fromkeys(seen, 1)
    assert all(torch.equal(*calls[0]) for calls in seen.values())


@pytest.mark.parametrize("case", CASES)
def test_several_networks_run_at_once_under_vmap(case, generator):
    model, x, _ = prepared(case, generator)
    state = {key: p.detach() for key, p in model.named_parameters()}
    stacked = {key: torch.stack([p, 1.1 * p]) for key, p in state.items()}
    call = torch.func.functional_call
    with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for vmap
        together = torch.func.vmap(lambda w: call(model, w, (x,)))(stacked)
    for i in range(2):
        alone = call(model, {key: p[i] for key, p in stacked.items()}, (x,))
        torch.testing.assert_close(together[i], alone, rtol=1e-10, atol=1e-12)


VIT = ["channels=1", "size=8", "patch=4", "width=8", "depth=1", "heads=2", "pooling=mean"]


def test_measure_from_the_command_line_takes_images():
    options = [word for option in VIT for word in ("--model-arg", option)]
    args = ["measure", "--model", "vit_small", *options, "--samples", "20", "--measures", "head.*"]
    result = CliRunner().invoke(app, [*args, "--json", "-"])
    assert result.exit_code == 0, result.output
    assert "model: vit_small" in result.stderr
    assert "head.trace" in json.dumps(json.loads(result.stdout))


def test_measure_from_the_command_line_takes_texts(tmp_path):
    path = str(tmp_path / "texts.npz")
    x = numpy.arange(24).reshape(6, 4) % 7
    numpy.savez(path, x=x, y=numpy.arange(6) % 2)
    args = ["measure", "--model", "text_transformer", "--data", path, "--dtype", "float64"]
    result = CliRunner().invoke(app, [*args, "--measures", "head.trace", "--json", "-"])
    assert result.exit_code == 0, result.output
    model = build("text_transformer", seed=0).double().eval()
    expected = sl.measure(model, (torch.tensor(x), torch.arange(6) % 2), measures="head.trace")
    assert repr(expected["head.trace"].value)[:10] in result.stdout
