"""Figures of thousands of runs: a vector file does not hold every mark by itself."""

import random

import pytest

from spiritlevel.pages import figures
from spiritlevel.pages.figures.style import MOST_MARKS
from spiritlevel_lab.pages.figures import quartiles, scatter
from spiritlevel_lab.population.population import Population


def population(number: int) -> Population:
    rng = random.Random(0)
    rows = [
        {"run": f"r{i}", "status": "done", "lr": [0.1, 0.01][i % 2], "seed": i // 2}
        | {"gap": rng.random(), "bound.generalization": 1 + rng.random()}
        for i in range(number)
    ]
    return Population(["lr"], rows, ["bound.generalization"])


PANELS = {
    "scatter": lambda runs: scatter.measure_against(runs, runs.measures[0], colour="lr"),
    "bound": scatter.bound,
    "boxes": lambda runs: quartiles.boxes(runs, "gap", "lr"),
}


@pytest.mark.parametrize("panel", list(PANELS))
def test_marks_become_one_image_beyond_a_number(panel):
    def drawn(number: int) -> bytes:
        return figures.save(PANELS[panel](population(number)).figure, "svg")

    few, many = drawn(MOST_MARKS // 3), drawn(2 * MOST_MARKS)
    assert b"<image" not in few
    assert few.count(b"<use") >= MOST_MARKS // 3
    assert b"<image" in many
    assert many.count(b"<use") < 400
    assert len(many) < 400_000
