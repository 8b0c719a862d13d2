"""The command line, called within this process."""

from typer.testing import CliRunner, Result

from spiritlevel.cli.app import app


def run(*arguments, code: int = 0, env: dict[str, str] | None = None) -> Result:
    """As `spiritlevel ARGUMENTS`, which must end with this exit code."""
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, prog_name="spiritlevel", env=env)
    assert result.exit_code == code, result.output
    return result
