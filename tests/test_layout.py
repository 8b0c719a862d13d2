"""Who may import whom, and how long a file may be."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

SRC = pathlib.Path(__file__).parents[1] / "src" / "spiritlevel"
LAYERS = [  # low -> high; names on one line are siblings and may not import each other
    {"_core", "_trees", "_tables", "confounders"},
    {"math"},
    {"losses", "symmetries", "_batches", "processes", "hygiene"},
    {"huggingface", "parameters", "layers", "taps", "problems", "data", "models", "checkpoints"}
    | {"interventions"},
    {"surface"},
    {"estimators"},
    {"measures"},
    {"api"},
    {"spectra", "audits", "matching", "per_neuron"},
    {"comparisons", "training", "landscapes"},
    {"integrations", "study"},
    {"plots"},
    {"experiments"},
    {"report"},
    {"watch", "demo"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
MAX_LINES = 400
FILES = sorted(SRC.rglob("*.py"))
TOP = SRC / "__init__.py"  # gathers the public names, so it alone imports from everywhere


def imported(path: pathlib.Path, src: pathlib.Path) -> Iterator[tuple[str, ...]]:
    """Dotted names below `spiritlevel` that the file imports, anywhere in it; () is the package."""
    parts = path.relative_to(src).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = (*parts[: len(parts) - node.level], *module)
            elif module[0] == "spiritlevel":
                base = module[1:]
            else:
                continue
            yield from ((*base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            dotted = (tuple(alias.name.split(".")) for alias in node.names)
            yield from (name[1:] for name in dotted if name[0] == "spiritlevel")


def layer_offences(path: pathlib.Path, src: pathlib.Path = SRC) -> list[str]:
    here = path.relative_to(src).with_suffix("").parts[0]
    if here not in LEVEL:
        return [f"{here} has no layer: give it one in LAYERS"]
    offences = []
    for name in imported(path, src):
        there = name[0] if name else "the whole package"
        if there != here and LEVEL.get(there, len(LAYERS)) >= LEVEL[here]:
            offences.append(f"{here} may not import {there}")
    return offences


def family_offences(path: pathlib.Path, src: pathlib.Path = SRC) -> list[str]:
    """Of a file in measures/, every import from measures/ but its private helpers."""
    return [
        f"the family {path.stem} may not import {'.'.join(name)}"
        for name in imported(path, src)
        if name[:1] == ("measures",) and not (name[1:2] and name[1].startswith("_"))
    ]


def num_lines(path: pathlib.Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def label(path: pathlib.Path) -> str:
    return str(path.relative_to(SRC))


@pytest.mark.parametrize("path", [path for path in FILES if path != TOP], ids=label)
def test_imports_point_down(path):
    assert layer_offences(path) == []


FAMILIES = [
    path
    for path in FILES
    if path.parent.name == "measures" and path.stem not in ("__init__", "_registry")
]


@pytest.mark.parametrize("path", FAMILIES, ids=map(label, FAMILIES))
def test_families_do_not_import_families(path):
    assert family_offences(path) == []


@pytest.mark.parametrize("path", FILES, ids=label)
def test_files_stay_small(path):
    assert num_lines(path) <= MAX_LINES


def test_there_is_something_to_check():
    assert {"_core.py", "data", "models"} <= {path.relative_to(SRC).parts[0] for path in FILES}
    assert FAMILIES != []


# Meta-tests: each check above fails on a planted violation.


def plant(src: pathlib.Path, name: str, source: str) -> pathlib.Path:
    path = src / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "source", "offence"),
    [
        ("math/head.py", "from spiritlevel.surface import Surface", "math may not import surface"),
        ("math/head.py", "from ..surface import Surface", "math may not import surface"),
        ("math/head.py", "from .. import surface", "math may not import surface"),
        ("math/head.py", "from spiritlevel import surface", "math may not import surface"),
        ("math/head.py", "import spiritlevel.surface as s", "math may not import surface"),
        ("math/__init__.py", "from ..surface import Surface", "math may not import surface"),
        ("data/a.py", "from spiritlevel.models import mlp", "data may not import models"),
        ("_core.py", "from spiritlevel import _trees", "_core may not import _trees"),
        ("_core.py", "def f():\n    from . import cli", "_core may not import cli"),
        ("api.py", "import spiritlevel", "api may not import the whole package"),
        ("api.py", "from spiritlevel import measure", "api may not import measure"),
        ("novel.py", "", "novel has no layer: give it one in LAYERS"),
    ],
)
def test_upward_import_is_noticed(tmp_path, name, source, offence):
    assert layer_offences(plant(tmp_path, name, source), tmp_path) == [offence]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cli.py", "from spiritlevel import api, plots\nimport spiritlevel.data.digits"),
        ("math/head.py", "import math\nfrom math import log\nfrom .gini import g\nfrom . import x"),
        ("surface.py", "import torch\nfrom ._core import Cost\nfrom .math.head import trace"),
        ("data/__init__.py", "from .digits import digits\nfrom .._core import SpiritlevelError"),
    ],
)
def test_downward_import_is_allowed(tmp_path, name, source):
    assert layer_offences(plant(tmp_path, name, source), tmp_path) == []


@pytest.mark.parametrize(
    "source",
    [
        "from spiritlevel.measures.head import trace",
        "from spiritlevel.measures import head",
        "from .head import trace",
        "from . import head",
        "import spiritlevel.measures.head",
    ],
)
def test_family_importing_a_family_is_noticed(tmp_path, source):
    path = plant(tmp_path, "measures/relative.py", source)
    [offence] = family_offences(path, tmp_path)
    assert offence.startswith("the family relative may not import measures.head")


def test_family_may_import_the_registry(tmp_path):
    source = "from ._registry import measure\nfrom spiritlevel.measures import _registry\n"
    assert family_offences(plant(tmp_path, "measures/relative.py", source), tmp_path) == []


def test_long_file_is_noticed(tmp_path):
    assert num_lines(plant(tmp_path, "long.py", "x = 1\n" * 401)) > MAX_LINES
    assert num_lines(plant(tmp_path, "short.py", "x = 1\n" * 400)) <= MAX_LINES
