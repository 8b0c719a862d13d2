"""What a page shows: its blocks of code in order, run, and what they print beside what it says."""

import contextlib
import dataclasses
import io
import pathlib
import re
import shlex
import textwrap

from typer.testing import CliRunner

from spiritlevel.cli.app import app

BLOCK = re.compile(r"^( *)```(python|console|text|diff)\n(.*?)^\1```", flags=re.M | re.S)
BETWEEN = re.compile(r"\s*(<!-- fmt: on -->\s*)?")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a page; a text right below a block of Python is what that prints."""

    language: str
    body: str
    printed: str | None = None


def blocks(text, *languages):
    found = list(BLOCK.finditer(text))
    kept = []
    for i, match in enumerate(found):
        printed = None
        if match[2] == "python" and i + 1 < len(found) and found[i + 1][2] == "text":
            gap = text[match.end() : found[i + 1].start()]
            printed = textwrap.dedent(found[i + 1][3]) if BETWEEN.fullmatch(gap) else None
        kept.append(Block(match[2], textwrap.dedent(match[3]), printed))
    return [block for block in kept if block.language in languages]


def without_numbers(text):
    """Lines with numbers masked and blanks squeezed: values may differ in their last digits."""
    lines = (re.sub(r"[+-]?\d[\d.e+-]*", "#", line) for line in text.strip().splitlines())
    return [" ".join(re.sub(r"─+|-{3,}", "─", line).split()) for line in lines]


def run_python(block, names, name):
    """Run it; a block that begins with the name of a file is that file, too."""
    if found := re.match(r"# (\w+\.py)\n", block.body):
        pathlib.Path(found[1]).write_text(block.body, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block.body, name, "exec"), names)
    if block.printed is not None:
        assert without_numbers(printed.getvalue()) == without_numbers(block.printed), name
    return printed.getvalue()


def run_console(block):
    """One command after the other; what stands below a command is what it prints."""
    for part in re.split(r"^\$ ", block.body, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        program, *args = shlex.split(command)
        assert program == "spiritlevel"
        result = CliRunner().invoke(app, args, prog_name="spiritlevel")
        assert result.exit_code == 0, result.output
        if shown.strip():
            assert without_numbers(result.stdout) == without_numbers(shown)
