"""What a given change of a weight, the same for all samples, does to the output of its layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..layer_hooks import LayerUse
from .embedding import EmbeddingRule
from .layer_rule import AbstractMatrixRule
from .patches import ConvRule
from .unfold import padded_input

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def output_change(use: LayerUse, change: Tensor) -> Tensor:
    """Δ a_t at every position: the output is linear in the weight, so this is all that changes.

    If the use has its input with a graph, the result has one too.
    """
    a = use.input if use.live_input is None else use.live_input
    operand, rule = use.operands.get("weight"), use.rule
    weight = change if operand is None else change.reshape(operand.view.shape)
    if a.is_floating_point():
        a = a.to(weight.dtype)  # under autocast the layer itself did that
    if isinstance(rule, EmbeddingRule):
        result = weight[a]
        if use.module.padding_idx is not None:
            result = result * (a != use.module.padding_idx).unsqueeze(-1)
    elif isinstance(rule, ConvRule):
        result = _CONVOLUTIONS[len(use.module.kernel_size)](
            padded_input(use.module, a),
            weight,
            stride=use.module.stride,
            dilation=use.module.dilation,
            groups=use.module.groups,
        )
    else:
        assert isinstance(rule, AbstractMatrixRule)
        result = a @ rule.matrix(use.module, weight)[0].mT
    return result.to(use.output.dtype)
