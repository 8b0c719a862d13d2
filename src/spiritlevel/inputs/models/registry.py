"""From a name or `module:factory` to a network."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...ground import plugins, user_code
from ...ground.errors import SpiritlevelError, brief, suggestion
from ...ground.need import need, or_none
from .convolutional import densenet121, resnet18, vgg16, vgg_small
from .efficientnet_lite0 import INSTALL, efficientnet_lite0
from .published import is_published, published
from .small import digits_cnn, lenet5, mlp
from .transformers import text_transformer, vit_small

_BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "densenet121": densenet121,
    "digits_cnn": digits_cnn,
    "lenet5": lenet5,
    "mlp": mlp,
    "resnet18": resnet18,
    "text_transformer": text_transformer,
    "vgg16": vgg16,
    "vgg_small": vgg_small,
    "vit_small": vit_small,
}
# Beside those, what needs a package of its own, and what installed packages register.
_registered: dict[str, Callable[..., nn.Module]] = {"efficientnet_lite0": efficientnet_lite0}
TO_INSTALL = {"efficientnet_lite0": INSTALL}  # the command for those packages


def register_model(name: str, factory: Callable[..., nn.Module]) -> None:
    """Let `build` and studies find a factory under this name."""
    if name in _BUILT_IN or _registered.get(name, factory) is not factory:
        raise SpiritlevelError(f"A model is already registered as {name!r}. Choose another name.")
    _registered[name] = factory


def names() -> list[str]:
    """The built-in models.

    >>> names()[:3]
    ['densenet121', 'digits_cnn', 'lenet5']
    """
    return sorted(_BUILT_IN)


def build(spec: str, *, seed: int | None = None, **options: Any) -> nn.Module:
    """A network from a built-in name, `module:factory` or `hf:folder`.

    The factory is a function or class in a module of yours, which is looked for in the
    working directory first, and called with `options`. `hf:` loads a model of transformers with its
    weights, from a folder that save_pretrained wrote or by its name on the hub; `options` are those
    of from_pretrained.

    Without `seed` the weights are drawn from torch's global generator, as any module's are; with it
    they depend on `seed` alone, and the global generator stays as it was.

    >>> model = build("mlp", seed=0, hidden=(8,))
    >>> tuple(model.head.weight.shape)
    (10, 8)
    """
    if not isinstance(spec, str):
        raise SpiritlevelError(
            "The model must be named by a text, such as 'mlp' or 'module:factory'. Got "
            f"{brief(spec)}."
        )
    wanted = "a whole number of Python that fits into 64 bits, or None"
    fits = or_none(lambda n: type(n) is int and -(2**63) <= n < 2**64)
    need("seed", seed, fits, wanted, of="build")
    factory = find_factory(spec)
    _check_options(spec, factory, options)
    with contextlib.ExitStack() as stack:
        if not (is_published(spec) or is_registered(spec)):
            # a user's factory may import its neighbours when it is called
            stack.enter_context(user_code.working_folder_importable())
        if seed is not None:
            devices = range(torch.cuda.device_count())
            stack.enter_context(torch.random.fork_rng(devices=devices))
            torch.manual_seed(seed)
        model = _call(spec, factory, options)
    if not isinstance(model, nn.Module):
        raise SpiritlevelError(
            f"The factory {spec!r} must return a torch.nn.Module. Got {type(model).__name__}. "
            "Check its return statement."
        )
    return model


def find_factory(spec: str) -> Callable[..., object]:
    """The function or class that builds this network."""
    if is_published(spec):
        return published(spec)
    if is_registered(spec):
        return _BUILT_IN.get(spec) or _registered[spec]
    if ":" in spec:
        return _user_factory(spec)
    raise SpiritlevelError(
        f"No built-in model is called {spec!r}.{suggestion(spec, _BUILT_IN, most=3)} "
        f"There are: {', '.join(names())}. A network of your own is given as 'module:factory', a "
        "model of transformers as 'hf:folder'."
    )


def is_registered(spec: str) -> bool:
    """Whether the name is built in or was registered by an installed package."""
    if spec not in _BUILT_IN and spec not in _registered:
        plugins.load("spiritlevel.studies")
    return spec in _BUILT_IN or spec in _registered


def _user_factory(spec: str) -> Callable[..., object]:
    factory = user_code.imported(spec, what="model")
    if isinstance(factory, nn.Module) or not callable(factory):
        raise SpiritlevelError(
            f"The model {spec!r} must name a function or class that builds the network. "
            f"Got an object of type {type(factory).__name__}. "
            "Write a function that returns it and name the function."
        )
    user_factory: Callable[..., object] = factory
    return user_factory


def _check_options(spec: str, factory: Callable[..., object], options: dict[str, Any]) -> None:
    """Refuse options the factory does not take, before its own code can fail on them."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # written in C: it must check for itself
        return
    try:
        signature.bind(**options)
    except TypeError as error:
        raise SpiritlevelError(
            f"The model {spec!r} cannot be built with the options {options}: {error}. "
            f"It takes {signature}."
        ) from None


def _call(spec: str, factory: Callable[..., object], options: dict[str, Any]) -> object:
    try:
        return factory(**options)
    except SpiritlevelError:
        raise
    except Exception as error:
        raise SpiritlevelError(
            f"Building the model {spec!r} with the options {options} failed in its own code: "
            f"{type(error).__name__}: {error}."
        ) from error
