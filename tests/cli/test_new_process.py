"""The command line in an interpreter of its own, also where a package is missing."""

import pathlib

import pytest

import fresh
import spiritlevel as sl
from spiritlevel.inputs.checkpoints import save_checkpoint
from spiritlevel.inputs.models import mlp


def in_new_process(*args: str, blocked: tuple[str, ...] = (), cwd: pathlib.Path | None = None):
    """A new interpreter; None in sys.modules makes an import fail as if it were not installed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from spiritlevel.cli import main; main()"
    )
    return fresh.run("-c", code, *args, cwd=cwd)


def test_real_process(tmp_path):
    args = ("--model", "mlp", "--samples", "20", "--measures", "head.*", "--json", "-")
    done = in_new_process("measure", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(sl.Report.from_json(done.stdout)) == {c.name for c in sl.cards("head.*")}
    assert "\x1b" not in done.stdout + done.stderr
    refused = in_new_process("show", "nothing", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == "error: No measure is called 'nothing'. See `spiritlevel list`.\n"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_missing_package_answers_with_its_pip_line(package):
    done = in_new_process("list", blocked=(package,))
    assert done.returncode == 1
    assert done.stdout == ""
    expected = f"error: The command line needs {package}: pip install 'spiritlevel[cli]'\n"
    assert done.stderr == expected


def test_missing_safetensors_answers_with_its_pip_line(tmp_path):
    save_checkpoint(mlp(), tmp_path / "a.safetensors")
    args = ("measure", "--model", "mlp", "--checkpoint", "a.safetensors")
    done = in_new_process(*args, blocked=("safetensors",), cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "error: Reading .safetensors files needs safetensors: pip install 'spiritlevel[cli]'"
        in done.stderr
    )
