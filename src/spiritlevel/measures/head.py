"""The head in closed form: one forward pass, exact for any network below it."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core import Cost, Measurement, Status
from ..estimators.exact import Needs, Pass
from ..estimators.lanczos import largest_eigenvalue
from ..estimators.work import Work
from ..math.curvature import OutputCurvature
from ..math.head import head_product, head_trace_squared_pairs
from ._registry import Measured, measure

HEAD = Needs(head=True)
STORED = Needs(head=True, features=True)
PAIR_BLOCK = 2048  # samples a side: 32 MiB of float64 pair products
PAPER = "Taleghani et al., An accurate flatness measure"


@measure(
    name="head.trace",
    summary="Hessian trace of the last linear map, from Gini term and feature norm",
    formula=r"\operatorname{mean}_n \bigl(1 - \|p_n\|^2\bigr)\, \|\phi_n\|^2",
    paper=PAPER + ", Theorem 1 and Corollary 3 (eq. 15)",
    invariant={"unit_permute", "batch_split"},
    misleads=(
        "A product of confidence and feature norm: scaling the features moves it at will. The bias "
        "is left out; it would add the mean Gini term."
    ),
    needs=HEAD,
)
def head_trace(work: Work) -> Measured:
    """For cross-entropy as in the formula; for other losses Tr A_n replaces the Gini term."""
    return _closed_form(work, "head.trace", "trace")


@measure(
    name="head.kappa",
    summary="Relative flatness of the last linear map",
    formula=r"\operatorname{mean}_n \|\phi_n\|^2 "
    r"\Bigl(\sum_i p_i \|w_i\|^2 - \bigl\|\sum_i p_i w_i\bigr\|^2\Bigr)",
    paper=PAPER + ", Definition 1 (eq. 17); Petzka et al. 2021, Definition 3",
    invariant={"layer_rescale", "unit_permute", "batch_split"},
    misleads=(
        "Neuron-wise rescaling of the features moves it. Falls with confidence: a larger logit "
        "scale looks flatter and decides the same."
    ),
    needs=HEAD,
)
def head_kappa(work: Work) -> Measured:
    """The closed form of relative.kappa for the head."""
    return _closed_form(work, "head.kappa", "kappa")


@measure(
    name="head.trace_squared",
    summary="Trace of the squared Hessian of the last linear map",
    formula=r"\tfrac{1}{N^2} \sum_{n,m} (\phi_n \cdot \phi_m)^2 \operatorname{Tr}(A_n A_m)",
    paper="Flatness-Aware Regularization, eq. 1, in closed form for the head",
    invariant={"unit_permute", "batch_split"},
    misleads="Its cost grows with the square of the number of samples; moves under rescaling.",
    needs=STORED,
    default=False,
)
def head_trace_squared(work: Work) -> Measured:
    """‖H‖²_F over all pairs of samples, in blocks."""
    run = work.run(STORED)
    blocks = list(_blocks(work, run))
    total = torch.zeros((), dtype=torch.float64)
    for i, (left, left_features, _) in enumerate(blocks):
        for right, right_features, _ in blocks[: i + 1]:
            twice = 1 if right is left else 2
            total += (
                twice * head_trace_squared_pairs(left, left_features, right, right_features).cpu()
            )
    value = float(total) / run.head.total_weight**2
    return Measured(_measurement(work, run, "head.trace_squared", value, None))


@measure(
    name="head.lambda_max",
    summary="Largest Hessian eigenvalue of the last linear map",
    formula=r"\lambda_{\max}\Bigl(\operatorname{mean}_n A_n \otimes \phi_n \phi_n^\top\Bigr)",
    paper=PAPER + " (block form of the Hessian); Lanczos on the closed-form product",
    invariant={"unit_permute", "batch_split"},
    misleads="Moves under rescaling; one direction of C·d.",
    needs=STORED,
)
def head_lambda_max(work: Work) -> Measured:
    """Lanczos on H·V = mean A_n (V φ_n) φ_nᵀ until the residual is round-off."""
    run = work.run(STORED)
    blocks = list(_blocks(work, run))
    shape = work.head.weight().shape
    total = run.head.total_weight

    def product(v: Tensor) -> Tensor:
        direction = v.reshape(shape)
        parts = [head_product(a, phi, ones, direction) for a, phi, ones in blocks]
        return torch.stack(parts).sum(dim=0).flatten() / total

    generator = torch.Generator().manual_seed(work.seed)
    found = largest_eigenvalue(
        product, shape.numel(), generator=generator, device=torch.device("cpu")
    )
    # a Ritz value within `residual` of an eigenvalue: 1e-7 is far below float32 features' own error
    if found.residual <= 1e-7 * abs(found.value):
        return Measured(_measurement(work, run, "head.lambda_max", found.value, None))
    text = (
        f"residual {found.residual:.2g} after {found.products} products; an eigenvalue lies within "
        "it. Use fewer samples or treat the last digits with care."
    )
    return Measured(
        Measurement(
            "head.lambda_max",
            found.value,
            exact=False,
            stderr=found.residual,
            status=Status.NOT_CONVERGED,
            text=text,
            cost=run.cost + Cost(products=found.products),
            settings=_settings(work),
        )
    )


def _closed_form(work: Work, name: str, row: str) -> Measured:
    run = work.run(HEAD)
    value, error = run.head.mean([row]), run.head.stderr([row])
    return Measured(_measurement(work, run, name, value, error))


def _measurement(
    work: Work, run: Pass, name: str, value: float, data_stderr: float | None
) -> Measurement:
    return Measurement(
        name,
        value,
        exact=True,
        quantity="Hessian",
        data_stderr=data_stderr,
        text=_text(work),
        cost=run.cost,
        settings=_settings(work),
    )


def _text(work: Work) -> str:
    text = f"layer {work.head.layer!r}"
    if work.head.shared:
        text += "; its weight is also used elsewhere, and that use is not part of this number"
    return text


def _settings(work: Work) -> dict[str, object]:
    return work.settings() | {"head": work.head.layer}


def _blocks(work: Work, run: Pass) -> list[tuple[OutputCurvature, Tensor, Tensor]]:
    """Curvature, features and ones of at most PAIR_BLOCK samples, in float64."""
    features = torch.cat([phi for phi, _, _ in run.features])
    outputs = torch.cat([z for _, z, _ in run.features]).double()
    targets = torch.cat([y for _, _, y in run.features])
    blocks = []
    for start in range(0, len(features), PAIR_BLOCK):
        part = slice(start, start + PAIR_BLOCK)
        curvature = work.surface.loss.curvature(outputs[part], targets[part])
        ones = torch.ones(len(features[part]), dtype=torch.float64)
        blocks.append((curvature, features[part], ones))
    return blocks
