"""Who may import whom, and how long a file may be; the table is in rooms.py."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

from house import rooms

ROOT = pathlib.Path(__file__).parents[2]
SRC = ROOT / "src" / "spiritlevel"
FLOOR = {name: floor for floor, name in enumerate(rooms.ROOMS)}
FILES = sorted(SRC.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
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


def import_offences(path: pathlib.Path, src: pathlib.Path = SRC) -> list[str]:
    here = path.relative_to(src).with_suffix("").parts[0]
    if here not in FLOOR:
        return [f"{here} is not in the table: add it to ROOMS"]
    offences = []
    for name in imported(path, src):
        there = name[0] if name else "the whole package"
        if there != here and FLOOR.get(there, len(FLOOR)) >= FLOOR[here]:
            offences.append(f"{here} may not import {there}")
    return offences


def family_offences(path: pathlib.Path, src: pathlib.Path = SRC) -> list[str]:
    """Of a file in a family's folder, every import from another family."""
    family = path.relative_to(src).parts[1]
    families = {folder.name for folder in (SRC / "measures").iterdir() if folder.is_dir()}
    return [
        f"the family {family} may not import {'.'.join(name)}"
        for name in imported(path, src)
        if name[:1] == ("measures",) and name[1:2] and name[1] in families - {family}
    ]


def num_lines(path: pathlib.Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def offences_by_file(check, files) -> dict[str, list[str]]:
    return {str(p.relative_to(SRC)): offences for p in files if (offences := check(p))}


IN_FAMILIES = [path for path in FILES if path.match("measures/*/*.py")]


def test_imports_point_down():
    assert offences_by_file(import_offences, [path for path in FILES if path != TOP]) == {}


def test_families_do_not_import_families():
    assert offences_by_file(family_offences, IN_FAMILIES) == {}


def test_files_stay_small():
    long = {str(path): num_lines(path) for path in (*FILES, *TESTS)}
    assert {path: lines for path, lines in long.items() if lines > rooms.MAX_LINES} == {}


def test_files_that_could_hold_code_are_read_in_one_place():
    """Which asks first whether this version of torch is safe."""
    words = ("torch.load(", "pickle.load", "np.load(")
    callers = [
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in words)
    ]
    # the other one reads what processes of the same job tell each other, as torch itself does
    assert sorted(callers) == ["files/torch_files.py", "model/distributed.py"]


def test_every_room_of_the_table_exists():
    there = {path.relative_to(SRC).with_suffix("").parts[0] for path in FILES if path != TOP}
    assert there == set(rooms.ROOMS)
    assert IN_FAMILIES != []


# Meta-tests: each check above fails on a planted violation.


def plant(src: pathlib.Path, name: str, source: str) -> pathlib.Path:
    path = src / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "source", "offence"),
    [
        ("math/head.py", "from spiritlevel.model.surface import S", "math may not import model"),
        ("math/head.py", "from ..model import Surface", "math may not import model"),
        ("math/head.py", "from .. import model", "math may not import model"),
        ("math/head.py", "from spiritlevel import model", "math may not import model"),
        ("math/head.py", "import spiritlevel.model as s", "math may not import model"),
        ("math/__init__.py", "from ..model import Surface", "math may not import model"),
        ("study/data/a.py", "from ...papers import registry", "study may not import papers"),
        ("errors.py", "from spiritlevel import records", "errors may not import records"),
        ("errors.py", "def f():\n    from . import cli", "errors may not import cli"),
        ("api.py", "import spiritlevel", "api may not import the whole package"),
        ("api.py", "from spiritlevel import measure", "api may not import measure"),
        ("novel.py", "", "novel is not in the table: add it to ROOMS"),
    ],
)
def test_upward_import_is_noticed(tmp_path, name, source, offence):
    assert import_offences(plant(tmp_path, name, source), tmp_path) == [offence]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cli.py", "from spiritlevel import api, pages\nimport spiritlevel.inputs.data.digits"),
        ("math/head.py", "import math\nfrom math import log\nfrom .gini import g\nfrom . import x"),
        ("model/surface.py", "import torch\nfrom ..records import Cost\nfrom ..math.head import t"),
        ("study/data/__init__.py", "from .digits import digits\nfrom ...errors import Error"),
    ],
)
def test_downward_import_is_allowed(tmp_path, name, source):
    assert import_offences(plant(tmp_path, name, source), tmp_path) == []


@pytest.mark.parametrize(
    "source",
    [
        "from spiritlevel.measures.head.cards import trace",
        "from spiritlevel.measures import head",
        "from ..head.cards import trace",
        "from .. import head",
        "import spiritlevel.measures.head",
    ],
)
def test_family_importing_a_family_is_noticed(tmp_path, source):
    path = plant(tmp_path, "measures/relative/cards.py", source)
    [offence] = family_offences(path, tmp_path)
    assert offence.startswith("the family relative may not import measures.head")


def test_family_may_import_the_registry_and_its_own_files(tmp_path):
    source = "from ..registry import measure\nfrom . import sums\nfrom .sums import total\n"
    path = plant(tmp_path, "measures/relative/cards.py", source)
    assert family_offences(path, tmp_path) == []


def test_long_file_is_noticed(tmp_path):
    assert num_lines(plant(tmp_path, "long.py", "x = 1\n" * 401)) > rooms.MAX_LINES
    assert num_lines(plant(tmp_path, "short.py", "x = 1\n" * 400)) <= rooms.MAX_LINES
