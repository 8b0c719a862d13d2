"""Parameters as operations see them: transposed, sliced, split, reshaped or cast."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .node_results import result_of


@dataclasses.dataclass(frozen=True)
class Operand:
    """A parameter as an operation sees it: the whole, or a view of it."""

    name: str
    parameter: nn.Parameter
    view: Tensor  # on the meta device: the shape, strides and offset of the view

    @classmethod
    def whole(cls, name: str, parameter: nn.Parameter) -> Operand:
        """The parameter as it is."""
        return cls(name, parameter, torch.empty(parameter.shape, device="meta"))

    def changed(self, view: Tensor) -> Operand:
        """Another view of the same parameter."""
        return dataclasses.replace(self, view=view)

    @property
    def is_whole(self) -> bool:
        """Whether the operation sees every entry, in the order in which they are stored."""
        return self.view.numel() == self.parameter.numel() and self.view.is_contiguous()

    @property
    def is_as_kept(self) -> bool:
        """Whether it is the whole in its own shape: (1, n) and its transpose are both the whole."""
        return self.is_whole and self.view.shape == self.parameter.shape

    @property
    def values(self) -> Tensor:
        """The entries that the operation sees."""
        place = self.view.shape, self.view.stride(), self.view.storage_offset()
        return self.parameter.detach().contiguous().as_strided(*place)

    def placed(self, G: Tensor) -> Tensor:
        """A gradient (…, *view) of the view as one (…, *parameter) of the parameter."""
        if self.is_whole:
            return G.reshape(G.shape[: G.dim() - self.view.dim()] + self.parameter.shape)
        leading = G.shape[: G.dim() - self.view.dim()]
        size = self.parameter.numel()
        flat = G.new_zeros(leading.numel(), size)
        strided = flat.as_strided(
            (len(flat), *self.view.shape),
            (size, *self.view.stride()),
            self.view.storage_offset(),
        )
        strided.copy_(G.reshape(strided.shape))
        return flat.reshape(leading + self.parameter.shape)

    def taken(self, noise: Tensor) -> Tensor:
        """Of numbers (N, size of the parameter), those that the operation sees, (N, *view)."""
        size = self.parameter.numel()
        return noise.contiguous().as_strided(
            (len(noise), *self.view.shape),
            (size, *self.view.stride()),
            self.view.storage_offset(),
        )


def signed(number: int) -> int:
    """Torch saves negative dimensions as unsigned numbers."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _reshaped(node: Any, view: Tensor, number: int) -> Tensor:
    return view.view(result_of(node, number).shape)


def _as_it_is(node: Any, view: Tensor, number: int) -> Tensor:
    return view


def _transposed(node: Any, view: Tensor, number: int) -> Tensor:
    return view.transpose(signed(node._saved_dim0), signed(node._saved_dim1))


def _sliced(node: Any, view: Tensor, number: int) -> Tensor:
    size = result_of(node, number).shape[signed(node._saved_dim)]
    start, step = signed(node._saved_start), node._saved_step
    dim = signed(node._saved_dim)
    start = start + view.shape[dim] if start < 0 else start
    return torch.ops.aten.slice(view, dim, start, start + size * step, step)


VIEWS: dict[str, Callable[[Any, Tensor, int], Tensor]] = {
    **dict.fromkeys(["View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "Squeeze"], _reshaped),
    **dict.fromkeys(["Alias", "ToCopy", "Clone"], _as_it_is),
    "T": lambda node, view, number: view.t(),
    "Transpose": _transposed,
    "Permute": lambda node, view, number: view.permute([signed(d) for d in node._saved_dims]),
    "Slice": _sliced,
    "Select": lambda node, view, number: view.select(
        signed(node._saved_dim), signed(node._saved_index)
    ),
    "Split": lambda node, view, number: view.split(node._saved_split_size, signed(node._saved_dim))[
        number
    ],
    "SplitWithSizes": lambda node, view, number: view.split(
        list(node._saved_split_sizes), signed(node._saved_dim)
    )[number],
    "Unbind": lambda node, view, number: view.unbind(signed(node._saved_dim))[number],
}


def follow(node: Any, operation: str, operand: Operand) -> Callable[[int], Operand]:
    """What a view of a parameter is after one more step, for each result of that step."""
    step = VIEWS[operation]
    return lambda number: operand.changed(step(node, operand.view, number))
