"""The head of a network: its last linear layer, whose flatness has a closed form.

A head is a linear layer or an ungrouped convolution whose output is the network's output: either
averaged over positions (global average pooling; one position for a plain linear layer), or position
by position (tokens of a sequence, pixels of an image), where every position counts as a sample of
the head. That is checked on the numbers, not by the names of modules.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, brief
from ...math.positions import Positions
from ...model.autograd_graph import parameter_uses
from ...model.layer_hooks import LayerUse
from ...model.layers.unfold import average_patch, conv_windows

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclasses.dataclass(frozen=True)
class Head:
    """A layer that may be the head: whether its pooled output is the network's, or why not."""

    layer: str
    module: nn.Module
    fits: bool
    reason: str
    shared: bool  # whether the network also uses the same weight elsewhere
    by_position: bool  # whether every position has its own outputs
    calls: int  # how often the model calls the module itself

    @property
    def can_be_left_out(self) -> bool:
        """Whether the model can run without this layer's output: nothing else depends on it."""
        return isinstance(self.module, nn.Linear) and self.calls == 1

    def features(self, a: Tensor) -> Tensor:
        """φ: the layer's input or window, averaged over positions or one row per position."""
        if isinstance(self.module, CONVOLUTIONS):
            if not self.by_position:
                return average_patch(self.module, a)
            windows = conv_windows(self.module, a)
            return windows.reshape(-1, self.weight().shape[1])
        if not self.by_position and a.dim() > 2:
            return a.reshape(len(a), -1, a.shape[-1]).mean(dim=1)
        return a.reshape(-1, a.shape[-1])

    def positions(self, outputs: Tensor) -> Positions:
        """Where the network's outputs hold this layer's output at each position."""
        shape = tuple(outputs.shape[1:])
        return Positions(shape, 1 if isinstance(self.module, CONVOLUTIONS) else len(shape))

    def weight(self) -> Tensor:
        """W of shape (C, d), columns in the order of the features."""
        weight = cast(Tensor, self.module.weight).detach()
        return weight.flatten(2).mT.flatten(1) if weight.dim() > 2 else weight


def find_heads(
    uses: list[LayerUse], outputs: Tensor, interacting: Positions | None
) -> dict[str, Head]:
    """Every linear or convolutional layer, with whether it is a head or why not.

    `interacting` says which outputs interact in the loss; None if each has its own loss.
    """
    heads: dict[str, Head] = {}
    counts = parameter_uses(outputs)
    for use in uses:
        if isinstance(use.module, (nn.Linear, *CONVOLUTIONS)):
            shared = counts.get(id(use.module.weight), 0) > 1
            by_position = use.output.shape == outputs.shape and outputs.dim() > 2
            calls = sum(other.module is use.module for other in uses)
            head = Head(use.layer, use.module, False, "", shared, by_position, calls)
            reason = _why_not(head, use.output, outputs.detach(), interacting)
            heads[use.layer] = dataclasses.replace(head, fits=not reason, reason=reason)
    return heads


def head_input(
    head: Head, calls: list[tuple[Tensor, Tensor]], outputs: Tensor, where: str
) -> Tensor:
    """The head's input in a batch, in which it must have given the outputs, as in the first."""
    reason = f"the model calls it {len(calls)} times there"
    if len(calls) == head.calls:
        features, output = calls[-1]
        positions = head.positions(outputs) if head.by_position else None
        reason = _why_not(head, output, outputs.detach(), positions)
        if not reason:
            return features
    raise SpiritlevelError(
        f"The head {head.layer!r} does not give the outputs of {where}, as it does for the first "
        f"samples: {reason}. A model with several exits or heads has no closed form. Leave head.* "
        "out of 'measures', or name another 'head'."
    )


def _why_not(head: Head, out: Tensor, outputs: Tensor, interacting: Positions | None) -> str:
    if getattr(head.module, "groups", 1) != 1:
        return "a grouped convolution has no common feature vector"
    if out.dim() < 2 or len(out) != len(outputs):
        return f"its output of shape {tuple(out.shape)} does not hold one entry per sample"
    if head.by_position:
        if interacting is not None and interacting != head.positions(outputs):
            return "the loss combines outputs of different positions of this layer"
        given = out
    elif isinstance(head.module, nn.Linear):
        given = out.reshape(len(out), -1, out.shape[-1]).mean(dim=1)
    else:
        given = out.flatten(2).mean(dim=2)
    given, outputs = given.reshape(len(given), -1), outputs.reshape(len(outputs), -1)
    if given.shape != outputs.shape:
        return f"it gives {given.shape[1]} values per sample, the network {outputs.shape[1]}"
    if given.data_ptr() == outputs.data_ptr():  # the same memory: nothing to compare
        return ""
    gap = float((given - outputs).abs().max())
    if gap > 1e3 * torch.finfo(out.dtype).eps * max(float(outputs.abs().max()), 1e-30):
        return f"its pooled output differs from the network's by {gap:.2g}"
    return ""


def choose_head(heads: dict[str, Head], name: str | None) -> Head:
    """The named head, or the last layer that fits."""
    listing = "; ".join(f"{h.layer}: {h.reason or 'fits'}" for h in heads.values()) or "none"
    if name is not None:
        if name not in heads:
            raise SpiritlevelError(
                "The 'head' argument must name a linear or convolutional layer that the model "
                f"calls. Got {brief(name)}. Candidates: {listing}."
            )
        if not heads[name].fits:
            raise SpiritlevelError(
                f"The layer {name!r} cannot be measured in closed form as the head: "
                f"{heads[name].reason}. The outputs must be this layer's output, or its average "
                f"over positions. Candidates: {listing}."
            )
        return heads[name]
    fitting = [head for head in heads.values() if head.fits]
    if not fitting:
        raise SpiritlevelError(
            "No head was found: head.* measures need a last linear layer, or a last convolution "
            f"followed by global average pooling, that gives the outputs. Candidates: {listing}. "
            "Leave head.* out of 'measures', or use relative.kappa and curvature.trace with "
            "layers=..., which hold for any layer."
        )
    return fitting[-1]
