"""Sharpness: how much the loss rises nearby, at worst or on average."""

from __future__ import annotations

import functools

from ...engine.refine import MeanOfDraws, missed, refine
from ...engine.weight_space.perturbed import WeightNoise
from ...engine.weight_space.probes import PILOT
from ...engine.workspace import Workspace
from ...records.measurements import Cost, Measurement, Status
from ..hessian_results import estimate_measurement
from ..options import count, length
from ..registry import OF_WEIGHTS, Measured, measure
from .worst_case import Ball, Worst

PASSES_A_DRAW = 2  # the noise and its mirror image
FORET = "Foret et al. 2021, Sharpness-Aware Minimization, Equation 1"
KWON = "Kwon et al. 2021, ASAM, Definition 2, elementwise and with η = 0"
ANDRIUSHCHENKO = "Andriushchenko et al. 2023, A Modern Look at Sharpness, Section 2"
STILL_CLIMBING = 0.01  # of the value: a climb that ends with more is not at its end
NEGLIGIBLE = 1e-9  # of the value: round-off below it is not worth a word
CLIMB_COST = "up to 1 + ascent_steps · (1 + restarts) forwards and backwards"
GROUP_COST = "up to 1 + ascent_steps forwards and backwards"
NOISE_COST = "2 forwards per draw, as many draws as rtol needs, up to max_passes; 1 shared"

RHO = length(
    "rho", 0.05, "radius of the ball in which worst-case sharpness looks for the largest loss"
)
ADAPTIVE_RHO = length(
    "adaptive_rho",
    0.5,
    "radius of the ball of adaptive sharpness, relative to the size of each weight",
)
STEPS = count("ascent_steps", 20, "largest number of steps of an ascent", least=1)
RESTARTS = count(
    "restarts", 2, "ascents from random starts, in addition to the one along the gradient", least=0
)
GROUP = count(
    "m", 128, "number of samples that m-sharpness perturbs together", least=1, most=2**63 - 1
)
SIGMA = length("sigma", 0.01, "standard deviation of the noise of average-case sharpness")
ADAPTIVE_SIGMA = length(
    "adaptive_sigma",
    0.1,
    "standard deviation of adaptive noise, relative to the size of each weight",
)


def _climbing(workspace: Workspace) -> Cost:
    steps = 1 + workspace.options.ascent_steps * (1 + workspace.options.restarts)
    return Cost(forwards=steps, backwards=steps)


def _climbing_groups(workspace: Workspace) -> Cost:
    steps = 1 + workspace.options.ascent_steps
    return Cost(forwards=steps, backwards=steps)


def _drawing(workspace: Workspace) -> Cost:
    return Cost(forwards=1 + max(2 * PASSES_A_DRAW, workspace.precision.max_passes))


LOCAL = "The search finds a local maximum: the value is a lower bound."
ORDER = (
    "Groups are made from the samples in the order of the data (with several processes, each from "
    "its part), so another order gives another value."
)
SIZE_OF_BIASES = (
    "Biases and normalization parameters are perturbed in proportion to their size too; a weight "
    "that is exactly zero stays zero."
)


noise_measure = functools.partial(measure, found_by="draws", cost=NOISE_COST, further_cost=_drawing)
group_measure = functools.partial(
    measure, found_by="search", cost=GROUP_COST, further_cost=_climbing_groups
)
climb_measure = functools.partial(
    measure, found_by="search", cost=CLIMB_COST, further_cost=_climbing, in_audit=True
)


@climb_measure(
    name="sharpness.worst",
    summary="Largest rise of the loss within a ball of radius rho around the weights (SAM)",
    formula=r"\max_{\|\varepsilon\|_2 \le \rho} L(\theta + \varepsilon) - L(\theta)",
    paper=FORET + "; paper 001, Appendix A.6",
    invariant={"unit_permute", "logit_shift", "batch_split"},
    misleads=(
        f"{LOCAL} Rescaling the weights changes it at will, so it cannot be compared between "
        "networks or training runs. Away from a minimum it is mostly ρ times the gradient's norm."
    ),
    options=(RHO, STEPS, RESTARTS),
)
def worst(workspace: Workspace) -> Measured:
    """By climbs along the gradient and from random starts."""
    return _at_worst(workspace, "sharpness.worst", relative=False)


@climb_measure(
    name="sharpness.adaptive",
    summary="Largest rise of the loss in a ball measured in units of each weight's size (ASAM)",
    formula=r"\max_{\|\varepsilon / |\theta|\|_2 \le \rho} L(\theta + \varepsilon) - L(\theta)",
    paper=KWON,
    invariant=OF_WEIGHTS,
    misleads=(
        f"{LOCAL} {SIZE_OF_BIASES} It falls with confidence (large logits), which says nothing "
        "about the decision, and correlates with generalization less than one would hope "
        "(Andriushchenko et al. 2023)."
    ),
    options=(ADAPTIVE_RHO, STEPS, RESTARTS),
)
def adaptive(workspace: Workspace) -> Measured:
    """As sharpness.worst in coordinates ε/|θ|, which rescaling leaves alone."""
    return _at_worst(workspace, "sharpness.adaptive", relative=True)


@group_measure(
    name="sharpness.m_worst",
    summary="Worst case over groups of m samples, each with its own perturbation, on average",
    formula=(
        r"\frac{1}{|G|} \sum_{g \in G} \max_{\|\varepsilon\|_2 \le \rho} "
        r"L_g(\theta + \varepsilon) - L_g(\theta)"
    ),
    paper=FORET + " and Section 4.1 (m-sharpness); " + ANDRIUSHCHENKO,
    invariant={"unit_permute", "logit_shift"},
    misleads=f"Like sharpness.worst. {ORDER} It grows as m falls: compare at equal m only.",
    options=(RHO, GROUP, STEPS),
)
def m_worst(workspace: Workspace) -> Measured:
    """One climb per group."""
    return _by_group(workspace, "sharpness.m_worst", relative=False)


