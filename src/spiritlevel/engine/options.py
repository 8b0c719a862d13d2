"""The options of single measures: radii, tolerances, regions, numbers of draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..ground.errors import SpiritlevelError, brief, suggestion
from ..math.radial import KERNELS

BANDWIDTHS = ("likelihood", "scott", "silverman")
SMALLEST_LENGTH, LARGEST_LENGTH = 1e-30, 1e30  # their products and powers still are numbers
RANGE = f"from {SMALLEST_LENGTH:g} to {LARGEST_LENGTH:g}"
WORDS_OR_LENGTHS = {"bandwidth": BANDWIDTHS, "kernel": KERNELS}
LARGEST = 2**63 - 1  # of whole numbers: beyond it they cannot become floats or tensors
TARGETS = ("auto", "error", "loss")


TEXTS = {
    "rho": "radius of the ball in which worst-case sharpness looks for the largest loss",
    "adaptive_rho": "radius of the ball of adaptive sharpness, relative to the size of each weight",
    "ascent_steps": "largest number of steps of an ascent",
    "restarts": "ascents from random starts, in addition to the one along the gradient",
    "m": "number of samples that m-sharpness perturbs together",
    "sigma": "standard deviation of the noise of average-case sharpness",
    "adaptive_sigma": "standard deviation of adaptive noise, relative to the size of each weight",
    "deviation": "increase of the error or loss that the PAC-Bayes search allows",
    "target": "what may increase: 'error', 'loss', or 'auto' to choose by the kind of loss",
    "draws": "number of noise vectors of the PAC-Bayes search",
    "initial": "the model or state_dict before training",
    "delta": "relative size of the feature perturbations",
    "kernel": "how far features are moved: 'sphere' (all by delta), 'ball' (uniform in it), or the "
    "standard deviation, in units of delta, of a normal that is cut off at delta",
    "weight_decay": "weight decay of the optimizer, as its argument of that name",
    "region": "top, left, height and width of the part of an image to leave out",
    "bandwidth": "of the kernel: 'likelihood', 'scott', 'silverman', or a share of the spread",
    "splits": "number of random splits into halves that representativeness is averaged over",
    "failure": "largest probability that the bound fails",
}
MINIMUM = {"ascent_steps": 1, "restarts": 0, "m": 1, "draws": 2, "splits": 1}  # whole numbers
MAXIMUM = 1_000_000  # of them, but of m, which is one of samples: more would never end
LENGTHS = ("rho", "adaptive_rho", "sigma", "adaptive_sigma", "deviation", "delta")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the measures; every card lists the options that it reads.

    >>> Options(rho=0.1).rho
    0.1
    """

    rho: float = 0.05
    adaptive_rho: float = 0.5
    ascent_steps: int = 20
    restarts: int = 2
    m: int = 128
    sigma: float = 0.01
    adaptive_sigma: float = 0.1
    deviation: float = 0.1
    target: str = "auto"
    draws: int = 16
    initial: Any = None
    delta: float = 0.1
    kernel: str | float = "sphere"
    weight_decay: float | None = None
    region: tuple[int, int, int, int] | None = None
    bandwidth: str | float = "likelihood"
    splits: int = 20
    failure: float = 0.05

    def __post_init__(self) -> None:
        for name in LENGTHS:
            value = getattr(self, name)
            if not _is_length(value):
                raise _refusal(name, f"a number {RANGE}", value)
        for name, least in MINIMUM.items():
            value = getattr(self, name)
            most = LARGEST if name == "m" else MAXIMUM
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                need = f"a whole number of at least {least} and at most {most:,}"
                raise _refusal(name, need, value)
        if not isinstance(self.target, str) or self.target not in TARGETS:
            raise _refusal("target", f"one of {', '.join(TARGETS)}", self.target)
        for name, words in WORDS_OR_LENGTHS.items():
            given = getattr(self, name)
            if not (isinstance(given, str) and given in words) and not _is_length(given):
                raise _refusal(name, f"one of {', '.join(words)}, or a number {RANGE}", given)
        decay = self.weight_decay
        if decay is not None and decay != 0 and not _is_length(decay):
            raise _refusal("weight_decay", f"0 or a number {RANGE}", decay)
        if not _is_number(self.failure) or not 0.0 < self.failure < 1.0:
            raise _refusal("failure", "a probability above 0 and below 1", self.failure)
        if self.region is not None:
            object.__setattr__(self, "region", _as_region(self.region))
        if self.initial is not None and not isinstance(self.initial, Mapping | nn.Module):
            raise _refusal("initial", "a model or its state_dict", type(self.initial).__name__)

    def chosen(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The named options in plain types, for the record."""
        values = {name: getattr(self, name) for name in names}
        if "initial" in values:
            values["initial"] = "given"
        return values

    def initial_state(self) -> dict[str, Tensor]:
        """The parameters before training, by name."""
        if isinstance(self.initial, nn.Module):
            return {name: p.detach() for name, p in self.initial.named_parameters()}
        return dict(self.initial or {})


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Options)}


def as_options(given: Options | Mapping[str, Any] | None) -> Options:
    """What a user passes as options: an Options, a mapping of some of them, or None."""
    if given is None:
        return Options()
    if isinstance(given, Options):
        return given
    if not isinstance(given, Mapping):
        raise SpiritlevelError(
            "The 'options' argument must be a mapping such as {'rho': 0.1}, or sl.Options. "
            f"Got {type(given).__name__}."
        )
    for name in given:
        if name not in TEXTS:
            hint = suggestion(name, TEXTS, most=1)
            raise SpiritlevelError(
                f"The 'options' argument has no option {brief(name)}.{hint} Known: "
                f"{', '.join(TEXTS)}."
            )
    return Options(**given)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= LARGEST


def _is_length(value: Any) -> bool:
    return _is_number(value) and SMALLEST_LENGTH <= value <= LARGEST_LENGTH


def _as_region(region: Any) -> tuple[int, int, int, int]:
    try:
        top, left, height, width = (int(number) for number in region)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: of a meta tensor
        raise _refusal("region", "(top, left, height, width) in pixels", region) from None
    if min(top, left) < 0 or min(height, width) < 1:
        raise _refusal("region", "(top, left, height, width) with a positive size", region)
    return top, left, height, width


def _refusal(name: str, need: str, got: Any) -> SpiritlevelError:
    return SpiritlevelError(
        f"The option {name!r} must be {need}. Got {brief(got)}. It is {TEXTS[name]}; "
        f"default {DEFAULTS[name]!r}."
    )
