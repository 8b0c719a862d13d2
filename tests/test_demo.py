"""The demo, run once in its quick form; its sentences against its numbers."""

import dataclasses
import html.parser
import itertools
import json
import math
import xml.etree.ElementTree

import pytest
import torch
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel import demo as library
from spiritlevel.checkpoints import load_checkpoint
from spiritlevel.cli.app import app
from spiritlevel.demo.agreement import agreement
from spiritlevel.demo.networks import EARLY, LONG, NOISE, NUM_TRAIN, SGD, gap_difference
from spiritlevel.demo.result import ALL, SHOWN, file_name
from spiritlevel.demo.words import findings, limits
from spiritlevel.models import mlp


@pytest.fixture(scope="module")
def quick() -> library.Demo:
    steps = []
    found = library.run(quick=True, progress=lambda done, total, text: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1]
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(steps))
    return found


@pytest.fixture(scope="module")
def written(quick, tmp_path_factory):
    """What the command writes and prints, with the run above standing in for a second one."""
    out = tmp_path_factory.mktemp("demo")
    patch = pytest.MonkeyPatch()
    patch.setattr(library, "run", lambda **_: quick)
    result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(out)])
    patch.undo()
    assert result.exit_code == 0, result.output
    return out, result.stdout


def test_networks_end_in_different_places(quick):
    assert len(quick.trained) == 7
    losses = [quick.trained[name].train_loss for name in (EARLY, SGD, LONG)]
    assert losses == sorted(losses, reverse=True)
    wrong = (quick.trained[NOISE].y != quick.trained[SGD].y).double().mean()
    assert float(wrong) == pytest.approx(0.3)
    assert quick.trained[SGD].test_accuracy > 0.85


def test_measurements_are_exact_and_on_the_training_data(quick):
    for report in quick.reports.values():
        assert report.settings["num_samples"] == NUM_TRAIN
        assert all(m.exact for m in report.values())


def test_rescaling_keeps_the_function_and_what_is_claimed_invariant(quick):
    for move, moved, kept in (
        (quick.layerwise, ["curvature.trace"], ["relative.kappa", "neuron.rho_sum"]),
        (quick.neuronwise, ["curvature.trace", "relative.kappa"], ["neuron.rho_sum"]),
    ):
        assert move.change < 1e-5
        for name in kept:
            # float32 networks: the products of weights differ in the last digits
            assert max(move.curves[name]) == pytest.approx(min(move.curves[name]), rel=1e-4)
        for name in moved:
            assert max(move.curves[name]) > 3 * min(move.curves[name])


def test_the_same_seed_gives_the_same_networks(quick):
    run = library.networks.RUNS[0]
    again = {t.name: t for t in library.networks.train(run, seed=0, quick=True)}
    other = {t.name: t for t in library.networks.train(run, seed=1, quick=True)}
    assert again[SGD].test_loss == quick.trained[SGD].test_loss
    assert other[SGD].test_loss != quick.trained[SGD].test_loss


def test_training_leaves_random_state_and_threads_alone():
    before = torch.random.get_rng_state()
    for _ in library.networks.train(library.networks.RUNS[3], seed=0, quick=True):
        pass
    assert torch.equal(before, torch.random.get_rng_state())


# -- statistics ------------------------------------------------------------------------------


def test_agreement_matches_a_count_over_all_orders():
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 3.0, 5.0, 4.0]
    found = agreement(a, b)

    def tau(order):
        pairs = itertools.combinations(range(5), 2)
        return sum(math.copysign(1, order[j] - order[i]) for i, j in pairs) / 10

    assert found.tau == tau(b)
    orders = list(itertools.permutations(b))
    assert found.chance == sum(abs(tau(o)) >= abs(tau(b)) for o in orders) / len(orders)
    assert str(agreement(a, b[::-1])) == "−0.60 (n = 5)"


def test_gap_differences_are_paired(quick):
    a, b = quick.trained[SGD], quick.trained[LONG]
    difference, error = gap_difference(a, b)
    assert difference == pytest.approx(a.gap - b.gap)
    assert error < math.hypot(a.test_loss_stderr, b.test_loss_stderr)


# -- words -----------------------------------------------------------------------------------


def with_gap(demo: library.Demo, name: str, gap: float) -> library.Demo:
    """The same demo, had this network another gap."""
    t = demo.trained[name]
    moved = dataclasses.replace(t, test_losses=t.test_losses + (gap - t.gap))
    return dataclasses.replace(demo, trained=demo.trained | {name: moved})


