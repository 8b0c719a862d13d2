"""What does not measure does not wait for torch: the import itself, the version, and help."""

import json
import pathlib

import pytest

from light import ends_of, help_lines, printed
from spiritlevel.cli import changes, commands
from spiritlevel.verbs.pruning import measuring

OWN = json.loads(pathlib.Path(commands.__file__).with_name(commands.INDEX).read_text("utf-8"))
HELP = ["--version", "--help", *help_lines(OWN)]
WORKS = "list head.kappa"  # a command that does import it


@pytest.fixture(scope="module")
def ends():
    return ends_of([*HELP, WORKS])


@pytest.mark.parametrize("line", HELP)
def test_version_and_help_take_no_torch(ends, line):
    assert ends[line] == (0, False)


def test_an_import_of_torch_would_be_noticed(ends):
    # Meta-test: a command that imports it is told apart.
    assert ends[WORKS] == (0, True)


def test_every_command_is_asked_for_its_help():
    assert {line.split()[0] for line in HELP[2:]} == set(commands.OWN)
    assert "data fetch --help" in HELP


def test_importing_the_package_loads_a_handful_of_modules():
    ours = "(n for n in sys.modules if n == 'torch' or n.startswith('spiritlevel'))"
    code = f"import spiritlevel, sys; print(*{ours})"
    names = ["spiritlevel", "spiritlevel.ground", "spiritlevel.ground.lazy"]
    assert sorted(printed(code).stdout.split()) == [*names, "spiritlevel.ground.version"]
    # Meta-test: what a name brings is counted.
    assert "torch" in printed(code.replace(";", "; spiritlevel.measure;", 1)).stdout.split()


def test_the_fewest_probes_of_prune_are_those_of_the_library():
    assert changes.MIN_PROBES == measuring.MIN_PROBES
