"""Generalization bounds that rest on the density of the head's features.

The theorem bounds the gap by |S|^{−2/(4+m)} (κ/2m + C1 + C2/√Δ). The papers do not give all of its
constants; these follow from its proof idea, a kernel density whose bandwidth at z is δ‖z‖ with
δ = |S|^{−1/(4+m)}. With a kernel k of second moment s² a coordinate:

robustness   the loss changes by δ² E‖u‖²κ/2m on average, which is κ/2m only if E‖u‖² = m s² = 1.
             So the kernel here is the Gaussian with s² = 1/m, and all three terms belong to it.
bias         E p̂ − p = ½ s² δ² ∇²(p‖z‖²), so C1 = η L ∫|∇²(p‖z‖²)| with η = s²/2 = 1/2m.
variance     Var p̂ = p ∫k² / (n δ^m ‖z‖^m); by Cauchy and Schwarz its root integrates to at most
             n^{−2/(4+m)} √(αβ Vol) with α = ∫k² and β = ∫ p/‖z‖^m: so C2 = √(αβ) L √Vol.

m counts the features that vary over the data.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from ...engine.data_pass import Needs
from ...engine.estimate import Estimate
from ...engine.head.features import HeadFeatures, check_rows, head_features
from ...engine.refine import MeanOfDraws, advice
from ...engine.workspace import Workspace
from ...ground.need import number
from ...records.measurements import Cost, Measurement, Status
from ..hessian_results import estimate_measurement
from ..options import Option, count, word_or_length
from ..registry import EVERY, Measured, measure
from ..requirements import head
from .feature_density import (
    curvature_integral,
    head_density,
    log_inverse_norms,
    representativeness,
)

HEAD = Needs(head=True)
PETZKA = "Petzka et al. 2021, Relative Flatness and Generalization"
THEOREM = PETZKA + ", Theorem 6; Taleghani et al., Theorem 4 and Appendix B"
CONSTANTS = (
    "The paper's appendix with the exact constants was not available: they are reconstructed from "
    "the idea of its proof, with a Gaussian kernel."
)
ONE_MORE = "1 forward in addition to the shared pass"
PAIRS = ONE_MORE + ", then work that grows with the square of the number of samples"

BANDWIDTH = word_or_length(
    "bandwidth",
    "likelihood",
    "of the kernel: 'likelihood', 'scott', 'silverman', or a share of the spread",
    ("likelihood", "scott", "silverman"),
)
SPLITS = count(
    "splits",
    20,
    "number of random splits into halves that representativeness is averaged over",
    least=1,
)
FAILURE = Option(
    "failure",
    0.05,
    number(above=0, below=1),
    "a probability above 0 and below 1",
    "largest probability that the bound fails",
)
bound_measure = functools.partial(
    measure,
    invariant=EVERY - {"neuron_rescale", "free_shift"},
    direction=None,
    needs=HEAD,
    requires=(head, check_rows),
    found_by="draws",
    cost=PAIRS,
    further_cost=lambda workspace: Cost(forwards=1),
    shared_work="features of the head",  # read once for all of them
)


@bound_measure(
    name="bound.representativeness",
    summary=(
        "How well a density fitted to one half of the features predicts the loss on the other half"
    ),
    formula=r"\operatorname{mean}_{(A,B)} \Bigl|\operatorname{mean}_{i \in B} \ell_i - "
    r"\operatorname{mean}_{i \in A} E_{\xi \sim N(0, h^2)}\, "
    r"\ell\bigl(\psi(\phi_i + \xi), y_i\bigr)\Bigr|",
    paper=PETZKA + ", eq. 3 in feature space, approximated as in section 6",
    misleads=(
        "An approximation, not a bound: both halves are training data, which the network fits "
        "equally well, so the gap to new data does not show. Neuron-wise rescaling changes it. "
        "With few samples and many features, the density is little more than the samples "
        "themselves."
    ),
    options=(BANDWIDTH, SPLITS),
)
def bound_representativeness(workspace: Workspace) -> Measured:
    """The mean over random halves; labels are assumed not to change under a perturbation."""
    draws = representativeness(workspace)
    text = (
        f"{draws.count} random draws of a half; the error is that of drawing halves, which "
        f"overlap, and not of having only these samples; {head_density(workspace).text}"
    )
    return Measured(_drawn(workspace, "bound.representativeness", draws, draws.estimate(), text))


@bound_measure(
    name="bound.c1",
    summary="Bias term of the bound: curvature of the feature density times the largest loss",
    formula=r"\eta L \int \bigl|\nabla^2 \bigl(\hat p(z) \|z\|^2\bigr)\bigr|\, dz, "
    r"\quad \eta = \tfrac{1}{2m}",
    paper=THEOREM + " (absolute value inside the integral as in section 1 of the former)",
    misleads=(
        CONSTANTS + " The density is estimated, and its curvature is that of the kernels: a "
        "smaller bandwidth raises the value without limit. With the absolute value outside the "
        "integral, as Taleghani et al. print it, the integral would be zero for every density."
    ),
    options=(BANDWIDTH,),
)
def bound_c1(workspace: Workspace) -> Measured:
    """E over z ~ p̂ of |‖z‖² Δp̂/p̂ + 4 z·∇p̂/p̂ + 2m|, times L/2m."""
    rows = head_features(workspace)
    integral = curvature_integral(workspace)
    text = f"{integral.count} random draws around every sample; {head_density(workspace).text}"
    scaled = integral.estimate().scaled(_bias_factor(rows))
    return Measured(_drawn(workspace, "bound.c1", integral, scaled, text))


@bound_measure(
    name="bound.c2",
    summary="Variance term of the bound: extent of the features times the largest loss",
    formula=r"L \sqrt{\alpha\, \beta \operatorname{Vol}(\phi(S))}, \quad "
    r"\alpha = \int k^2 = \bigl(\tfrac{m}{4\pi}\bigr)^{m/2}, \quad "
    r"\beta = \operatorname{mean}_{\phi_n \ne 0} \|\phi_n\|^{-m}",
    paper=THEOREM,
    misleads=(
        CONSTANTS + " The volume is that of a box around the features, which in many dimensions "
        "is nearly all empty: the value grows or shrinks exponentially with the number of features "
        "and says little beyond that number. A single sample with small features decides β, and "
        "where all are zero, which ReLU allows, the theorem's condition fails: the text counts "
        "such samples."
    ),
    found_by="formula",
    cost=ONE_MORE,
)
def bound_c2(workspace: Workspace) -> Measured:
    """In log space: volume and norms overflow long before their product does."""
    rows = head_features(workspace)
    value, text = _variance_term(rows)
    status = Status.NONFINITE if math.isinf(value) else Status.OK
    exact = status is Status.OK
    return Measured(
        Measurement("bound.c2", value, exact=exact, status=status, text=text, cost=rows.cost)
    )


@bound_measure(
    name="bound.generalization",
    summary="Bound on the generalization gap from relative flatness and the feature density",
    formula=r"|S|^{-2/(4+m)} \Bigl(\tfrac{\kappa}{2m} + C_1 + \tfrac{C_2}{\sqrt{\Delta}}\Bigr)",
    paper=THEOREM,
    misleads=(
        "Vacuous (larger than the largest loss) for nearly every real network: the text says which "
        "term makes it so. " + CONSTANTS + " It assumes a local minimum, labels that do not change "
        "near a sample, and leaves out higher orders in 1/|S|, so that even a small value is no "
        "guarantee."
    ),
    options=(BANDWIDTH, FAILURE),
)
def bound_generalization(workspace: Workspace) -> Measured:
    """κ is that of the whole head; C1 and C2 as in the measures of these names."""
    name = "bound.generalization"
    rows = head_features(workspace)
    n, m = rows.features.shape
    rate = n ** (-2 / (4 + m))
    integral = curvature_integral(workspace)
    bias = integral.estimate().scaled(rate * _bias_factor(rows))
    variance, note = _variance_term(rows)
    terms = {
        "flatness (κ/2m)": rate * workspace.run(HEAD).head.mean(["kappa"]) / (2 * m),
        "the density's bias (C1)": bias.value,
        "the density's variance (C2/√Δ)": rate * variance / math.sqrt(workspace.options.failure),
    }
    total = sum(terms.values())
    verdict = _verdict(terms, rows.largest_loss)
    text = f"{verdict}; {integral.count} random draws; {head_density(workspace).text}"
    if "β" in note or math.isinf(total):
        text += f"; C2 {note}"
    if math.isinf(total):
        lost = Status.NONFINITE
        return Measured(
            Measurement(name, total, exact=False, status=lost, text=text, cost=rows.cost)
        )
    estimate = dataclasses.replace(bias, value=total)
    return Measured(_drawn(workspace, name, integral, estimate, text))


def _bias_factor(rows: HeadFeatures) -> float:
    return rows.largest_loss / (2 * rows.features.shape[1])


def _variance_term(rows: HeadFeatures) -> tuple[float, str]:
    """C2, and a note on how it was computed."""
    m = rows.features.shape[1]
    log_alpha = m / 2 * math.log(m / (4 * math.pi))
    log_beta, num_zero = log_inverse_norms(rows.features)
    sides = rows.features.amax(dim=0) - rows.features.amin(dim=0)  # of the smallest box
    log_vol = float(sides.log().sum())
    text = f"in {m} features, {rows.num_constant} constant ones left out"
    if num_zero:
        text += (
            f"; {num_zero} of {len(rows.features)} samples have only zeros in them and are left "
            "out of β: for their part the theorem does not hold"
        )
    if rows.largest_loss == 0.0:
        return 0.0, text
    log_value = (log_alpha + log_beta + log_vol) / 2 + math.log(rows.largest_loss)
    try:
        return math.exp(log_value), text
    except OverflowError:
        digits = log_value / math.log(10)
        return math.inf, f"too large for a float: 10^{digits:.0f}; {text}"


def _verdict(terms: dict[str, float], largest: float) -> str:
    total = sum(terms.values())
    top = max(terms, key=lambda name: terms[name])
    shares = ", ".join(f"{name} {value:.3g}" for name, value in terms.items())
    if total <= largest:
        return f"not vacuous: below the largest loss of {largest:.3g} on the data; {shares}"
    alone = [name for name, value in terms.items() if value > largest]
    cause = f"by {' and by '.join(alone)} alone" if alone else f"{top} being the largest term"
    return (
        f"vacuous, {cause}: no sample here has a loss above {largest:.3g}, so the bound says "
        f"nothing; {shares}"
    )


def _drawn(
    workspace: Workspace, name: str, draws: MeanOfDraws, estimate: Estimate, text: str
) -> Measurement:
    """An estimate from draws with its interval; if that is too wide, what would suffice."""
    return estimate_measurement(
        workspace,
        name,
        estimate,
        text=text,
        missed=lambda: f"{text}. {advice(draws, workspace.precision, estimate)}",
        cost=head_features(workspace).cost,
    )
