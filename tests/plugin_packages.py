"""Packages that add measures or studies, as pip would have installed them."""

import os
import textwrap

import fresh

MEASURE = """
from spiritlevel.measures import EVERY, Measured, Measurement, measure

@measure(
    name="{name}", summary="Number of weights", formula="d", paper="none", invariant=EVERY,
    misleads="Always.",
)
def size(workspace):
    count = sum(p.numel() for p in workspace.surface.parameters.values())
    return Measured(Measurement("{name}", float(count), exact=True))
"""

WITH_OPTION = """
from spiritlevel.measures import EVERY, Measured, Measurement, Option, measure
from spiritlevel.ground.need import number

RADIUS = Option("my_radius", 0.1, number(above=0), "a number above 0", "size of the ball")

@measure(
    name="mine.ball", summary="The radius", formula="r", paper="none", invariant=EVERY,
    misleads="Always.", options=[RADIUS],
)
def ball(workspace):
    value = workspace.options.my_radius
    return Measured(Measurement("mine.ball", value, exact=True))
"""
REFUSAL = (
    "The option 'my_radius' must be a number above 0. Got -1. It is size of the ball; default 0.1."
)


def install(folder, module, source, *, group):
    """A package of one module, as pip would have installed it."""
    (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = {module}\n")


def printed(folder, code):
    """What the code prints in a fresh interpreter that finds the packages in the folder."""
    path = os.pathsep.join([str(folder), fresh.PATH])
    done = fresh.run("-c", code, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout
