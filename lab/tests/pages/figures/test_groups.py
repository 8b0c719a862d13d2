"""Boxes, bands and layer profiles show the quantiles of their runs."""

import dataclasses
import math
import statistics as plain

import numpy as np
import pytest

import spiritlevel as sl
from spiritlevel_lab.pages import figures as studies


def box_lines(ax) -> list:
    """The closed outline of each box: matplotlib draws it as five points without markers."""
    return [line for line in ax.lines if len(line.get_xdata()) == 5 and line.get_marker() == ""]


def values_of(population, name, **settings) -> list[float]:
    rows = population.rows
    return [r[name] for r in rows if all(r[key] == value for key, value in settings.items())]


def test_boxes_stand_at_the_quartiles_and_every_run_is_a_point(population):
    ax = studies.boxes(population, "relative.kappa", "optimizer")
    boxes = box_lines(ax)
    assert len(boxes) == 3
    drawn = [tuple(line.get_ydata()) for line in ax.lines if line.get_marker() == "o"]
    for place, name in enumerate(("sgd", "adam", "adamw")):
        values = values_of(population, "relative.kappa", optimizer=name)
        low, high = np.percentile(values, [25, 75])
        ends = boxes[place].get_ydata()
        assert (min(ends), max(ends)) == pytest.approx((low, high))
        assert np.mean(boxes[place].get_xdata()[:4]) == pytest.approx(place)
        medians = [line for line in ax.lines if line.get_linewidth() == 1.8]
        assert list(medians[place].get_ydata()) == pytest.approx([plain.median(values)] * 2)
        assert tuple(values) in drawn
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["sgd\nn = 10", "adam\nn = 10", "adamw\nn = 10"]


def test_two_settings_split_the_boxes(population):
    ax = studies.boxes(population, "gap", "optimizer", split="lr")
    boxes = box_lines(ax)
    assert len(boxes) == 15
    expected = [
        np.percentile(values_of(population, "gap", optimizer=name, lr=lr), 25)
        for lr in (0.001, 0.003, 0.01, 0.03, 0.1)
        for name in ("sgd", "adam", "adamw")
    ]
    assert [min(box.get_ydata()) for box in boxes] == pytest.approx(expected)
    assert len({box.get_color() for box in boxes}) == 5
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["0.001", "0.003", "0.01", "0.03", "0.1"]
    assert "n = 2 runs a box" in ax.get_title(loc="left")


def test_runs_without_the_number_are_left_out_and_counted(population):
    ax = studies.boxes(population, "curvature.trace", "optimizer")
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels[0] == "sgd\nn = 9"
    assert "1 run without a finite number" in ax.get_title(loc="left")
    assert ax.get_yscale() == "linear"  # some are negative


def test_training_is_the_median_and_the_quartiles_of_the_runs(population):
    ax = studies.training(population, "test_loss")
    [line] = ax.lines
    longest = 8
    paths = [[row["test_loss"] for row in rows] for rows in population.epochs.values()]
    held = [path + [path[-1]] * (longest - len(path)) for path in paths]
    at = [sorted(path[epoch] for path in held) for epoch in range(longest)]
    assert list(line.get_xdata()) == list(range(1, longest + 1))
    assert list(line.get_ydata()) == pytest.approx([plain.median(values) for values in at])
    [band] = ax.collections
    corners = band.get_paths()[0].vertices
    for epoch, values in enumerate(at, start=1):
        heights = corners[corners[:, 0] == epoch][:, 1]
        expected = plain.quantiles(values, n=4, method="inclusive")
        assert (heights.min(), heights.max()) == pytest.approx((expected[0], expected[2]))
    assert line.get_label() == "test loss (n = 30)"
    assert "runs end after 5 to 8 epochs" in ax.get_title(loc="left")


def test_training_by_a_setting_has_a_line_a_value(population):
    ax = studies.training(population, "train_loss", by="lr")
    rates = ("0.001", "0.003", "0.01", "0.03", "0.1")
    assert [line.get_label() for line in ax.lines] == [f"{rate} (n = 6)" for rate in rates]
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == 5
    runs = [row["run"] for row in population.rows if row["lr"] == 0.1]
    first = [population.epochs[run][0]["train_loss"] for run in runs]
    assert ax.lines[-1].get_ydata()[0] == pytest.approx(plain.median(first))


def test_runs_that_diverged_are_left_out_of_training_and_counted(population):
    broken = [row | {"train_loss": math.inf} for row in population.epochs["run0"]]
    epochs = dict(population.epochs) | {"run0": broken}
    ax = studies.training(dataclasses.replace(population, epochs=epochs), "train_loss")
    assert ax.lines[0].get_label() == "training loss (n = 29)"
    assert "1 run with losses that are not finite" in ax.get_title(loc="left")


def test_profiles_are_medians_and_quartiles_in_the_order_of_numbers(population):
    ax = studies.layer_profile(population, "relative.kappa")
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert sorted(names) == ["head", "layer10", "layer2"]
    assert names.index("layer2") < names.index("layer10")
    [container] = ax.containers
    line, _, [bars] = container
    for k, name in enumerate(names):
        values = [of_run[name] for of_run in population.layers["relative.kappa"].values()]
        low, middle, high = plain.quantiles(values, n=4, method="inclusive")
        assert line.get_ydata()[k] == pytest.approx(middle)
        assert bars.get_segments()[k][:, 1] == pytest.approx([low, high])


def test_the_order_of_layers_can_be_given(population):
    order = ["layer2", "layer10", "head"]
    ax = studies.layer_profile(population, "relative.kappa", layers=order, by="optimizer")
    assert [label.get_text() for label in ax.get_xticklabels()] == order
    assert len(ax.containers) == 3
    assert ax.get_xlabel() == "layer"


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda p: studies.boxes(p, "gapp", "lr"), "'column' must be .* Did you mean 'gap'"),
        (
            lambda p: studies.boxes(p, "gap", "optimiser"),
            "'by' must be .* Did you mean 'optimizer'",
        ),
        (lambda p: studies.training(p, "trian_loss"), "'columns' must be .* mean 'train_loss'"),
        (lambda p: studies.layer_profile(p, "relative.kapa"), "Did you mean 'relative.kappa'"),
        (lambda p: studies.layer_profile(p, "relative.kappa", layers=["had"]), "mean 'head'"),
        (lambda p: studies.training(dataclasses.replace(p, epochs={})), "no training to draw"),
    ],
)
def test_unknown_names_are_refused(population, draw, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        draw(population)
