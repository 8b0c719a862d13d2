"""Which rows of a layer's input belong to which sample, found out in every batch.

A layer may get its samples first, second behind time, repeated, or mixed with each other. The
outputs tell: a derivative of the outputs in which sample n has the factor c_n has that factor in
the rows of sample n and in no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...model.layers.layout import Layout

ROUND_OFF = 1e3  # in units of eps: two backward passes agree to that
SMALL = 1e-2  # of the largest derivative: rows below it are judged as if they were that large


def rows_by_sample(inputs: Sequence[Tensor], outputs: Tensor) -> list[tuple[Tensor, Layout | None]]:
    """The inputs of shape (…, d) that the outputs depend on, each with its layout.

    The layout is None where rows depend on several samples. The first dimension of the outputs
    holds the samples.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    marks = torch.randn(len(outputs), generator=generator, dtype=torch.float64).to(outputs)
    marked_noise = noise * marks.view(-1, *[1] * (outputs.dim() - 1))
    plain, marked = (
        torch.autograd.grad(outputs, list(inputs), v, retain_graph=True, allow_unused=True)
        for v in (noise, marked_noise)
    )
    return [
        (a, _layout(of_noise, of_marked, marks))
        for a, of_noise, of_marked in zip(inputs, plain, marked, strict=True)
        if of_noise is not None and a.numel()
    ]


def split_rows(x: Tensor, layout: Layout) -> Tensor:
    """X of shape (…, d) as (N, rows of a sample, d)."""
    if math.prod(x.shape[:-1]) == layout.num_samples:
        x = x.reshape(-1, x.shape[-1])
    return layout.split(x).reshape(layout.num_samples, -1, x.shape[-1])


def _layout(plain: Tensor, marked: Tensor, marks: Tensor) -> Layout | None:
    for layout in _candidates(plain.shape, len(marks)):
        rows, expected = split_rows(plain, layout), split_rows(marked, layout)
        error = (expected - marks[:, None, None] * rows).abs()
        sizes = rows.abs().amax(dim=2, keepdim=True)
        tolerance = min(ROUND_OFF * torch.finfo(plain.dtype).eps, 0.05) * float(marks.abs().max())
        if bool((error <= tolerance * (sizes + SMALL * sizes.amax())).all()):
            return layout
    return None


def _candidates(shape: torch.Size, num_samples: int) -> Iterator[Layout]:
    """Every place that the samples may have: a dimension, or all rows together."""
    leading = shape[:-1]
    if math.prod(leading) == num_samples:  # one row each, whatever the shape
        yield Layout(0, True, num_samples)
        return
    for dim, size in enumerate(leading):
        if size and size % num_samples == 0:
            yield Layout(dim, True, num_samples)
            if size > num_samples:
                yield Layout(dim, False, num_samples)
