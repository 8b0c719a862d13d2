"""Studies that other packages add under the names of their files."""

import pytest

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel_lab import find, register_study
from spiritlevel_lab.population import registry


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_studies", dict(registry._studies))
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nseeds: 3\n")
    return path


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["text", "path"])
def test_a_study_is_found_by_the_name_of_its_file(file, kind):
    register_study(kind(file))
    assert len(find("mine").runs()) == 3


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (7, "must be a path or a resource of a package. Got 7, of type int"),
        (None, "must be a path or a resource of a package. Got None"),
        ("mine.txt", "must end in '.yaml'. Got 'mine.txt'. Rename"),
    ],
)
def test_what_is_no_file_of_a_study_is_refused(file, given, match):
    with pytest.raises(SpiritlevelError, match=f"'file' argument of register_study {match}"):
        register_study(given)
