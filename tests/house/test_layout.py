"""Who may import whom, and how long a file may be; the table is in rooms.py."""

import ast
import pathlib
from collections.abc import Iterator, Mapping

import pytest

from house import rooms

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = {house: ROOT / place for house, place in rooms.SOURCES.items()}
FILES = {house: sorted(src.rglob("*.py")) for house, src in SOURCES.items()}
TESTS = sorted(path for folder in ("tests", "lab/tests") for path in (ROOT / folder).rglob("*.py"))
# Tests of no one room: of all files and arguments from outside, of random networks, of the whole.
OF_NO_ROOM = {"fuzz", "hostile", "house", "experiments"}
Name = tuple[str, ...]  # dotted, with the house as its first part


def imported(path: pathlib.Path, house: str, src: pathlib.Path) -> Iterator[Name]:
    """Names of both houses that the file imports, anywhere in it, also for type checking alone."""
    parts = (house, *path.relative_to(src).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            base = (*parts[: len(parts) - node.level], *module) if node.level else module
            found = [(*base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        yield from (name for name in found if name[0] in rooms.HOUSES)


def import_offences(path: pathlib.Path, house: str, src: pathlib.Path) -> list[str]:
    floors = {name: floor for floor, name in enumerate(rooms.HOUSES[house])}
    here = path.relative_to(src).with_suffix("").parts[0]
    if here not in floors:
        return [f"{here} is not in the table: add it to HOUSES"]
    offences = []
    for name in imported(path, house, src):
        there = name[1] if name[1:] else "the whole package"
        if name[0] != house:
            if name[0] == "spiritlevel_lab":
                offences.append(f"the instrument may not import {'.'.join(name)}")
        elif there != here and floors.get(there, len(floors)) >= floors[here]:
            offences.append(f"{here} may not import {there}")
    return offences


def family_offences(path: pathlib.Path, house: str, src: pathlib.Path) -> list[str]:
    """Of a file in a family's folder, every import from another family."""
    family = path.relative_to(src).parts[1]
    families = {folder.name for folder in (src / "measures").iterdir() if folder.is_dir()}
    return [
        f"the family {family} may not import {'.'.join(name[1:])}"
        for name in imported(path, house, src)
        if name[1:2] == ("measures",) and name[2:3] and name[2] in families - {family}
    ]


def circles(house: str, src: pathlib.Path) -> list[list[str]]:
    """Files that import each other in a loop; each is named by its dotted module."""
    modules = {}
    for path in src.rglob("*.py"):
        parts = (house, *path.relative_to(src).with_suffix("").parts)
        modules[parts[:-1] if parts[-1] == "__init__" else parts] = path
    arrows = {
        module: {
            known
            for name in imported(path, house, src)
            for known in (name, name[:-1])
            if known in modules and known != module and modules[known].name != "__init__.py"
        }
        for module, path in modules.items()
    }
    return [sorted(".".join(module) for module in loop) for loop in _loops(arrows)]


def _loops(arrows: Mapping[Name, set[Name]]) -> Iterator[set[Name]]:
    """Whatever cannot be put into an order: what is left when all leaves are taken off."""
    left = {module: set(there) for module, there in arrows.items()}
    while leaves := {module for module, there in left.items() if not there & left.keys()}:
        for module in leaves:
            del left[module]
    if left:
        used = set().union(*(there & left.keys() for there in left.values()))
        yield {module for module in left if module in used}


def num_lines(path: pathlib.Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def offences_by_file(check, files) -> dict[str, list[str]]:
    found = {}
    for house, paths in files.items():
        for path in paths:
            if offences := check(path, house, SOURCES[house]):
                found[str(path.relative_to(ROOT))] = offences
    return found


# What gathers the public names of a house imports from everywhere in it.
BELOW_TOP = {
    house: [path for path in paths if path.parent != SOURCES[house] or path.stem != "__init__"]
    for house, paths in FILES.items()
}
IN_FAMILIES = [path for path in FILES["spiritlevel"] if path.match("measures/*/*.py")]


def test_imports_point_down():
    assert offences_by_file(import_offences, BELOW_TOP) == {}


def test_families_do_not_import_families():
    assert offences_by_file(family_offences, {"spiritlevel": IN_FAMILIES}) == {}


@pytest.mark.parametrize("house", rooms.HOUSES)
def test_no_files_import_each_other_in_a_circle(house):
    assert circles(house, SOURCES[house]) == []


def test_the_instrument_knows_the_laboratory_through_entry_points_only():
    named = [p for p in FILES["spiritlevel"] if "spiritlevel_lab" in p.read_text("utf-8")]
    assert named == []


def test_files_stay_small():
    every = [*TESTS, *(path for paths in FILES.values() for path in paths)]
    long = {str(path): num_lines(path) for path in every}
    assert {path: lines for path, lines in long.items() if lines > rooms.MAX_LINES} == {}


def test_files_that_could_hold_code_are_read_in_one_place():
    """Which asks first whether this version of torch is safe."""
    words = ("torch.load(", "pickle.load", "np.load(")
    callers = [
        path.relative_to(SOURCES[house]).as_posix()
        for house, paths in FILES.items()
        for path in paths
        if any(word in path.read_text(encoding="utf-8") for word in words)
    ]
    # the other one reads what processes of the same job tell each other, as torch itself does
    assert sorted(callers) == ["ground/files/reading.py", "model/distributed.py"]


@pytest.mark.parametrize("house", rooms.HOUSES)
def test_every_room_of_the_table_exists(house):
    src = SOURCES[house]
    there = {path.relative_to(src).with_suffix("").parts[0] for path in BELOW_TOP[house]}
    assert there == set(rooms.HOUSES[house])
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
        ("inputs/data/a.py", "from ...cli import app", "inputs may not import cli"),
        ("ground/errors.py", "from spiritlevel import records", "ground may not import records"),
        ("ground/a.py", "def f():\n    from .. import cli", "ground may not import cli"),
        ("verbs/a.py", "import spiritlevel", "verbs may not import the whole package"),
        ("verbs/a.py", "from spiritlevel import measure", "verbs may not import measure"),
        ("cli/a.py", "from spiritlevel_lab import run", None),
        ("novel.py", "", "novel is not in the table: add it to HOUSES"),
    ],
)
def test_upward_import_is_noticed(tmp_path, name, source, offence):
    found = import_offences(plant(tmp_path, name, source), "spiritlevel", tmp_path)
    assert found == [offence or "the instrument may not import spiritlevel_lab.run"]


@pytest.mark.parametrize(
    ("house", "name", "source"),
    [
        (
            "spiritlevel",
            "cli/a.py",
            "from ..verbs import measuring\nimport spiritlevel.inputs.data",
        ),
        ("spiritlevel", "math/head.py", "import math\nfrom math import log\nfrom .gini import g"),
        (
            "spiritlevel",
            "model/surface.py",
            "import torch\nfrom ..records import x\nfrom ..math import t",
        ),
        (
            "spiritlevel",
            "inputs/data/__init__.py",
            "from .digits import digits\nfrom ...ground import e",
        ),
        ("spiritlevel_lab", "papers/a.py", "import spiritlevel as sl\nfrom ..population import x"),
    ],
)
def test_downward_import_is_allowed(tmp_path, house, name, source):
    assert import_offences(plant(tmp_path, name, source), house, tmp_path) == []


def test_family_import_is_noticed(tmp_path):
    plant(tmp_path, "measures/norms/a.py", "")
    path = plant(
        tmp_path, "measures/head/a.py", "from ..norms.a import x\nfrom ..registry import y"
    )
    assert family_offences(path, "spiritlevel", tmp_path) == [
        "the family head may not import measures.norms.a.x"
    ]


@pytest.mark.parametrize(
    "back", ["from .a import x", "if TYPE_CHECKING:\n    from spiritlevel.math.a import x"]
)
def test_a_circle_is_noticed(tmp_path, back):
    plant(tmp_path, "math/a.py", "from .b import y")
    plant(tmp_path, "math/c.py", "from .b import y")
    plant(tmp_path, "math/b.py", back)
    assert circles("spiritlevel", tmp_path) == [["spiritlevel.math.a", "spiritlevel.math.b"]]


def test_a_long_file_is_noticed(tmp_path):
    assert num_lines(plant(tmp_path, "long.py", "x = 1\n" * 401)) > rooms.MAX_LINES
    assert num_lines(plant(tmp_path, "short.py", "x = 1\n" * 400)) <= rooms.MAX_LINES


def misplaced(tests: pathlib.Path, src: pathlib.Path) -> list[str]:
    """Files of tests in folders that the source does not have."""
    places = (path.relative_to(tests) for path in sorted(tests.rglob("test_*.py")))
    return [
        str(place)
        for place in places
        if place.parts[0] not in OF_NO_ROOM and not (src / place.parent).is_dir()
    ]


@pytest.mark.parametrize(
    ("tests", "house"), [("tests", "spiritlevel"), ("lab/tests", "spiritlevel_lab")]
)
def test_tests_stand_where_their_source_stands(tests, house):
    assert misplaced(ROOT / tests, SOURCES[house]) == []


def test_a_misplaced_test_is_noticed(tmp_path):
    plant(tmp_path / "tests", "math/test_a.py", "")
    plant(tmp_path / "tests", "results/test_b.py", "")
    plant(tmp_path / "src", "math/a.py", "")
    assert misplaced(tmp_path / "tests", tmp_path / "src") == ["results/test_b.py"]
