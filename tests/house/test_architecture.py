"""docs/architecture.md is true: its map is the table of rooms, and what it names exists."""

import pathlib
import re
import typing

from house import rooms
from spiritlevel.ground.plugins import Group

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PLACES = (ROOT, ROOT / rooms.SOURCES["spiritlevel"])
NAMED = re.compile(r"`([\w/]+(?:\.py|/))`")


def missing(text):
    """Files and folders that a text names, of the repository or of the instrument."""
    return [name for name in NAMED.findall(text) if not any((at / name).exists() for at in PLACES)]


def test_the_map_is_the_table_of_rooms():
    assert f"```text\n{rooms.import_map()}\n```" in TEXT


def test_every_file_that_it_names_exists():
    assert len(NAMED.findall(TEXT)) >= 15
    assert missing(TEXT) == []
    assert missing("`engine/plan.py`, `engine/gone.py`") == ["engine/gone.py"]


def test_every_entry_point_is_in_its_table():
    named = re.findall(r"^\| `(spiritlevel\.\w+)` \|", TEXT, flags=re.M)
    assert sorted(named) == sorted(typing.get_args(Group))
