"""Shell completion: of names of measures, models and data sets, and of a whole command line.

If nothing matches, the shell completes file names as usual. It waits for this at every press of the
tab key, so a line is completed from a file, without the commands. Measures and studies that other
packages add are not offered; they work all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from .commands import index

Offers = list[tuple[str, str]]  # a name, and what it is
BUILT_IN = (
    "help",
    "install_completion",
    "show_completion",
)  # of parameters: typer adds them itself


def measures(incomplete: str) -> Offers:
    """Measures that start with `incomplete`."""
    from ..verbs import measuring as api

    return beginning(incomplete, [(card.name, card.summary) for card in api.cards()])


def model_names(incomplete: str) -> Offers:
    """Built-in networks that start with `incomplete`."""
    from ..inputs import models

    return beginning(incomplete, [(name, "built in") for name in models.names()])


def data_names(incomplete: str) -> Offers:
    """Data sets that --data accepts by name."""
    embedded = ("digits", "1,797 handwritten digits, embedded")
    return beginning(incomplete, [embedded, *fetchable("")])


def fetchable(incomplete: str) -> Offers:
    """Data sets that `spiritlevel data fetch` can download."""
    from ..inputs.data.catalogue import CATALOGUE

    return beginning(incomplete, [(name, entry.summary) for name, entry in CATALOGUE.items()])


def beginning(incomplete: str, offers: Offers) -> Offers:
    """The offers whose name starts with what was typed."""
    return [(name, text) for name, text in offers if name.startswith(incomplete)]


def complete() -> None:
    """Answer the shell, which asks through the environment."""
    _group(index(), "spiritlevel")(prog_name="spiritlevel")


def _group(tree: Mapping[str, Any], name: str) -> typer.Typer:
    app = typer.Typer(name=name, help=tree["help"], rich_markup_mode=None)
    app.callback()(_with_signature(tree["parameters"], tree["help"]))
    for word, below in tree["commands"].items():
        if below["commands"]:
            app.add_typer(_group(below, word), name=word)
        else:
            app.command(word)(_with_signature(below["parameters"], below["help"]))
    return app


def _with_signature(parameters: list[dict[str, Any]], text: str) -> Callable[..., None]:
    """A function that does nothing and has these parameters, where typer looks for them."""

    def command(**values: Any) -> None:
        """Never called: the shell asks for names alone."""

    given = [_parameter(each) for each in parameters if each["name"] not in BUILT_IN]
    command.__doc__ = text
    command.__annotations__ = {each.name: each.annotation for each in given}
    command.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    return command


def _parameter(each: Mapping[str, Any]) -> inspect.Parameter:
    kind: Any = bool if each["switch"] else list[str] if each["several"] else str
    options: dict[str, Any] = {"help": each["help"]}
    if each["offers"]:
        options["autocompletion"] = _offering([(name, text) for name, text in each["offers"]])
    declared = typer.Option(*_declared(each["flags"]), **options)
    info = declared if each["flags"] else typer.Argument(**options)
    default: Any = inspect.Parameter.empty
    if not each["required"]:
        default = False if each["switch"] else None
        kind = kind if each["switch"] else kind | None
    return inspect.Parameter(
        each["name"],
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


def _declared(flags: list[str]) -> list[str]:
    """Flags as typer takes them: --match and --no-match are one."""
    negated = [flag for flag in flags if flag.startswith("--no-")]
    if negated and (positive := negated[0].replace("--no-", "--", 1)) in flags:
        rest = [flag for flag in flags if flag not in (positive, negated[0])]
        return [f"{positive}/{negated[0]}", *rest]
    return flags


def _offering(offers: Offers) -> Callable[[str], Offers]:
    return lambda incomplete: beginning(incomplete, offers)
