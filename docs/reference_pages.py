"""Pages that are made and not written: functions, families of measures, commands.

`api.md` lists the functions and classes, by heading and with the guides that go with them; each has
a page with what its docstring says, an example from `api-examples.md`, and what to look at next.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import click
import typer
from mkdocs.structure.files import File, Files
from symbols import symbols

import spiritlevel as sl
from spiritlevel.cli import check_values
from spiritlevel.cli.app import app
from spiritlevel.cli.cards import markdown_table
from spiritlevel.measures import METHODS
from spiritlevel.measures.options import known_options
from spiritlevel.symmetries import SYMMETRIES

DOCS = pathlib.Path(__file__).parent
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", flags=re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"^- `([\w.]+)`$", flags=re.MULTILINE)
FAMILY = re.compile(r"^\| `(\w+)\.\*` \| (.+?) \|$", flags=re.MULTILINE)
SEE = re.compile(r"^See (.+)$", flags=re.MULTILINE)


def on_config(config: Any) -> Any:
    """Add the pages to the menu, below those that list them."""
    entries = {"api.md": _api_menu, "measures.md": _measure_menu, "command-line.md": _command_menu}
    for top in config.nav or []:
        for pages in top.values():
            if not isinstance(pages, list):
                continue
            for entry in pages:
                [(title, path)] = entry.items()
                if isinstance(path, str) and path in entries:
                    entry[title] = [path, *entries[path]()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    if pathlib.Path(config.docs_dir) == DOCS:
        made = {**_api_pages(), **_measure_pages(), **_command_pages()}
        for path, content in made.items():
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What the pages that list them show of each."""
    if page.file.src_uri == "api.md":
        return LISTED.sub(lambda found: _line(found[1]), markdown)
    if page.file.src_uri == "measures.md":
        return FAMILY.sub(_family_row, markdown)
    if page.file.src_uri == "guides/check.md":
        return markdown.replace("<!-- reference values -->", _reference_values())
    if page.file.src_uri == "command-line.md":
        return markdown.replace("<!-- commands -->", _commands_table())
    return markdown


# -- functions and classes -------------------------------------------------------------------


def sections() -> Iterator[tuple[str, str, list[str]]]:
    """Of `api.md`: heading, links to guides, and the names below it."""
    text = (DOCS / "api.md").read_text("utf-8")
    for heading, body in SECTION.findall(text):
        see = SEE.search(body)
        yield heading, see[1] if see else "", LISTED.findall(body)


def examples() -> dict[str, str]:
    """By name, the block of code in `api-examples.md`, with what it prints."""
    text = (DOCS / "api-examples.md").read_text("utf-8")
    return {name: body.strip() for name, body in SECTION.findall(text)}


def _short(name: str) -> str:
    return re.sub(r"^spiritlevel\.(training\.integrations\.)?", "", name)


def _api_path(name: str) -> str:
    return f"api/{_short(name)}.md"


def _api_menu() -> list[dict[str, Any]]:
    return [
        {heading: [{_short(name): _api_path(name)} for name in names]}
        for heading, _, names in sections()
    ]


def _line(name: str) -> str:
    return f"- [`{_short(name)}`]({_api_path(name)}): {_summary(name)}"


def _summary(name: str) -> str:
    first = (_docstring(name) or "").partition("\n\n")[0]
    return " ".join(first.split())


