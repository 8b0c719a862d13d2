"""What shells are offered, as files: reading them takes a moment, importing torch takes seconds.

`python -m spiritlevel.cli.completion_index` writes them anew from the commands themselves, beside
those of each package; a test compares both.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from ..ground import plugins
from .commands import OWN, index_file


def made_from(command: Any) -> dict[str, Any]:
    """A command with its parameters and the commands below it, in plain types."""
    below = getattr(command, "commands", {})
    return {**_told(command), "commands": {name: made_from(each) for name, each in below.items()}}


def _told(command: Any) -> dict[str, Any]:
    context = command.make_context("spiritlevel", [], resilient_parsing=True)
    return {
        "help": command.get_short_help_str(limit=300),
        "parameters": [_parameter(each, context) for each in command.params],
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


def files(command: Any) -> dict[pathlib.Path, str]:
    """The content of every file: one for the commands here, one for those of each package."""
    homes = {name: index_file(__name__) for name in OWN}
    for point in sorted(plugins.points("spiritlevel.commands"), key=lambda point: point.name):
        homes.setdefault(point.name, index_file(point.module))
    trees: dict[pathlib.Path, dict[str, Any]] = {index_file(__name__): _told(command)}
    for name, file in homes.items():
        trees.setdefault(file, {}).setdefault("commands", {})[name] = made_from(
            command.commands[name]
        )
    return {file: json.dumps(t, indent=1, ensure_ascii=False) + "\n" for file, t in trees.items()}


if __name__ == "__main__":
    import typer

    from .app import app

    for _file, _text in files(typer.main.get_command(app)).items():
        _file.write_text(_text, encoding="utf-8")
