"""The command line, called within this process."""

from typer.testing import CliRunner, Result

from spiritlevel.cli.app import app
from spiritlevel.cli.commands import OF_THE_LAB
from spiritlevel.ground import plugins

# Commands of the laboratory, where it is not installed.
ABSENT = set(OF_THE_LAB) - {point.name for point in plugins.points("spiritlevel.commands")}


def run(*arguments, code: int = 0, env: dict[str, str] | None = None) -> Result:
    """As `spiritlevel ARGUMENTS`, which must end with this exit code."""
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, prog_name="spiritlevel", env=env)
    assert result.exit_code == code, result.output
    return result
