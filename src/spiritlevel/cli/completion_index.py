"""What shells are offered, as a file: reading it takes a moment, importing torch takes seconds.

`python -m spiritlevel.cli.completion_index` writes the file anew from the commands themselves; a
test compares both.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

FILE = pathlib.Path(__file__).with_name("completion.json")


def made_from(command: Any) -> dict[str, Any]:
    """A command with its parameters and the commands below it, in plain types."""
    context = command.make_context("spiritlevel", [], resilient_parsing=True)
    return {
        "help": command.get_short_help_str(limit=100),
        "parameters": [_parameter(each, context) for each in command.params],
        "commands": {
            name: made_from(below) for name, below in getattr(command, "commands", {}).items()
        },
    }


def _parameter(parameter: Any, context: Any) -> dict[str, Any]:
    is_option = parameter.param_type_name == "option"
    offers = parameter.shell_complete(context, "")
    return {
        "name": parameter.name,
        "flags": [*parameter.opts, *parameter.secondary_opts] if is_option else [],
        "switch": bool(getattr(parameter, "is_flag", False)),
        "several": bool(parameter.multiple) if is_option else parameter.nargs != 1,
        "required": bool(parameter.required),
        "help": getattr(parameter, "help", None) or "",
        "offers": [[offer.value, offer.help or ""] for offer in offers if offer.type == "plain"],
    }


def as_text(command: Any) -> str:
    """The content of the file."""
    return json.dumps(made_from(command), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    import typer

    from .app import app

    FILE.write_text(as_text(typer.main.get_command(app)), encoding="utf-8")