@group_measure(
    name="sharpness.adaptive_m_worst",
    summary="Worst case over groups of m samples in units of each weight's size, on average",
    formula=(
        r"\frac{1}{|G|} \sum_{g \in G} \max_{\|\varepsilon / |\theta|\|_2 \le \rho} "
        r"L_g(\theta + \varepsilon) - L_g(\theta)"
    ),
    paper=f"{KWON}; {ANDRIUSHCHENKO}",
    invariant=OF_WEIGHTS - {"batch_split"},
    misleads=f"Like sharpness.adaptive. {ORDER} It grows as m falls: compare at equal m only.",
    options=(ADAPTIVE_RHO, GROUP, STEPS),
)
def adaptive_m_worst(workspace: Workspace) -> Measured:
    """One climb per group, in coordinates ε/|θ|."""
    return _by_group(workspace, "sharpness.adaptive_m_worst", relative=True)


@noise_measure(
    name="sharpness.average",
    summary="Mean rise of the loss under Gaussian noise of size sigma on every weight",
    formula=(r"\mathbb{E}_{\varepsilon \sim N(0, \sigma^2 I)} L(\theta + \varepsilon) - L(\theta)"),
    paper=ANDRIUSHCHENKO + " (average case); paper 001, Appendix A.6",
    invariant={"unit_permute", "logit_shift", "batch_split"},
    misleads=(
        "Rescaling the weights changes it at will. For small noise it is ½σ² times the Hessian's "
        "trace, which curvature.trace gives at a lower cost and often exactly. In float32 a rise "
        "below a thousandth of the loss loses digits."
    ),
    options=(SIGMA,),
)
def average(workspace: Workspace) -> Measured:
    """Over pairs of noise and its mirror image."""
    return _on_average(workspace, "sharpness.average", relative=False)


@noise_measure(
    name="sharpness.adaptive_average",
    summary="Mean rise of the loss under Gaussian noise in proportion to each weight's size",
    formula=(
        r"\mathbb{E}_{\varepsilon \sim N(0, \sigma^2 \operatorname{diag} \theta^2)} "
        r"L(\theta + \varepsilon) - L(\theta)"
    ),
    paper=ANDRIUSHCHENKO + " (average case, adaptive)",
    invariant=OF_WEIGHTS,
    misleads=(
        f"{SIZE_OF_BIASES} It falls with confidence (large logits), which says nothing about the "
        "decision."
    ),
    options=(ADAPTIVE_SIGMA,),
)
def adaptive_average(workspace: Workspace) -> Measured:
    """As sharpness.average, with noise σ|θ|."""
    return _on_average(workspace, "sharpness.adaptive_average", relative=True)


def _ball(workspace: Workspace, *, relative: bool) -> Ball:
    radius = workspace.options.adaptive_rho if relative else workspace.options.rho
    return Ball(workspace, radius=radius, relative=relative)


def _at_worst(workspace: Workspace, name: str, *, relative: bool) -> Measured:
    before = workspace.cost
    worst = _ball(workspace, relative=relative).over_all_data()
    text = f"the highest of {_many(worst.climbs, 'climb')}, {worst.steps} steps in all"
    if worst.apart > STILL_CLIMBING * worst.rise:
        text += f"; they ended up to {worst.apart:.2g} apart, so raise restarts for more of them"
    return _search_measurement(workspace, name, worst, text, workspace.cost - before)


def _by_group(workspace: Workspace, name: str, *, relative: bool) -> Measured:
    before = workspace.cost
    worst, groups = _ball(workspace, relative=relative).over_groups(workspace.options.m)
    text = f"a climb in each of {_many(groups, 'group')}, {worst.steps} steps in all"
    return _search_measurement(workspace, name, worst, text, workspace.cost - before)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _search_measurement(
    workspace: Workspace, name: str, worst: Worst, text: str, cost: Cost
) -> Measured:
    """A lower bound of the worst case, and what may be missing."""
    climbing = worst.unfinished > STILL_CLIMBING * worst.rise
    if climbing:
        text += (
            f"; still rising, by {worst.unfinished:.2g} at the end. Raise ascent_steps above "
            f"{workspace.options.ascent_steps}."
        )
    return Measured(
        Measurement(
            name,
            worst.rise,
            exact=False,
            residual=worst.residual,
            status=Status.NOT_CONVERGED if climbing else Status.OK,
            text=text,
            cost=cost,
        )
    )


def _on_average(workspace: Workspace, name: str, *, relative: bool) -> Measured:
    before, asked, options = workspace.cost, workspace.precision, workspace.options
    sigma = options.adaptive_sigma if relative else options.sigma
    noise = WeightNoise(workspace.perturbed, workspace.draws, relative=relative)
    draws = MeanOfDraws(
        lambda numbers: noise.rises(sigma, numbers), pilot=PILOT, passes_a_draw=PASSES_A_DRAW
    )
    refine(draws, asked)
    estimate = draws.estimate()
    text = f"{draws.count} draws, each with its mirror image"
    cost = workspace.cost - before
    lost = workspace.perturbed.round_off(workspace.perturbed.unperturbed_loss)
    if lost > asked.rtol * abs(estimate.value):
        text += f"; round-off alone may be ±{lost:.1g}: use more noise, or a network in float64"
    return Measured(
        estimate_measurement(
            workspace,
            name,
            estimate,
            text=text,
            missed=lambda: f"{text}; {missed(draws, asked, estimate)}",
            cost=cost,
            residual=lost if lost > NEGLIGIBLE * abs(estimate.value) else None,
        )
    )
