"""Per kind of layer: how its weight acts as a matrix, and how per-sample gradients come about.

A `Call` is one use of a layer on one batch. It takes the gradient δ at the layer's output and gives
the per-sample gradients of the layer's parameters, or, for weights that act as a matrix, directly
their contractions (`math/contractions.py`). A kind that has no rule here is not refused: its
parameters go the generic route (`engine/sweep/per_sample.py`).
"""

from __future__ import annotations

from torch import nn

from .embedding import EmbeddingRule
from .layer_rule import AbstractCall as AbstractCall
from .layer_rule import AbstractMatrixCall as AbstractMatrixCall
from .layer_rule import AbstractMatrixRule as AbstractMatrixRule
from .layer_rule import AbstractRule as AbstractRule
from .layer_rule import ContractionRequest as ContractionRequest
from .layout import Layout as Layout
from .layout import candidate_layouts as candidate_layouts
from .patches import ConvRule, ConvTransposeRule, LinearRule, TransposedLinearRule
from .patches import PatchCall as PatchCall
from .scale import ScaleRule
from .weight_matrix import Contracted as Contracted
from .weight_matrix import KappaWeight as KappaWeight
from .weight_matrix import WeightMatrix as WeightMatrix
from .weight_matrix import over_columns as over_columns

_RULES: list[tuple[tuple[type[nn.Module], ...], AbstractRule]] = [
    ((nn.Linear,), LinearRule()),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), ConvRule()),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), ConvTransposeRule()),
    ((nn.Embedding,), EmbeddingRule()),
    (
        (
            nn.BatchNorm1d,
            nn.BatchNorm2d,
            nn.BatchNorm3d,
            nn.SyncBatchNorm,
            nn.InstanceNorm1d,
            nn.InstanceNorm2d,
            nn.InstanceNorm3d,
            nn.LayerNorm,
            nn.RMSNorm,
            nn.GroupNorm,
            nn.PReLU,
        ),
        ScaleRule(),
    ),
]

# Kinds of packages that are not imported for it, by module and name.
_FOREIGN: dict[tuple[str, str], AbstractRule] = {
    ("transformers.pytorch_utils", "Conv1D"): TransposedLinearRule(),  # of GPT-2
}


def rule_for(module: nn.Module) -> AbstractRule | None:
    """The rule of a module's kind; None where a subclass changed what forward computes."""
    for kinds, rule in _RULES:
        for kind in kinds:
            if isinstance(module, kind) and type(module).forward is kind.forward:
                return rule
    return _FOREIGN.get((type(module).__module__, type(module).__name__))
