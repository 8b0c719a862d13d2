"""Rules for kinds of layers: how the weight acts as a matrix, and how to get per-sample gradients.

A rule prepares one use of a layer on one batch. What it returns takes the gradient δ at the layer's
output and gives the per-sample gradients of the layer's parameters, or, for weights that act as a
matrix, directly their contractions (`math/contractions.py`). A kind without a rule is not refused:
its operations are read off the graph (`model/operations.py`), and what is not known there takes the
generic route (`engine/sweep/per_sample.py`).
"""

from __future__ import annotations

from torch import nn

from .embedding import EmbeddingRule
from .layer_matrix import Contracted as Contracted
from .layer_matrix import KappaWeight as KappaWeight
from .layer_matrix import LayerMatrix as LayerMatrix
from .layer_matrix import over_columns as over_columns
from .layer_rule import AbstractLayerGradients as AbstractLayerGradients
from .layer_rule import AbstractMatrixGradients as AbstractMatrixGradients
from .layer_rule import AbstractMatrixRule as AbstractMatrixRule
from .layer_rule import AbstractRule as AbstractRule
from .layer_rule import ContractionRequest as ContractionRequest
from .layout import Layout as Layout
from .layout import candidate_layouts as candidate_layouts
from .layout import possible_layouts as possible_layouts
from .patches import ConvRule, ConvTransposeRule, LinearRule, TransposedLinearRule
from .patches import PatchGradients as PatchGradients
from .scale import ScaleRule

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

# Layers of other packages, by module and class name, so that nothing is imported for them.
_FOREIGN: dict[tuple[str, str], AbstractRule] = {
    ("transformers.pytorch_utils", "Conv1D"): TransposedLinearRule(),  # GPT-2
}


def rule_for(module: nn.Module) -> AbstractRule | None:
    """The rule for this kind of module; None also for a subclass with its own forward.

    A module whose own `forward` was replaced keeps its rule, since libraries do that only to wrap
    it; the check of the rules finds the others. A layer with a weight of no entries has none: what
    remains of it, a bias, is read off the graph.
    """
    if any(p.numel() == 0 for p in module._parameters.values() if p is not None):
        return None
    for kinds, rule in _RULES:
        for kind in kinds:
            if isinstance(module, kind) and type(module).forward is kind.forward:
                return rule
    return _FOREIGN.get((type(module).__module__, type(module).__name__))


def register_rule(kind: type[nn.Module], rule: AbstractRule) -> None:
    """Have layers of this kind go by `rule` from now on instead of the generic route."""
    _RULES.insert(0, ((kind,), rule))
