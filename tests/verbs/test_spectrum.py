"""`spiritlevel spectrum` and the picture of a density."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli.app import app
from spiritlevel.engine.weight_space.density import SpectralDensity
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build
from spiritlevel.pages import figures as plots
from spiritlevel.verbs import reference_problems as problems

pytestmark = pytest.mark.sampled(2)  # the others at night

SMALL = ["--model", "mlp", "--model-arg", "hidden=8", "--samples", "60", "--dtype", "float64"]


def run(*arguments):
    return CliRunner().invoke(app, ["spectrum", *arguments])


def test_it_shows_what_the_library_finds(tmp_path):
    out, picture = tmp_path / "found.json", tmp_path / "density.svg"
    done = run(*SMALL, "--num", "2", "--steps", "5", "--json", str(out), "--plot", str(picture))
    assert done.exit_code == 0, done.stderr
    found = json.loads(out.read_text())
    x, y = digits("train")
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(x), generator=generator)[:60].sort().values
    model = build("mlp", seed=0, hidden=8).double().eval()
    data = (x[chosen].double(), y[chosen])
    again = sl.eigenvalues(model, data, num=2, which="both")
    assert found["eigenvalues"]["values"] == pytest.approx(again.values, rel=1e-9)
    assert found["eigenvalues"]["settings"]["num_samples"] == 60
    assert len(found["density"]["nodes"][0]) == 5
    table = done.stdout.partition("converged")[2].replace("−", "-")
    rows = [line.split()[:2] for line in table.splitlines() if line.endswith("yes")]
    for row, value in zip(rows, sorted(again.values, reverse=True), strict=True):
        shown, error = map(float, row)
        # two digits of the error, and six of the value at most
        assert abs(shown - value) <= max(0.05 * error, 1e-6 * abs(value))
    assert picture.read_text().lstrip().startswith("<?xml")


def test_json_on_stdout_is_nothing_else():
    done = run(*SMALL, "--num", "1", "--json", "-")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["eigenvalues"]["converged"] == [True, True]


def test_what_did_not_converge_is_said():
    done = run(*SMALL, "--num", "1", "--max-passes", "2")
    assert done.exit_code == 0
    shown = " ".join(done.stdout.split())
    assert re.findall(r"\b(yes|no)\b", shown) == ["no", "no"]
    assert "Raise max_passes" in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--plot", "density.bmp"], "have one of the endings .png, .svg, .pdf. Got 'density.bmp'"),
        (["--matrix", "fisher"], "must be one of hessian, ggn. Got 'fisher'"),
        (["--layers", "fc9"], "Nothing matches 'fc9'"),
    ],
)
def test_errors_are_one_line(arguments, text):
    done = run(*SMALL, *arguments)
    assert done.exit_code == (2 if done.stderr.startswith("error: Invalid value") else 1)
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_picture_shows_the_curve_and_the_eigenvalues():
    nodes = torch.tensor([[0.0, 1.0, 5.0]]).double()
    weights = torch.tensor([[0.8, 0.15, 0.05]]).double()
    density = SpectralDensity(nodes, weights, size=20)
    ax = plots.density(density, [5.0, -0.1])
    curve, ticks = ax.get_lines()
    grid, height = density.curve(4000)
    top = int(height.argmax())
    assert curve.get_xdata()[top] == pytest.approx(float(grid[top]))
    assert curve.get_ydata()[top] == pytest.approx(float(height[top]))
    assert list(ticks.get_xdata()) == [5.0, -0.1]
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("eigenvalue", "density")
    plots.save(ax.figure, "png")


def test_a_single_eigenvector_by_parameter():
    x, y = digits("train")
    model = build("mlp", seed=0, hidden=4).double().eval()
    data = (x[:20].double(), y[:20])
    found = sl.eigenvalues(model, data)
    vector = found.vector()
    assert {n: v.numel() for n, v in vector.items()} == {
        n: p.numel() for n, p in model.named_parameters()
    }
    # ⟨v, Hv⟩ by a difference of gradients along v: 1e-5 is what such a difference is good for
    step = 1e-5

    def gradient(sign):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter += sign * step * vector[name].view_as(parameter)
        loss = torch.nn.functional.cross_entropy(model(data[0]), data[1])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])

    ahead = gradient(1.0)
    behind = gradient(-2.0)
    flat = torch.cat(list(vector.values()))
    assert float(flat @ (ahead - behind)) / (2 * step) == pytest.approx(found.values[0], rel=1e-5)


def test_a_start_for_other_parameters_is_refused():
    x, y = digits("train")
    model = build("mlp", seed=0, hidden=4).eval()
    found = sl.eigenvalues(model, (x[:9], y[:9]), layers="fc1")
    with pytest.raises(sl.SpiritlevelError, match=r"same parameters\. It has 260 entries"):
        sl.eigenvalues(model, (x[:9], y[:9]), start=found)


def test_both_ends_come_from_the_same_products():
    problem = problems.relu_mlp()
    names = ["curvature.lambda_max", "curvature.lambda_min"]
    both = sl.measure(problem.model, problem.data, measures=names)
    alone = {name: sl.measure(problem.model, problem.data, measures=name) for name in names}
    for name in names:
        assert both[name].value == pytest.approx(alone[name][name].value, rel=1e-6)
    separately = sum(report.cost.products for report in alone.values())
    assert both.cost.products < 0.8 * separately
