"""How large the experiments are beside the papers': images, networks, widths, reached accuracy."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spiritlevel.content import Cell, Table, plain
from spiritlevel.papers.judging.scale import PAPER, images_of, library_study, networks_of
from spiritlevel.papers.judging.trained import NotAsked
from spiritlevel.study.settings.definition import Study

from .results import ScaleResult

CAPTION = (
    "Here: what was run nearest to the paper, of what can be judged. Paper: the preset of that "
    "name, which follows the "
    "paper where it says what it did; the number of networks is then ours where the paper gives "
    "none. Accuracies are medians over all runs, whatever their settings; where a run records "
    "several, at points in training or of several networks, the smallest and the largest of these "
    "medians; where it records none, the training loss."
)
TEST = re.compile(r"test_accuracy|task\.(test_)?accuracy(/.*)?")
TRAIN = re.compile(r"(task\.)?train_accuracy(/.*)?")
LOSS = re.compile(r"train_loss|task\.train_loss/[a-z]+")
OF_PAPER = re.compile(r"(.*: )?(test|final)[ _]accuracy(?!.*standard deviation).*")
WRITTEN = {  # how one writes what studies call by a key; other names stay as they are
    "boolq.npz": "BoolQ",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "densenet121": "DenseNet-121",
    "digits": "the digits",
    "digits_cnn": "small CNN",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "lenet5": "LeNet-5",
    "mlp": "MLP",
    "mnist": "MNIST",
    "resnet18": "ResNet-18",
    "text_transformer": "text transformer",
    "vgg16": "VGG-16",
    "vgg_small": "small VGG",
    "vit_small": "small ViT",
}
MADE_UP = ("000-table-1", "002-fig-3", "002-fig-4")  # their tasks draw data of their own


def scale_table(results: Iterable[ScaleResult]) -> Table:
    """One row per experiment that was run."""
    rows: list[Sequence[Cell]] = [_row(result) for result in results]
    titles = (
        *("experiment", "images, here", "images, paper", "network, here", "network, paper"),
        *("networks, here", "trained, of those asked", "networks, paper"),
        *("reached here", "test accuracy, paper"),
    )
    return Table(titles, rows)


def _row(result: ScaleResult) -> list[Cell]:
    name, record = result.experiment.study, result.record
    here = library_study(name, record.preset)
    paper = library_study(name, PAPER) if PAPER in library_study(name).presets else None
    images: list[Cell] = ["drawn", "drawn"]
    networks: list[Cell] = ["not trained", "not trained"]
    if name not in MADE_UP:
        images = [images_in_words(here), None if paper is None else images_in_words(paper)]
        networks = [networks_in_words(here), None if paper is None else networks_in_words(paper)]
    trained = result.experiment.trained
    count = None
    if not isinstance(trained, NotAsked):
        split = trained.split(record.rows)
        count = f"{sum(split.trained.values())} of {sum(split.asked.values())}"
    runs = result.experiment.paper_runs or (None if paper is None else len(paper.runs()))
    return [
        result.experiment.name,
        *images,
        *networks,
        len(record.rows),
        count,
        runs,
        _reached(record.rows),
        _theirs(result),
    ]


def population_in_words(result: ScaleResult) -> str:
    """Which networks were trained, and on which images."""
    study = library_study(result.experiment.study, result.record.preset)
    return f"{networks_in_words(study)}, {images_in_words(study)}"


def images_in_words(study: Study) -> str:
    """How many training images of which data."""
    return ", ".join(
        f"{'all' if samples is None else f'{samples:,}'} of {WRITTEN.get(name, name)}"
        for name, samples in images_of(study).items()
    )


def networks_in_words(study: Study) -> str:
    """The names of its networks, with their widths."""
    parts = (network.partition(" ") for network in networks_of(study))
    return ", ".join(f"{WRITTEN.get(name, name)}{gap}{sizes}" for name, gap, sizes in parts)


def _reached(rows: Sequence[Mapping[str, Any]]) -> str | None:
    said = [
        f"{word} {found}"
        for word, pattern in (("test", TEST), ("training", TRAIN))
        if (found := _medians(rows, pattern))
    ]
    if not said and (loss := _medians(rows, LOSS)):
        said = [f"training loss {loss}"]
    return ", ".join(said) or None


def _medians(rows: Sequence[Mapping[str, Any]], pattern: re.Pattern[str]) -> str:
    """Of every column of that kind; the smallest and the largest if there are several."""
    medians = []
    for name in filter(pattern.fullmatch, rows[0]):
        values = [row[name] for row in rows if row[name] is not None]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            medians.append(statistics.median(finite))
    return _span(medians)


def _theirs(result: ScaleResult) -> str | None:
    values = result.experiment.paper_values
    return _span([v for name, v in values.items() if OF_PAPER.fullmatch(name)]) or None


def _span(values: Sequence[float]) -> str:
    """The smallest and the largest.

    >>> _span([0.5, 0.25]), _span([0.5]), _span([])
    ('0.25 to 0.5', '0.5', '')
    """
    ends = list(dict.fromkeys(plain(v, 3) for v in (min(values), max(values)))) if values else []
    return " to ".join(ends)
