"""`@verb`: a function of a `Setup` becomes one that users call with keywords.

It is called with checked values, while nothing else uses the network, and in all processes
alike; see `model.surroundings`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ..model.arguments import ArgumentCheck, check_arguments
from ..model.surroundings import surrounded
from . import setup as shared_arguments
from .setup import CHECKS, Setup

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def verb(
    *,
    by_products: bool = False,
    **checks: ArgumentCheck,
) -> Callable[[Callable[Concatenate[Setup, Arguments], Result]], Callable[Arguments, Result]]:
    """Decorate `body(setup, model, data, *, its own, **shared: Unpack[OnLayers])`.

    Users see its arguments without `setup`, and with the keywords of `OnLayers` (or of one of the
    classes beside it) in the place of `shared`; the body finds these in its setup.

    Args:
        by_products: whether products with the Hessian are all it needs.
        checks: one for each of its own arguments.
    """

    def decorated(
        body: Callable[Concatenate[Setup, Arguments], Result],
    ) -> Callable[Arguments, Result]:
        own, shared = _parameters(body)
        known = CHECKS | checks
        if unchecked := [name for name in (*own, *shared) if name not in known]:
            raise TypeError(f"@verb needs a check of {body.__name__}'s argument {unchecked[0]!r}.")
        signature = inspect.signature(body).replace(parameters=[*own.values(), *shared.values()])

        @functools.wraps(body)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            given = _bound(body.__name__, signature, args, kwargs)
            check_arguments(body.__name__, given, known)
            alike = {name: value for name, value in given.items() if known[name].alike}
            with surrounded(body.__name__, given, alike, by_products=by_products):
                setup = Setup(**{name: given.pop(name) for name in shared})
                return cast("Callable[..., Result]", body)(setup, **given)

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: p.annotation for name, p in (own | shared).items()}
        call.__annotations__["return"] = signature.return_annotation
        return call

    return decorated


def measuring(
    *apart: str,
    by_products: bool = False,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function that measures networks, and whose argument `setup` is ready.

    Args:
        apart: which of its arguments may differ between processes, besides those of all verbs.
        by_products: whether products with the Hessian are all it needs.
    """

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)
        differing = {*apart, *(name for name, check in CHECKS.items() if not check.alike)}

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            given = dict(signature.bind(*args, **kwargs).arguments)
            given |= vars(given.pop("setup"))
            alike = {name: value for name, value in given.items() if name not in differing}
            with surrounded(function.__name__, given, alike, by_products=by_products):
                return function(*args, **kwargs)

        return call

    return decorated


def _parameters(
    body: Callable[..., Any],
) -> tuple[dict[str, inspect.Parameter], dict[str, inspect.Parameter]]:
    """The parameters of `body` itself, and the shared ones: those of the class that it unpacks."""
    _, *parameters, unpacked = inspect.signature(body).parameters.values()
    keywords = getattr(
        shared_arguments, unpacked.annotation.removeprefix("Unpack[").removesuffix("]")
    )
    shared = {
        name: p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, p in inspect.signature(Setup).parameters.items()
        if name in keywords.__optional_keys__
    }
    return {p.name: p for p in parameters}, shared


def _bound(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        _refuse_as_python(name, signature, args, kwargs)
        raise
    bound.apply_defaults()
    return dict(bound.arguments)


def _refuse_as_python(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Call a function of this name and signature: Python says best what is wrong."""
    empty = inspect.Parameter.empty
    bare = [
        p.replace(annotation=empty, default=empty if p.default is empty else None)
        for p in signature.parameters.values()
    ]
    scope: dict[str, Any] = {}
    exec(f"def {name}{inspect.Signature(bare)}: pass", scope)
    scope[name](*args, **kwargs)
