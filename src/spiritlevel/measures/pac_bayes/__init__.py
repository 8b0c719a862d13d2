"""PAC-Bayes flatness: how much noise the weights bear before the training error rises."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from ...engine.estimate import Estimate
from ...engine.refine import cautious_count, next_count, reached
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError, brief
from ...ground.need import one_of
from ...model.losses import CrossEntropy
from ...records.measurements import Cost, Measurement, Status
from ..options import Option, count, length
from ..registry import OF_WEIGHTS, Measured, measure
from .sigma_search import FEW, NoiseLimit, SigmaSearch

TARGETS = ("auto", "error", "loss")
OPTIONS = (
    length("deviation", 0.1, "increase of the error or loss that the PAC-Bayes search allows"),
    Option(
        "target",
        "auto",
        one_of(TARGETS),
        f"one of {', '.join(TARGETS)}",
        "what may increase: 'error', 'loss', or 'auto' to choose by the kind of loss",
    ),
    count("draws", 16, "number of noise vectors of the PAC-Bayes search", least=2),
)
JIANG = "Jiang et al. 2020, Fantastic Generalization Measures"
COMPARED = "; compared with relative flatness in Petzka et al. 2021 (paper 002), Figure 5"
SEARCH = "search for σ"  # made once for both
MOST_LEVELS = 6  # of noise that a search takes in practice: with few draws, and with all of them
COST = (
    f"2 · draws forwards for each of 2 to {MOST_LEVELS} noise levels, {2 * FEW} for each of up to "
    f"{MOST_LEVELS} others (rarely more), and 1 shared; max_passes does not apply"
)


def _searching(workspace: Workspace) -> Cost:
    draws = workspace.options.draws
    return Cost(forwards=1 + 2 * (draws + min(draws, FEW)) * MOST_LEVELS)


LIMITS = (
    "It is estimated from a finite number of draws: read the interval. Jiang et al. search for an "
    "error of 0.1; here the error rises by 0.1, which is the same for a network that fits its data "
    "and is also defined for others."
)


def target(workspace: Workspace, name: str) -> None:
    """Class predictions, if the search is for a rise of the error."""
    loss = workspace.surface.loss
    if workspace.options.target == "error" and not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} with the option target='error' needs the loss 'cross_entropy', "
            f"which has classes to miss. Got {brief(loss.name)}. Use target='loss', or 'auto'."
        )


noise_measure = functools.partial(
    measure,
    requires=(target,),
    options=OPTIONS,
    found_by="draws",
    cost=COST,
    further_cost=_searching,
)


@noise_measure(
    name="pac_bayes.sigma",
    summary="1/σ² of the Gaussian noise on the weights under which the error rises by deviation",
    formula=(
        r"\sigma^{-2}, \; \sigma = \sup \{ \sigma : "
        r"\mathbb{E}_{u \sim N(0, \sigma^2 I)} E(\theta + u) - E(\theta) \le d \}"
    ),
    paper=f"{JIANG} (pacbayes-flatness){COMPARED}",
    invariant={"unit_permute", "logit_shift", "batch_split"},
    misleads=f"Rescaling the weights changes it at will. {LIMITS}",
    shared_work=SEARCH,
)
def sigma(workspace: Workspace) -> Measured:
    """1/σ², searched for with the same noise vectors at every noise level."""
    return _searched(workspace, "pac_bayes.sigma", relative=False)


@noise_measure(
    name="pac_bayes.magnitude",
    summary="pac_bayes.sigma with noise in proportion to each weight's size",
    formula=(
        r"\sigma^{-2}, \; \sigma = \sup \{ \sigma : "
        r"\mathbb{E}_{u \sim N(0, \sigma^2 \operatorname{diag} \theta^2)} "
        r"E(\theta + u) - E(\theta) \le d \}"
    ),
    paper=f"{JIANG} (pacbayes-mag-flatness, with ε = 0){COMPARED}",
    invariant=OF_WEIGHTS,
    misleads=(
        f"A weight of exactly zero gets no noise; the noise on a bias follows its size. {LIMITS}"
    ),
)
def magnitude(workspace: Workspace) -> Measured:
    """Noise σ|θ|: rescaling a network rescales its noise with it."""
    return _searched(workspace, "pac_bayes.magnitude", relative=True)


@noise_measure(
    name="pac_bayes.bound",
    summary="The PAC-Bayes term ‖θ‖²/(4σ²) + ln(n/σ) + 10, with σ of pac_bayes.sigma and n samples",
    formula=r"\frac{\|\theta\|^2}{4 \sigma^2} + \ln \frac{n}{\sigma} + 10",
    paper=(
        f"{JIANG} (pacbayes-orig); what the published code of Petzka et al. 2021 (paper 002) "
        "draws in Figure 5"
    ),
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "It is what the norm of the weights and pac_bayes.sigma say together, and rescaling the "
        "weights changes it at will. That code draws noise of standard deviation σ², so its σ is "
        "the square root of the one here; it leaves biases out of the norm, which are in it here. "
        f"{LIMITS}"
    ),
    shared_work=SEARCH,
)
def bound(workspace: Workspace) -> Measured:
    """The bound, with the error that 1/σ² gives it, by the slope there."""
    squares = sum(float(w.double().square().sum()) for w in workspace.perturbed.weights.values())

    def term(flatness: Estimate) -> Estimate:
        slope = squares / 4 + 0.5 / flatness.value
        value = squares * flatness.value / 4 + math.log(workspace.num_samples) + 10
        value += math.log(flatness.value) / 2
        return Estimate(value, slope**2 * flatness.variance, flatness.dof)

    return _searched(workspace, "pac_bayes.bound", relative=False, of=term)


def _search(workspace: Workspace, *, relative: bool) -> tuple[NoiseLimit, Cost]:
    """The noise level and its cost, searched for once for all measures that need it."""

    def find() -> tuple[NoiseLimit, Cost]:
        before = workspace.cost
        crossing = SigmaSearch(workspace, relative=relative).find()
        return crossing, workspace.cost - before

    return workspace.once(("sigma_search", relative), find)


def _searched(
    workspace: Workspace,
    name: str,
    *,
    relative: bool,
    of: Callable[[Estimate], Estimate] = lambda flatness: flatness,
) -> Measured:
    """1/σ², or what is made `of` it."""
    crossing, cost = _search(workspace, relative=relative)
    asked, found = workspace.precision, of(crossing.flatness)
    margin = found.half_width(asked.confidence)
    is_located = crossing.reached and math.isfinite(margin)
    status = Status.OK
    text = (
        f"σ = {crossing.sigma:.3g} for the {crossing.target}, from {workspace.options.draws} draws "
        f"and their mirror images, at {crossing.levels} noise levels"
    )
    if not is_located or not found.within(asked.rtol, asked.confidence):
        status = Status.NOT_CONVERGED
        text = f"{text}; {_missed(workspace, crossing, found)}"
    spread = is_located and found.stderr > 0.0
    return Measured(
        Measurement(
            name,
            found.value,
            exact=False,
            stderr=found.stderr if spread else None,
            interval=(found.value - margin, found.value + margin) if spread else None,
            residual=0.0 if is_located and not spread else None,  # all draws alike
            status=status,
            text=text,
            cost=cost,
        )
    )


def _missed(workspace: Workspace, crossing: NoiseLimit, found: Estimate) -> str:
    options, asked = workspace.options, workspace.precision
    margin = found.half_width(asked.confidence)
    if not crossing.reached:
        instead = "Use a smaller 'deviation'"
        if crossing.target == "error":
            instead = "The network may be near chance as it is: use target='loss'"
        if crossing.rise > options.deviation:
            return (
                f"even there the {crossing.target} rises by {crossing.rise:.2g}, more than the "
                f"deviation {options.deviation:.2g}: the value is a lower bound. Use a larger "
                "'deviation'."
            )
        return (
            f"even there the {crossing.target} rises by only {crossing.rise:.2g}, not by the "
            f"deviation {options.deviation:.2g}: the value is an upper bound. {instead}."
        )
    if not math.isfinite(margin):
        return (
            f"the {crossing.target} does not rise steadily there, so the error is not known. Raise "
            "the option draws, or measure on more samples."
        )
    count = next_count(found, found, options.draws, asked)
    return (
        f"{reached(found, asked)} The option draws={cautious_count(count, found.dof)} would have "
        "sufficed; max_passes does not affect this measure."
    )
