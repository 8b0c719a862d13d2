"""What does not measure does not wait for torch: the import itself, the version, and help."""

import os
import subprocess
import sys
from typing import get_args

import pytest

import fresh
from light import ends_of, help_lines, printed
from spiritlevel.cli import changes, commands, options
from spiritlevel.engine.precision import Method
from spiritlevel.model.arithmetic import Arithmetic
from spiritlevel.verbs.pruning import measuring, selection
from spiritlevel.verbs.quantization import rounding
from spiritlevel.verbs.spectra import Matrix

OWN = {name: commands.ByName()[name] for name in commands.OWN}
HELP = ["--version", "--help", *help_lines(OWN), "data list"]
# Refused before anything that computes is imported: the exit code is 2.
WRONG = [
    "measure --model mlp --memory 5",
    "measure --model mlp --memory lots",
    "measure --model mlp --method lanczos",
    "measure --model mlp --rtol 5",
    "measure --model mlp --dtype float16",
    "audit --model mlp --model-arg width",
    "spectrum --model mlp --matrix fisher",
    "landscape --model mlp --dimensions 3",
    "compare only-one.pt --model mlp",
    "quantize --model mlp --scheme rows",
    "prune --model mlp --share 2",
]
WORKS = "list head.kappa"  # a command that does import it


@pytest.fixture(scope="module")
def ends():
    return ends_of([*HELP, *WRONG, WORKS])


@pytest.mark.parametrize("line", HELP)
def test_version_and_help_take_no_torch(ends, line):
    assert ends[line] == (0, False)


@pytest.mark.parametrize("line", WRONG)
def test_wrong_arguments_end_before_torch_is_imported(ends, line):
    assert ends[line] == (2, False)


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


def test_what_commands_know_without_torch_is_what_the_library_takes():
    assert changes.MIN_PROBES == measuring.MIN_PROBES
    assert get_args(selection.Rule) == changes.RULES
    assert get_args(rounding.Scheme) == changes.SCHEMES
    assert get_args(Method) == options.METHODS
    assert get_args(Matrix) == options.MATRICES
    assert get_args(Arithmetic) == options.ARITHMETICS


def test_a_reader_that_has_enough_is_no_failure():
    command = [sys.executable, "-m", "spiritlevel", "data", "list"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": fresh.PATH},
    ) as running:
        running.stdout.close()  # as `| head -0` does
        assert running.stderr.read() == b""
    assert running.returncode == 0
