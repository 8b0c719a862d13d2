"""Penalties by name: those of this package, registered ones, and a user's 'module:factory'."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from ...ground import plugins, user_code
from ...ground.errors import SpiritlevelError, brief, suggestion
from ...ground.need import need
from ...measures.other_names import known_here_as
from .flatness_penalty import FlatnessPenalty
from .head_penalty import HeadPenalty
from .kappa_penalty import KappaPenalty
from .penalty import Penalty

PenaltyFactory = Callable[..., Penalty]  # a Penalty class, or a function that makes one
Factory = TypeVar("Factory", bound=PenaltyFactory)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_factories: dict[str, PenaltyFactory] = {
    "trace_squared": FlatnessPenalty,
    "head_trace": functools.partial(HeadPenalty, kind="trace"),
    "head_kappa": functools.partial(HeadPenalty, kind="kappa"),
    "head_trace_squared": functools.partial(HeadPenalty, kind="trace_squared"),
    "kappa": KappaPenalty,
}


def register_penalty(name: str) -> Callable[[Factory], Factory]:
    """Make a penalty of your own available to studies under a name.

        @register_penalty("logits")
        class LogitPenalty(Penalty):
            ...

    A study then has `penalty: {name: logits, weight: 0.1}`. A package whose modules do this names
    them under the entry point `spiritlevel.studies`. Without registration a study can name the
    class or a function as 'module:LogitPenalty'.
    """

    def add(factory: Factory) -> Factory:
        registered = _factories.get(name, factory)
        if registered is not factory:
            raise SpiritlevelError(
                f"The penalty {name!r} is registered twice: {registered!r} and {factory!r}. "
                "Rename one."
            )
        word = "a word of letters, digits and underscores"
        then = "Choose a name such as 'my_penalty'."
        need("name", name, str.isidentifier, word, then, of="register_penalty")
        _factories[name] = factory
        return factory

    return add


def penalty_names() -> list[str]:
    """The names that `build_penalty` takes, apart from 'module:factory'."""
    plugins.load("spiritlevel.studies")
    return sorted(_factories)


def check_penalty(name: str, arguments: dict[str, Any]) -> None:
    """Refuse an unknown name or argument before there is a model."""
    _check_arguments(name, _factory(name), arguments)


def build_penalty(name: str, model: nn.Module, **arguments: Any) -> Penalty:
    """The penalty of this name, or of the factory 'module:factory' in a module of yours.

    >>> penalty = build_penalty("head_kappa", nn.Linear(2, 3), weight=0.1, every=4)
    >>> penalty.kind, penalty.every
    ('kappa', 4)
    """
    factory = _factory(name)
    _check_arguments(name, factory, arguments)
    penalty = factory(model, **arguments)
    if not isinstance(penalty, Penalty):
        raise SpiritlevelError(
            f"The penalty {name!r} must be a subclass of spiritlevel.training.Penalty, or a "
            f"function that returns one. Got {type(penalty).__name__}."
        )
    return penalty


def _factory(name: str) -> PenaltyFactory:
    if not isinstance(name, str):
        raise SpiritlevelError(
            f"The penalty must be named by a text, such as 'kappa'. Got {brief(name)}. There are: "
            f"{', '.join(penalty_names())}."
        )
    if ":" in name:
        return _imported(name)
    names = penalty_names()
    if name not in names:
        others = "relative.kappa" in known_here_as(name)
        hint = " Did you mean 'kappa'?" if others else suggestion(name, names)
        raise SpiritlevelError(
            f"No penalty is called {name!r}.{hint} There are: "
            f"{', '.join(names)}. A penalty of your own is given as 'module:factory', or "
            "registered with spiritlevel.training.register_penalty."
        )
    return _factories[name]


def _imported(name: str) -> PenaltyFactory:
    factory = user_code.imported(name, what="penalty")
    if not callable(factory):
        raise SpiritlevelError(
            f"The penalty {name!r} must name a class or function. Got {brief(factory)}. Check the "
            "spelling."
        )
    user_factory: PenaltyFactory = factory
    return user_factory


def _check_arguments(name: str, factory: PenaltyFactory, arguments: dict[str, Any]) -> None:
    parameters = list(inspect.signature(factory).parameters.values())[1:]  # without the model
    fixed = factory.keywords if isinstance(factory, functools.partial) else {}
    named = [p for p in parameters if p.kind in _NAMED and p.name not in fixed]
    names = [p.name for p in named]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for argument in arguments:
        if argument not in names and not takes_any:
            raise SpiritlevelError(
                f"The penalty {name!r} has no argument {argument!r}."
                f"{suggestion(argument, names)} It takes: {', '.join(names)}."
            )
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in arguments:
            raise SpiritlevelError(
                f"The penalty {name!r} needs the argument {parameter.name!r}, which was not given. "
                f"It takes: {', '.join(names)}."
            )
