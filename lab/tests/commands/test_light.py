"""Help and completion of the laboratory's commands do not wait for torch."""

import pathlib

import pytest

import spiritlevel_lab
from light import ends_of, help_lines, offered, printed
from spiritlevel.cli import completion
from spiritlevel.cli.commands import OF_THE_LAB, ByName
from spiritlevel_lab.population.registry import study_names

HERE = pathlib.Path(spiritlevel_lab.__file__).parent
HELP = list(help_lines({name: ByName()[name] for name in OF_THE_LAB}))


@pytest.fixture(scope="module")
def ends():
    return ends_of([*HELP, "study list"])


@pytest.mark.parametrize("line", HELP)
def test_help_takes_no_torch(ends, line):
    assert ends[line] == (0, False)


def test_an_import_of_torch_would_be_noticed(ends):
    # Meta-test: a command that imports it is told apart.
    assert ends["study list"] == (0, True)
    assert {"study measure --help", "watch --help", "demo --help"} <= set(HELP)


def test_the_file_of_completion_has_all_studies():
    """If not, write into it what `told` holds."""
    told = completion.written(studies=dict.fromkeys(study_names(), "built in"))
    assert (HERE / "commands" / completion.FILE).read_text("utf-8") == told


def test_a_shell_does_not_wait_for_torch():
    assert offered("spiritlevel study run di") == (["digits"], "False")


def test_importing_the_package_loads_a_handful_of_modules():
    code = "import spiritlevel_lab, sys; print(*sys.modules)"
    loaded = [name for name in printed(code).stdout.split() if name.startswith("spiritlevel")]
    names = ["spiritlevel", "spiritlevel.ground", "spiritlevel.ground.lazy"]
    assert sorted(loaded) == [*names, "spiritlevel.ground.version", "spiritlevel_lab"]
