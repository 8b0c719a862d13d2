"""The command line: what it prints, where, and how it refuses."""

import json
import pathlib
import re
import sys
import textwrap

import numpy
import pytest
import torch

import spiritlevel as sl
from command_line import run
from spiritlevel.cli import cards, inputs
from spiritlevel.inputs.checkpoints import save_checkpoint
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.data.loading import load_samples
from spiritlevel.inputs.models import build, mlp
from spiritlevel.symmetries import SYMMETRIES
from spiritlevel.verbs import measuring as api

pytestmark = pytest.mark.sampled(4)  # the others at night

ROOT = pathlib.Path(__file__).parents[2]
FEW = ["--samples", "40"]


def refusal(*args: str, code: int = 1) -> str:
    """The one line on stderr of a command that must fail, without 'error: '."""
    result = run(*args, code=code)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.output
    return lines[0].removeprefix("error: ")


# -- list and show ---------------------------------------------------------------------------


def test_list_names_every_measure_with_cost_and_invariances():
    words = " ".join(run("list").stdout.split())
    for card in api.cards():
        assert f"{card.name} {card.summary}" in words
    assert words.count("cost: ") == words.count("unchanged by: ") == len(api.cards())


def test_list_takes_a_pattern():
    names = re.findall(r"^(\S+\.\S+) ", run("list", "head.*").stdout, flags=re.MULTILINE)
    assert names == [card.name for card in api.cards("head.*")]


def test_list_of_an_unknown_name_suggests_one():
    text = refusal("list", "relative.kapa")
    assert "No measure is called 'relative.kapa'. Did you mean 'relative.kappa'" in text


@pytest.mark.parametrize("card", api.cards(), ids=lambda card: card.name)
def test_show_prints_everything_on_the_card(card):
    words = " ".join(run("show", card.name).stdout.split())
    moved = [name for name in SYMMETRIES if name not in card.invariant]
    unchanged = [name for name in SYMMETRIES if name in card.invariant]
    for fact in (card.summary, card.formula, card.paper, card.misleads, card.cost_in_words()):
        assert " ".join(fact.split()) in words
    assert f"direction {card.direction or 'not a measure of flatness'} how it is computed" in words
    kept, _, rest = words.partition("moved by")
    assert all(f"{name}: {SYMMETRIES[name]}" in kept for name in unchanged)
    assert all(f"{name}: {SYMMETRIES[name]}" in rest for name in moved)


def test_markdown_is_what_is_in_docs():
    text = run("list", "--markdown").stdout
    assert text == (ROOT / "docs" / "measures.md").read_text(encoding="utf-8"), (
        "run: spiritlevel list --markdown > docs/measures.md"
    )


def test_markdown_table_says_what_moves():
    card = sl.cards("relative.kappa")[0]
    row = cards.markdown_table([card]).splitlines()[2].strip("| ").split(" | ")
    said = dict(zip(SYMMETRIES, row[2:-1], strict=True))
    assert said == {s: "stays" if s in card.invariant else "moves" for s in SYMMETRIES}


# -- measure ---------------------------------------------------------------------------------


def test_measure_says_plan_values_and_counted_cost():
    out = run("measure", "--model", "mlp", *FEW, "--per-layer").stdout
    words = " ".join(out.split())
    assert "mlp, 8,970 trainable parameters, float32 on cpu" in words
    assert "NOT TRAINED, initialized at random with seed 0. Give --checkpoint" in words
    assert "40 of 1297 samples of digits (train), drawn with seed 0" in words
    assert out.index("planned: ") < out.index("curvature.trace") < out.index("counted: ")
    assert re.search(
        r"counted: [\d.]+ forwards, [\d.]+ backwards per sample over 40 samples", words
    )
    assert re.search(r"^ fc1 +[\d.]+", out, flags=re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_measure_agrees_with_the_library():
    result = run("measure", "--model", "mlp", "--split", "test", "--seed", "3", "--json", "-")
    report = sl.Report.from_json(result.stdout)
    expected = sl.measure(build("mlp", seed=3).eval(), digits("test"), seed=3)
    assert list(report) == list(expected)
    for name, m in expected.items():
        # batches of 256 are summed in another order than one batch of 500
        assert report[name].value == pytest.approx(m.value, rel=1e-5)
        assert report[name].exact == m.exact


def test_json_on_stdout_is_alone_there():
    result = run("measure", "--model", "mlp", *FEW, "--json", "-")
    assert json.loads(result.stdout)["format"] == "spiritlevel-report-1"
    assert "planned: " in result.stderr
    assert "curvature.trace" in result.stderr


def test_json_file_round_trip(tmp_path):
    path = tmp_path / "new" / "report.json"
    out = run("measure", "--model", "mlp", *FEW, "--json", str(path)).stdout
    report = sl.Report.from_json(path.read_text())
    assert report.to_json() + "\n" == path.read_text()
    assert report.settings["num_samples"] == 40
    assert f"{report['head.lambda_max'].value:.6g}" in out  # of no error, so with all digits


GELU = ["measure", "--model", "mlp", "--model-arg", "activation=gelu", *FEW, "--per-layer"]


def check_layers_of_a_smooth_network(out, kind):
    """Only the head is exact, and the reader is told what the others are."""
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"^ fc1 +\S+~", out, flags=re.MULTILINE)
    assert re.search(r"^ head +[\d.]+( |$)", out, flags=re.MULTILINE)  # no mark
    assert f"~ not exact: {kind}, see the notes above" in out