def test_words_follow_the_numbers(quick):
    middle = quick.trained[SGD].gap
    assert "the gap grows by 0.50" in findings(with_gap(quick, LONG, middle + 0.5))["Confidence"]
    assert "the gap falls by 0.50" in findings(with_gap(quick, LONG, middle - 0.5))["Confidence"]
    assert "decides any linear" in findings(with_gap(quick, NOISE, 5.0))["Label noise"]
    assert "decides any linear" not in findings(with_gap(quick, NOISE, 0.1))["Label noise"]


def test_label_noise_is_called_sharpest_only_where_it_is(quick):
    text = findings(quick)["Label noise"]
    for measure in SHOWN[:3]:
        values = {name: report[measure].value for name, report in quick.reports.items()}
        sharpest = max(values, key=lambda name: values[name])
        assert (f"By {measure} the sharpest is {sharpest!r}." in text) == (sharpest != NOISE)


def test_limits_name_n_and_unfinished_networks(quick):
    text = " ".join(limits(quick))
    assert "7 networks of one architecture on one data set with one seed are an anecdote" in text
    assert "This was a quick run" in text
    unfinished = [name for name, t in quick.trained.items() if not t.reached]
    assert unfinished
    assert all(repr(name) in text for name in unfinished)
    finished = {name: dataclasses.replace(t, target_loss=9.0) for name, t in quick.trained.items()}
    assert "limit of epochs" not in " ".join(
        limits(dataclasses.replace(quick, trained=finished, quick=False))
    )


def test_order_quotes_the_best_agreement(quick):
    best = max((quick.agreement(m, quick.groups()[ALL]) for m in SHOWN[:3]), key=lambda a: a.tau)
    assert f"τ = {best}, chance {best.chance:.0%}" in findings(quick)["Order"]


# -- what is left behind ---------------------------------------------------------------------


def test_json_holds_every_report(written, quick):
    data = json.loads((written[0] / "demo.json").read_text())
    assert list(data["networks"]) == list(quick.trained)
    for name, entry in data["networks"].items():
        report = sl.Report.from_json(json.dumps(entry["report"]))
        assert report["relative.kappa"].value == quick.reports[name]["relative.kappa"].value
        assert entry["gap"] == pytest.approx(entry["test_loss"] - entry["train_loss"])
    assert data["agreement"][ALL]["softmax.gini"]["n"] == 7


def test_picture_is_large_and_names_every_network(written):
    out = written[0]
    png = (out / "picture.png").read_bytes()
    width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
    assert width >= 1800
    assert height >= 1000
    tree = xml.etree.ElementTree.parse(out / "picture.svg")
    assert tree.getroot().tag.endswith("svg")
    # the letters are shapes, but each text keeps its words in a comment
    svg = (out / "picture.svg").read_text()
    for name in (*library.networks.RUNS[0].stops, NOISE, *SHOWN):
        assert f"<!-- {name} -->" in svg


class Outline(html.parser.HTMLParser):
    """Counts tags, and notices ones that are not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_page_is_complete_and_needs_nothing_else(written, quick):
    page = (written[0] / "report.html").read_text()
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.seen["svg"] == 1
    assert outline.seen["table"] == 2
    text = " ".join(" ".join(outline.text).split())
    for paragraph in [*findings(quick).values(), *limits(quick)]:
        assert paragraph in text
    assert "<script" not in page
    assert "src=" not in page


def test_networks_can_be_measured_again(written, quick):
    model = mlp(64, hidden=(128, 128))
    load_checkpoint(model, written[0] / "networks" / file_name(NOISE))
    t = quick.trained[NOISE]
    again = sl.measure(model.eval(), (t.x, t.y), measures="relative.kappa")
    assert again["relative.kappa"].value == quick.reports[NOISE]["relative.kappa"].value


def test_terminal_shows_table_and_words(written, quick):
    out, text = written
    lines = text.splitlines()
    assert max(len(line) for line in lines if str(out) not in line) <= 80
    for name, t in quick.trained.items():
        [row] = [line for line in lines if line.startswith(f"{name}  ")]
        assert f"{t.gap:.2f} ± {t.test_loss_stderr:.2f}" in row
        assert f"{quick.reports[name]['relative.kappa'].value:.3g}" in row
    words = " ".join(text.split())
    for paragraph in [*findings(quick).values(), *limits(quick)]:
        assert " ".join(paragraph.split()) in words
