"""`spiritlevel data fetch` and `list`."""

import pytest

from spiritlevel.inputs.data import catalogue

pytestmark = pytest.mark.usefixtures("pauses")  # no test waits


@pytest.fixture
def run():
    testing = pytest.importorskip("typer.testing", reason="the command line needs typer")
    from spiritlevel.cli.app import app

    def invoke(*arguments, code=0):
        result = testing.CliRunner().invoke(app, ["data", *arguments])
        assert result.exit_code == code, result.output
        return result

    return invoke


def test_command_fetch(server, toy, run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path))
    result = run("fetch", "toy")
    assert f"toy: 1 file, 0.4 MB, checksums verified, in {tmp_path / 'toy'}" in result.stdout
    assert "--data toy\n" in result.stdout
    result = run(
        "fetch", "toy", "--folder", str(tmp_path / "x"), "--source", server.address, code=1
    )
    assert "HTTP status 404" in result.stderr
    result = run("fetch", "toy", "--folder", str(tmp_path / "x"))
    assert f"--data toy:{tmp_path / 'x'}\n" in result.stdout
    assert "Did you mean 'mnist'?" in run("fetch", "mnits", code=1).stderr


def test_command_interrupted(toy, run, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("spiritlevel.inputs.data.fetch", stop)
    assert (
        "The partial download is kept. Run the same command again to continue."
        in run("fetch", "toy", code=130).stderr
    )


def test_command_list(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path))
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"")
    lines = run("list").stdout.splitlines()
    here = {line.split()[0]: line.split()[3] for line in lines if " MB " in line}
    assert here == {name: "yes" if name == "cifar10" else "no" for name in here}
    assert set(here) == set(catalogue.CATALOGUE)
    assert str(tmp_path) in "".join(lines)
