"""Where the samples are in the tensors that go in and out of a layer."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the samples are in a layer's tensors: in dimension `dim`, once or repeated.

    (N·r, …) from a reshape is sample-major; (T, N, …) has dim = 1; (r·N, …) is not sample-major.
    The number of repeats follows from each tensor's shape: it may differ between batches.
    """

    dim: int = 0
    sample_major: bool = True
    num_samples: int = 0

    def same_place(self, other: Layout) -> bool:
        """Whether the samples are in the same place, however many there are."""
        return (self.dim, self.sample_major) == (other.dim, other.sample_major)

    def repeats(self, shape: torch.Size) -> int:
        """How many entries each sample has along the sample dimension."""
        return shape[self.dim] // self.num_samples

    def repeated(self, values: Tensor, shape: torch.Size) -> Tensor:
        """Values of each sample, once for each of its entries along the sample dimension.

        >>> values, shape = torch.tensor([5, 7]), torch.Size([4, 3])
        >>> [Layout(0, major, 2).repeated(values, shape).tolist() for major in (True, False)]
        [[5, 5, 7, 7], [5, 7, 5, 7]]
        """
        repeats, rest = self.repeats(shape), values.shape[1:]
        if repeats == 1:
            return values
        if self.sample_major:
            return values[:, None].expand(-1, repeats, *rest).reshape(-1, *rest)
        return values.expand(repeats, -1, *rest).reshape(-1, *rest)

    def split(self, x: Tensor) -> Tensor:
        """The tensor with its samples first, shape (N, repeats, …rest)."""
        repeats = self.repeats(x.shape)
        x = x.movedim(self.dim, 0)
        if self.sample_major:
            return x.reshape(self.num_samples, repeats, *x.shape[1:])
        return x.reshape(repeats, self.num_samples, *x.shape[1:]).transpose(0, 1)


def candidate_layouts(
    shape: torch.Size, num_samples: int, other: torch.Size, other_samples: int, *, leading: int
) -> list[Layout]:
    """Layouts that explain the output shapes of a layer for two different numbers of samples.

    >>> candidate_layouts(torch.Size([6, 3]), 3, torch.Size([10, 3]), 5, leading=1)[0]
    Layout(dim=0, sample_major=True, num_samples=3)
    """
    changed = [dim for dim in range(len(shape)) if shape[dim : dim + 1] != other[dim : dim + 1]]
    if len(shape) != len(other) or len(changed) != 1 or changed[0] >= leading:
        return []
    dim, repeats = changed[0], shape[changed[0]] // num_samples
    if shape[dim] != repeats * num_samples or other[dim] != repeats * other_samples:
        return []
    layouts = [Layout(dim, True, num_samples), Layout(dim, False, num_samples)]
    return layouts if repeats > 1 else layouts[:1]


def possible_layouts(
    shape: torch.Size, num_samples: int, *, leading: int, first: int = 0
) -> list[Layout]:
    """Layouts that the shape of a layer's output allows for this number of samples.

    They are in the leading dimensions, from `first` on.

    >>> [layout.dim for layout in possible_layouts(torch.Size([4, 3, 7]), 3, leading=2)]
    [1]
    """
    layouts = []
    for dim in range(first, leading):
        size = shape[dim]
        if size and size % num_samples == 0:
            layouts.append(Layout(dim, True, num_samples))
            if num_samples < size and num_samples > 1:
                layouts.append(Layout(dim, False, num_samples))
    return layouts