def test_long_notes_stand_below_the_table_once():
    out = run(*GELU, "--method", "exact").stdout
    assert re.search(r"^ curvature\.trace .* ggn +\[1\]$", out, flags=re.MULTILINE)
    assert out.count("[1] of the GGN, not the Hessian") == 1
    check_layers_of_a_smooth_network(out, "of the GGN")


def test_estimates_show_their_error_and_how_they_came_about():
    out = run(*GELU, "--measures", "curvature.trace", "--rtol", "0.9").stdout
    assert re.search(r"^ curvature\.trace .* ± \S+ +\[1\]$", out, flags=re.MULTILINE)
    assert re.search(r"^\[1\] .*weight probes of the", out, flags=re.MULTILINE)
    assert re.search(r"counted: .* products per sample", " ".join(out.split()))
    check_layers_of_a_smooth_network(out, "estimated")


def test_options_reach_the_factory_and_patterns_the_measures():
    out = run(
        *("measure", "--model", "mlp", "--model-arg", "hidden=8,6", "--measures", "relative.*"),
        *("--measures", "softmax.gini", *FEW, "--json", "-", "--dtype", "float64"),
    ).stdout
    report = sl.Report.from_json(out)
    assert set(report) == {card.name for card in api.cards("relative.*")} | {"softmax.gini"}
    assert list(report.layers["relative.kappa"]) == ["fc1", "fc2", "head"]
    assert report.settings["dtype"] == "float64"


def test_layers_head_and_memory():
    out = run(
        *("measure", "--model", "mlp", "--layers", "head", "--head", "head", "--memory", "1MiB"),
        *("--measures", "curvature.trace", *FEW, "--json", "-"),
    ).stdout
    assert sl.Report.from_json(out).settings["layers"] == ["head"]


def test_checkpoint_is_measured_and_described(tmp_path):
    torch.manual_seed(5)
    model = mlp().eval()
    path = tmp_path / "net.safetensors"
    save_checkpoint(model, path)
    result = run("measure", "--model", "mlp", "--checkpoint", str(path), "--json", "-")
    expected = sl.measure(model, digits("train"))["relative.kappa"].value
    found = sl.Report.from_json(result.stdout)["relative.kappa"].value
    assert found == pytest.approx(expected, rel=1e-5)
    assert "NOT TRAINED" not in result.stderr
    assert "(6 tensors)" in result.stderr


def test_whatever_a_network_raises_is_said_with_the_shape_of_the_data(workshop):
    result = run("measure", "--model", "my_nets:Picky", "--data", "labels.npz", code=1)
    assert "of shape (3,): not enough values to unpack" in result.stderr


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A folder with a user's module and data, as the working directory."""
    (tmp_path / "my_nets.py").write_text(
        textwrap.dedent("""
        from torch import nn

        def make(width: int = 4) -> nn.Module:
            return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))

        class Picky(nn.Linear):
            def __init__(self):
                super().__init__(3, 2)
            def forward(self, x):
                samples, time, features = x.shape

        class Interrupted(nn.Linear):
            def __init__(self):
                super().__init__(3, 2)
            def forward(self, x):
                raise KeyboardInterrupt
        """)
    )
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    numpy.savez(tmp_path / "labels.npz", x=x, y=rng.integers(0, 2, size=30))
    numpy.savez(tmp_path / "scores.npz", x=x, y=rng.normal(size=(30, 2)))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_nets", None)


