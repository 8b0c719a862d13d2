"""The head in closed form: one forward pass, exact for any network below it."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...engine.data_pass import Needs, PassResult
from ...engine.head.rows import RowBlock
from ...engine.weight_space.lanczos import Eigenpairs, eigenpairs
from ...engine.workspace import Workspace
from ...ground.errors import NotApplicable
from ...math.head import head_trace_squared_pairs
from ...math.signs import random_normals
from ...records.measurements import Cost, Measurement
from ..hessian_results import ROUND_OFF, eigenvalue_measurement
from ..registry import EVERY, Measured, measure, once
from ..requirements import head

HEAD = Needs(head=True)
STORED = Needs(head=True, features=True)
MIN_PRODUCTS = 300  # allowed whatever max_passes is: most take no pass through the network
# Products over a vocabulary are dear, and an eigenvalue's error falls with the residual's square.
STREAMED_RESIDUALS = {torch.float32: 1e-3, torch.float64: 1e-8}
PAIR_BLOCK = 2048  # samples a side: 32 MiB of float64 pair products
OF_FEATURES = {  # claims of a measure that sees the features through the logits alone
    *("unit_permute", "batchnorm_absorb", "batchnorm_fold", "attention_rescale", "unit_mix"),
    *("logit_shift", "batch_split"),
}
PAPER = "Taleghani et al., An accurate flatness measure"


@measure(
    name="head.trace",
    summary="Hessian trace of the last linear layer, from Gini term and feature norm",
    formula=r"\operatorname{mean}_n \bigl(1 - \|p_n\|^2\bigr)\, \|\phi_n\|^2",
    paper=PAPER + ", Theorem 1 and Corollary 3 (eq. 15)",
    invariant=OF_FEATURES,
    misleads=(
        "A product of confidence and feature norm: scaling the features changes it at will. The "
        "bias is left out; it would add the mean Gini term."
    ),
    needs=HEAD,
    default=True,
    requires=(head,),
)
def head_trace(workspace: Workspace) -> Measured:
    """For cross-entropy as in the formula; for other losses Tr A_n replaces the Gini term."""
    return _closed_form(workspace, "head.trace", "trace")


@measure(
    name="head.kappa",
    summary="Relative flatness of the last linear layer",
    formula=r"\operatorname{mean}_n \|\phi_n\|^2 "
    r"\Bigl(\sum_i p_i \|w_i\|^2 - \bigl\|\sum_i p_i w_i\bigr\|^2\Bigr)",
    paper=PAPER + ", Definition 1 (eq. 17); Petzka et al. 2021, Definition 3",
    invariant=EVERY - {"neuron_rescale", "free_shift"},
    misleads=(
        "Neuron-wise rescaling of the features changes it. It falls with confidence: larger logits "
        "look flatter, although the decisions are the same."
    ),
    needs=HEAD,
    default=True,
    requires=(head,),
)
def head_kappa(workspace: Workspace) -> Measured:
    """The closed form of relative.kappa for the head."""
    return _closed_form(workspace, "head.kappa", "kappa")


@measure(
    name="head.trace_squared",
    summary="Trace of the squared Hessian of the last linear layer",
    formula=r"\tfrac{1}{N^2} \sum_{n,m} (\phi_n \cdot \phi_m)^2 \operatorname{Tr}(A_n A_m)",
    paper="Flatness-Aware Regularization, eq. 1, in closed form for the head",
    invariant=OF_FEATURES,
    misleads="Its cost grows with the square of the number of samples. Rescaling changes it.",
    needs=STORED,
    requires=(head,),
)
def head_trace_squared(workspace: Workspace) -> Measured:
    """‖H‖²_F over all pairs of samples, in blocks."""
    run = workspace.run(STORED)
    blocks = _pair_blocks(workspace, run)
    total = torch.zeros((), dtype=torch.float64)
    for i, left in enumerate(blocks):
        for right in blocks[: i + 1]:
            twice = 1 if right is left else 2
            pairs = head_trace_squared_pairs(
                left.curvature, left.features, right.curvature, right.features
            )
            total += twice * pairs.cpu()
    value = float(total) / run.head.total_weight**2
    return Measured(_measurement(workspace, run, "head.trace_squared", value, None))


@measure(
    name="head.lambda_max",
    summary="Largest Hessian eigenvalue of the last linear layer",
    formula=r"\lambda_{\max}\Bigl(\operatorname{mean}_n A_n \otimes \phi_n \phi_n^\top\Bigr)",
    paper=PAPER + " (block form of the Hessian); Lanczos on the closed-form product",
    invariant=OF_FEATURES,
    misleads="Rescaling changes it; one direction of C·d.",
    needs=STORED,
    default=True,
    found_by="products",
    requires=(head,),
)
def head_lambda_max(workspace: Workspace) -> Measured:
    """Lanczos on H·V = mean A_n (V φ_n) φ_nᵀ until the residual is that of the products."""
    return _largest(workspace, "head.lambda_max", 1.0)


@measure(
    name="head.scaled_lambda_max",
    summary="Squared weight norm times largest Hessian eigenvalue of the last linear layer",
    formula=r"\|W\|_F^2\, \lambda_{\max}\Bigl("
    r"\operatorname{mean}_n A_n \otimes \phi_n \phi_n^\top\Bigr)",
    paper="Petzka et al. 2019, A Reparameterization-Invariant Flatness Measure, Table 1 (κ^l), in "
    "closed form for the head",
    invariant=EVERY - {"neuron_rescale", "free_shift", "logit_shift"},
    misleads=(
        "Neuron-wise rescaling of the features changes it; one direction of C·d. A few large "
        "weights that the loss does not depend on raise it."
    ),
    needs=STORED,
    found_by="products",
    requires=(head,),
)
def head_scaled_lambda_max(workspace: Workspace) -> Measured:
    """From the same Lanczos run as head.lambda_max."""
    squares = float(workspace.head.weight().detach().double().square().sum())
    return _largest(workspace, "head.scaled_lambda_max", squares)


def _largest(workspace: Workspace, name: str, factor: float) -> Measured:
    """A multiple of the largest eigenvalue, which is looked for once."""
    run, pairs = workspace.run(STORED), _lanczos(workspace)
    cost = run.cost + Cost(products=pairs.products)
    result = eigenvalue_measurement(
        workspace, name, pairs, cost=cost, factor=factor, residual_rtol=_residual(workspace)
    )
    text = "; ".join(part for part in (_text(workspace), result.text) if part)
    return Measured(dataclasses.replace(result, text=text, settings={"head": workspace.head.layer}))


def _product_dtype(workspace: Workspace) -> torch.dtype:
    """That of the weights where products are dear, and float64 otherwise."""
    if workspace.run(STORED).streamed:
        return torch.promote_types(workspace.head.weight().dtype, torch.float32)
    return torch.float64


def _residual(workspace: Workspace) -> float:
    return (
        STREAMED_RESIDUALS[_product_dtype(workspace)] if workspace.run(STORED).streamed else 1e-10
    )


@once
def _lanczos(workspace: Workspace) -> Eigenpairs:
    """Kept without the vector, which is as large as the weights."""
    run = workspace.run(STORED)
    weight = workspace.head.weight()
    dtype = _product_dtype(workspace)
    total = run.head.total_weight
    processes = workspace.surface.processes

    def product(v: Tensor) -> Tensor:
        direction = v.reshape(weight.shape)
        # one for all blocks: vectors may be large, so there are no more of them than needed
        image = torch.zeros(weight.shape, dtype=dtype, device=weight.device)
        with processes.together():
            for block in workspace.head_blocks():
                block.add_product(direction, image)
        processes.sum_(image)
        return image.flatten().div_(total)

    size = weight.numel() * dtype.itemsize
    pair = eigenpairs(
        product,
        random_normals(
            workspace.seed, 0, torch.zeros(1, device=weight.device), weight.numel(), dtype
        ),
        residual_rtol=_residual(workspace),
        # the word exact is worth a few products more
        rtol=ROUND_OFF if dtype == torch.float64 else None,
        max_products=max(MIN_PRODUCTS, workspace.precision.max_passes),
        max_basis=max(3, min(workspace.memory // size - 2, 60)),  # products and result are as large
    )
    return dataclasses.replace(pair, vectors=pair.vectors.new_empty(0))


def _closed_form(workspace: Workspace, name: str, row: str) -> Measured:
    run = workspace.run(HEAD)
    value, error = run.head.mean([row]), run.head.stderr([row])
    return Measured(_measurement(workspace, run, name, value, error))


def _measurement(
    workspace: Workspace, run: PassResult, name: str, value: float, data_stderr: float | None
) -> Measurement:
    return Measurement(
        name,
        value,
        exact=True,
        quantity="Hessian",
        data_stderr=data_stderr,
        text=_text(workspace),
        cost=run.cost,
        settings={"head": workspace.head.layer},
    )


def _text(workspace: Workspace) -> str:
    text = f"layer {workspace.head.layer!r}"
    if workspace.head.shared:
        text += (
            "; its weight is also used elsewhere (tied), and that use is not part of this number"
        )
    return text


def _pair_blocks(workspace: Workspace, run: PassResult) -> list[RowBlock]:
    """The rows of all processes in blocks of at most PAIR_BLOCK."""
    stored = [block.on_host() for block in workspace.head_blocks() if isinstance(block, RowBlock)]
    if run.streamed:
        raise NotApplicable(
            "The measure 'head.trace_squared' needs the outputs of all samples, and those of "
            f"{workspace.plan.num_outputs} outputs a sample do not fit in "
            f"memory={workspace.memory}. "
            "Leave it out of 'measures', use fewer samples, or raise 'memory'."
        )
    blocks = [block for part in workspace.surface.processes.gather(stored) for block in part]
    kind = type(blocks[0].curvature)
    features = torch.cat([block.features for block in blocks])
    arguments = [
        torch.cat(parts)
        for parts in zip(*(block.curvature.arguments() for block in blocks), strict=True)
    ]
    return [
        RowBlock(features[part], kind(*(argument[part] for argument in arguments)))
        for part in (
            slice(start, start + PAIR_BLOCK) for start in range(0, len(features), PAIR_BLOCK)
        )
    ]
