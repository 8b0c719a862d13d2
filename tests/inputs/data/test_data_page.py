"""The page about data names every reader and data set there is."""

import pathlib
import re

from spiritlevel.inputs import data
from spiritlevel.inputs.data import CATALOGUE

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")


def test_every_reader_and_data_set_is_there():
    assert [name for name in (*data._HOMES, *CATALOGUE) if f"`{name}" not in PAGE] == []


def test_the_sets_known_by_md5_alone_are_named():
    [named] = re.findall(r"no SHA-256 is known from several\s+places \((.*?)\)", PAGE, flags=re.S)
    weak = {n.removesuffix("-python") for n, e in CATALOGUE.items() if _has_md5(e)}
    assert {name.lower().replace("cifar-", "cifar") for name in re.split(r",\s+", named)} == weak


def _has_md5(entry) -> bool:
    return any(file.checksum.startswith("md5:") for file in entry.files)
