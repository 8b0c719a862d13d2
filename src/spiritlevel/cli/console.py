"""What is printed where: results on stdout, everything else on stderr; colours on a terminal only.

rich uses no colours if the output is not a terminal, if TERM is dumb or if NO_COLOR is set.
`--quiet` prints only results and errors; `--verbose` adds settings, costs and times.

Characters that a terminal or a pipe cannot show are spelled in ones that it can. On Windows a pipe
takes the characters of one country, which seldom include Greek letters or a minus sign. Python then
raises an error in the middle of a result.
"""

from __future__ import annotations

import codecs
import contextlib
import enum
import io
import pathlib
import string
import sys
import textwrap
import time
import unicodedata
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from ..ground.errors import SpiritlevelError
from ..ground.plain_text import visible

if TYPE_CHECKING:
    from ..results import Progress


HANDLER = "spiritlevel.spelled"
# Where the closest letters of Unicode's own table would mislead, or there are none.
SPELLED = {"−": "-", "–": "-", "—": "-", "⁻": "-", "─": "-", "±": "+-", "×": "x", "·": "*"}
SPELLED |= {
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "→": "->",
    "∞": "inf",
    "√": "sqrt ",
    "•": "-",
}
SPELLED |= {"‖": "|", "⟨": "<", "⟩": ">", "∂": "d", "∇": "grad ", "∫": "int ", "∘": "*", "⊗": "(x)"}
SPELLED |= {"∗": "*", "÷": "/", "∑": "sum ", "∈": "in", "∼": "~", "⊤": "T", "½": "1/2", "¼": "1/4"}
SPELLED |= {"λ": "lambda"}  # Unicode writes lamda


def spell_what_cannot_be_shown(*streams: TextIO) -> None:
    """From now on, such a character is spelled instead of being an error."""
    codecs.register_error(HANDLER, _handle)
    for stream in streams:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        if hasattr(stream, "reconfigure") and codecs.lookup(encoding).name != "utf-8":
            stream.reconfigure(errors=HANDLER)


def spelled(character: str) -> str:
    """The character in ASCII.

    >>> spelled("κ"), spelled("≤"), spelled("é"), spelled("漢")
    ('kappa', '<=', 'e', '?')
    """
    if character in SPELLED or unicodedata.combining(character):
        return SPELLED.get(character, "")
    words = unicodedata.name(character, "?").split()
    if words[0] == "GREEK" and words[2:3] == ["LETTER"]:
        return words[-1].lower() if words[1] == "SMALL" else words[-1].capitalize()
    parts = unicodedata.normalize("NFKD", character)
    return parts.encode("ascii", "ignore").decode("ascii") or "?"


def _handle(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(spelled, error.object[error.start : error.end])), error.end


class Volume(enum.IntEnum):
    """How much is printed beside the result."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


VOLUME: ContextVar[Volume] = ContextVar("volume", default=Volume.NORMAL)


_OVERWRITING: ContextVar[bool] = ContextVar("overwriting", default=False)


def allow_overwriting(wanted: bool) -> bool:
    """Keep whether --overwrite was given, for `free`."""
    _OVERWRITING.set(wanted)
    return wanted


def free(path: pathlib.Path | str | None) -> None:
    """Refuse a path where a file is already, unless --overwrite was given."""
    if path is None or str(path) == "-" or _OVERWRITING.get():
        return
    if pathlib.Path(path).is_file():
        raise SpiritlevelError(
            f"The file {str(path)!r} exists already, and would be replaced. Give another path, or "
            "--overwrite."
        )


class PlainConsole(Console):
    """Prints every text as it is: brackets are not markup, and nothing in it moves the cursor.

    Names of studies, layers and files come from outside. Styles are given with rich's Text.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> None:
        """Let the command end, not rich, which would call it a failure."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text comes through here, also the cells of tables."""
        return super().render_str(visible(text, keep="\n"), **options)


def out() -> Console:
    """The console for results. A new one for each call, so that a redirected stdout is seen."""
    return PlainConsole(soft_wrap=False)


def err() -> Console:
    """The console for everything that is not a result."""
    return PlainConsole(stderr=True)


def talk(json: str | None) -> Console:
    """The console a command prints to: stdout, or stderr if `--json -` uses stdout.

    With `--json -` and --quiet nothing is printed: the JSON is the result.
    """
    if json == "-" and VOLUME.get() is Volume.QUIET:
        return PlainConsole(file=io.StringIO())
    return err() if json == "-" else out()


def say_error(text: str) -> None:
    """Print an error as one line, whatever the width of the terminal."""
    line = visible(" ".join(text.split()))
    print(f"error: {line}", file=sys.stderr, flush=True)


def show(console: Console, *parts: RenderableType) -> None:
    """Print without the trailing blanks that rich adds."""
    with console.capture() as captured:
        console.print(*parts)
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def tell(console: Console, text: str, *, mark: str = "", bold: str = "") -> None:
    """Print a paragraph, indented below its `mark`, at most 100 wide; `bold` is its bold start."""
    width = min(console.width, 100)
    bold = visible(bold)
    lines = textwrap.fill(
        bold + visible(text, keep=string.whitespace),
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
    )
    page = Text(lines)
    page.stylize("bold", len(mark), len(mark) + len(bold))
    console.print(page, soft_wrap=True)


def note(console: Console, text: str = "") -> None:
    """Print a paragraph beside the result, unless --quiet is given."""
    if VOLUME.get() >= Volume.NORMAL:
        tell(console, text)


def detail(text: str) -> None:
    """Print a line on stderr if --verbose is given."""
    if VOLUME.get() >= Volume.VERBOSE:
        err().print(text, soft_wrap=True)


def details(heading: str, facts: Mapping[str, Any]) -> None:
    """Print names with values, one line each, if --verbose is given."""
    for name, value in facts.items():
        detail(f"{heading}: {name} = {value}")


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the block took if --verbose is given."""
    start = time.monotonic()
    yield
    detail(f"time: {what} took {time.monotonic() - start:.2f} s")


@contextlib.contextmanager
def progress(text: str) -> Iterator[Progress]:
    """A progress bar on stderr, removed at the end; none if stderr is not a terminal."""
    console = err()
    described = TextColumn("{task.description}", markup=False)
    columns = (
        described,
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with (
        timed(text),
        Bars(*columns, console=console, transient=True, disable=not shows_progress()) as bars,
    ):
        task = bars.add_task(visible(text), total=None)

        def report(done: int, total: int | None, what: str) -> None:
            bars.update(task, completed=done, total=total, description=visible(what))

        yield report


def shows_progress() -> bool:
    """Whether a progress bar would be visible and is wanted."""
    return err().is_terminal and VOLUME.get() > Volume.QUIET