def test_own_model_and_data(workshop):
    result = run(
        *("measure", "--model", "my_nets:make", "--model-arg", "width=6", "--data", "scores.npz"),
        *("--loss", "mse", "--batch-size", "7", "--json", "-"),
    )
    report = sl.Report.from_json(result.stdout)
    assert report.settings["num_samples"] == 30
    assert report.settings["loss"] == "mse"
    assert "as my_nets:make returns them" in result.stderr
    assert "Unless it loads weights itself" in " ".join(result.stderr.split())


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--model", "mpl"], "No built-in model is called 'mpl'. Did you mean 'mlp'?"),
        (["--model", "none_such:make"], "The module 'none_such' of the model 'none_such:make'"),
        (["--model-arg", "depth=3"], "cannot be built with the options {'depth': 3}"),
        (["--data", "data.csv"], "Got 'data.csv'. Other data: numpy.savez"),
        (["--data", "none.npz"], "The data file 'none.npz' must exist."),
        (["--checkpoint", "none.pt"], "The checkpoint 'none.pt' must exist."),
        (["--device", "toaster"], "The --device 'toaster' cannot be used: "),
        (["--measures", "relative.kapa"], "Did you mean 'relative.kappa'"),
        (["--layers", "fc9"], "Nothing matches 'fc9'. Available: fc1, fc2, head."),
        (["--head", "fc1"], "The layer 'fc1' cannot be measured in closed form as the head"),
        (["--samples", "0"], "Invalid value for '--samples': "),
        (["--wat"], "No such option: --wat"),
        (["--model", "lenet5"], "The model 'lenet5' failed on the data 'digits', whose samples"),
    ],
)
def test_refusals_are_one_line_with_the_next_step(args, expected):
    base = [] if "--model" in args else ["--model", "mlp"]
    not_understood = expected.startswith(("Invalid value", "No such option"))
    assert expected in refusal("measure", *base, *args, code=2 if not_understood else 1)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--model-arg", "width"], "must be key=value, as in --model-arg width=16. Got 'width'."),
        (["--option", "rho"], "must be key=value, as in --option rho=0.1. Got 'rho'."),
        (["--split", "dev"], "must be one of train, test, all. Got 'dev'."),
        (["--memory", "lots"], "such as 512MiB, 2GiB or a number of bytes"),
        (["--memory", "0MiB"], "Got '0MiB'."),
        (["--memory", "5"], "needs a unit. Got '5', which would be 5 bytes. Write 5MiB or 5GiB"),
        (["--dtype", "float16"], "must be one of float32, float64. Got 'float16'. Half precision"),
        (["--loss", "hinge"], "must be one of cross_entropy, mse, bce. Got 'hinge'."),
        (["--method", "lanczos"], "must be one of auto, exact, "),
        (["--arithmetic", "bf32"], "Got 'bf32'. Did you mean 'tf32'"),
        (["--rtol", "5"], "must be a number between 0 and 1. Got 5.0."),
        (["--confidence", "1"], "must be a number between 0 and 1. Got 1.0."),
        (["--budget", "0"], "must be a positive number. Got 0.0."),
        (["--max-passes", "0"], "must be at least 1 pass over the data. Got 0."),
        (["--seed", f"-{2**63}"], f"torch can hold, {2**63 - 1} at most. Got -{2**63}."),
    ],
)
def test_wrong_values_name_their_option(args, expected):
    said = refusal("measure", "--model", "mlp", *args, code=2)
    assert said.startswith(f"Invalid value for '{args[0]}': ")
    assert expected in said


def test_usage_errors_name_the_right_help():
    assert refusal("measure", code=2).endswith(". See `spiritlevel measure --help`.")
    assert "No such command 'mesure'" in refusal("mesure", code=2)


def test_unwritable_json(tmp_path):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "report.json")
    args = ("measure", "--model", "mlp", *FEW, "--json", path)
    result = run(*args, code=1)
    assert f"error: The file {path!r} cannot be written: " in result.stderr


def test_debug_shows_the_traceback():
    result = run("measure", "--model", "mlp", "--data", "none.npz", "--debug", code=1)
    assert "Traceback" in result.stderr
    assert "error: The data file 'none.npz' must exist." in result.stderr


def test_unforeseen_errors_say_how_to_see_more(monkeypatch):
    def explode(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(api, "cards", explode)
    expected = "ZeroDivisionError: division by zero. Run it again with --debug for the traceback."
    assert refusal("list") == expected


def test_interrupt_is_one_line_and_130(workshop):
    result = run("measure", "--model", "my_nets:Interrupted", "--data", "labels.npz", code=130)
    assert result.stderr.strip().splitlines()[-1].startswith("error: interrupted.")
    assert "Traceback" not in result.output


# -- parsing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * 2**20),
        ("2GiB", 2**31),
        ("2gb", 2 * 10**9),
        ("1.5 K", 1536),
        ("7b", 7),
        ("2000000", 2000000),
    ],
)
def test_memory_sizes(text, size):
    assert inputs.parse_memory(text) == size


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=1e-3", 1e-3), ("a=[1, 2]", [1, 2]), ("a=x=y", "x=y"), ("a=False", False),
     ("a=none", None), ("a=", ""), ("a='1'", "1")],
)  # fmt: skip
def test_option_values(text, value):
    assert inputs.parse_pairs([text], "--model-arg width=16") == {"a": value}


def test_samples_are_a_random_part_not_the_first_rows():
    x, y, text = load_samples("digits", split="train", samples=100, seed=1)
    whole, _, _ = load_samples("digits", split="train", samples=None, seed=1)
    assert len(x) == len(y) == 100
    assert not torch.equal(x, whole[:100])
    assert text == "100 of 1297 samples of digits (train), drawn with seed 1"


# -- version and help ------------------------------------------------------------------------


def test_version_and_help():
    assert run("--version").stdout.startswith(f"spiritlevel {sl.__version__} (torch ")
    for command in ("list", "show", "measure"):
        assert "Examples:" in run(command, "--help").stdout