def _docstring(name: str) -> str | None:
    """Read where importing would bring Lightning or transformers, which takes seconds."""
    module, _, last = name.rpartition(".")
    if "integrations" not in name:
        return inspect.getdoc(getattr(importlib.import_module(module), last))
    for path in sorted(pathlib.Path(sl.__file__).parent.glob("training/integrations/**/*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == last:
                return ast.get_docstring(node)
    raise LookupError(name)


def _api_pages() -> dict[str, str]:
    shown = examples()
    setup = shown["setup"].replace("\n", "\n    ")
    made = {}
    for _, see, names in sections():
        for name in names:
            parts = ["---\nsearch:\n  boost: 2\n---", f"::: {name}"]
            if name in shown:
                parts += [
                    "## Example",
                    shown[name],
                    f'??? note "What it begins with"\n\n    {setup}',
                ]
            others = [f"[`{_short(n)}`]({_short(n)}.md)" for n in names if n != name]
            guides = see.replace("](", "](../")
            parts += ["## See also"]
            parts += [f"- {line}" for line in (guides, ", ".join(others)) if line]
            made[_api_path(name)] = "\n\n".join(parts) + "\n"
    return made


# -- measures --------------------------------------------------------------------------------


def families() -> dict[str, list[Any]]:
    """The cards of each family."""
    found: dict[str, list[Any]] = {}
    for card in sl.cards():
        found.setdefault(card.family, []).append(card)
    return found


def _about() -> dict[str, str]:
    """What `measures.md` says of each family."""
    return dict(FAMILY.findall((DOCS / "measures.md").read_text("utf-8")))


def _measure_menu() -> list[dict[str, str]]:
    return [{name: f"measures/{name}.md"} for name in families()]


def _family_row(found: re.Match[str]) -> str:
    name, about = found.groups()
    links = (f"[`{c.name}`](measures/{name}.md#{_anchor(c.name)})" for c in families()[name])
    return f"| [{name}](measures/{name}.md) | {about} | {' '.join(links)} |"


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _measure_pages() -> dict[str, str]:
    about = _about()
    return {
        f"measures/{name}.md": "\n\n".join(
            [
                f"# {name}",
                about[name][:1].upper() + about[name][1:] + ".",
                *map(_card, cards),
                "## What changes them",
                "*moves*: the value changes although the function stays the same. "
                "[The transformations](../trust.md#the-transformations) are explained with the "
                "audit.",
                markdown_table(cards),
            ]
        )
        for name, cards in families().items()
    }


def _card(card: Any) -> str:
    by = [name for name in SYMMETRIES if name in card.invariant]
    moved = [name for name in SYMMETRIES if name not in card.invariant]
    known = known_options()
    facts = {
        "Direction": card.direction_in_words,
        "Unchanged by": ", ".join(f"`{name}`" for name in by) or "none of the known ones",
        "Changed by": ", ".join(f"`{name}`" for name in moved) or "none of the known ones",
        "How it is computed": METHODS[card.found_by],
        "Cost": card.cost_in_words(),
        "When it misleads": card.misleads,
        "From": card.paper,
    }
    options = [
        f"`{known[name].name}` ({known[name].default}): {known[name].text}" for name in card.options
    ]
    default = "Measured by default." if card.default else "Measured only on request."
    lines = [f"## `{card.name}`", f"{card.summary}. {default}", f"$$ {card.formula} $$"]
    if where := symbols(card.formula):
        lines.append("where " + "; ".join(where) + ".")
    lines += [_list(f"**{word}:** {text}" for word, text in facts.items())]
    if options:
        lines.append(_list(f"**Option** {text}" for text in options))
    return "\n\n".join(lines)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _reference_values() -> str:
    """Every reference value, and the versions that it is from."""
    expected = check_values.reference()
    versions = check_values.versions_in_words(expected["versions"])
    parts = [f"These are from {versions}, on a CPU."]
    for problem, values in expected["values"].items():
        digits = 6 if problem == check_values.DIGITS else 12
        rows = (f"| `{name}` | {value:.{digits}g} |" for name, value in values.items())
        parts.append("\n".join([f"### `{problem}`\n\n| measure | value |\n| --- | --- |", *rows]))
    return "\n\n".join(parts)


# -- commands --------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """By the words that call it, every command; the laboratory's are there too."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: str) -> None:
        below = getattr(command, "commands", None)
        if below is None:
            found[words] = command
        for name, each in (below or {}).items():
            if not each.hidden:
                walk(each, f"{words} {name}".strip())

    walk(typer.main.get_command(app), "")
    return found


def _command_path(words: str) -> str:
    return f"commands/{words.replace(' ', '-')}.md"


def _command_menu() -> list[dict[str, str]]:
    return [{words: _command_path(words)} for words in commands()]


def _commands_table() -> str:
    lines = ["| command | what it does |", "| --- | --- |"]
    for words, command in commands().items():
        first = (command.help or "").partition("\n")[0]
        lines.append(f"| [`spiritlevel {words}`]({_command_path(words)}) | {first} |")
    return "\n".join(lines)


def _command_pages() -> dict[str, str]:
    return {_command_path(words): _command(words, each) for words, each in commands().items()}


def _command(words: str, command: Any) -> str:
    called = f"spiritlevel {words}"
    context = click.Context(command, info_name=called)
    arguments = " ".join(command.collect_usage_pieces(context))
    rows = ["| option | what it does |", "| --- | --- |"]
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record:
            option, text = (" ".join(each.split()).replace("|", "\\|") for each in record)
            rows.append(f"| `{option}` | {text} |")
    parts = [f"# {called}", _text(command.help), f"```text\n{called} {arguments}\n```"]
    if examples := _examples(command.epilog):
        parts += ["## Examples", f"```text\n{examples}\n```"]
    return "\n\n".join([*parts, "## Options", "\n".join(rows)]) + "\n"


def _text(text: str | None) -> str:
    return re.sub(r"^\b\n", "", (text or "").replace("\b", ""), flags=re.MULTILINE)


def _examples(epilog: str | None) -> str:
    lines = (epilog or "").replace("\b", "").strip("\n").splitlines()
    return "\n".join(line.removeprefix("  ") for line in lines if line.strip() != "Examples:")
