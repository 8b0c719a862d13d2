"""Several iterations in lockstep, so that one pass over the data can serve all of them.

An iteration, such as `Lanczos`, never calls its operator. It asks for products (`directions`),
receives them (`update`) and says when it is `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

Result = TypeVar("Result", covariant=True)


class Iteration(Protocol[Result]):
    """What `solve` runs: it asks for products and receives them until it is done."""

    @property
    def done(self) -> bool:
        """Whether the iteration needs no more products."""

    def directions(self) -> Tensor:
        """The vectors to multiply next, shape (b, size)."""

    def update(self, products: Tensor) -> None:
        """Receive the products with `directions`, in the same order."""

    def result(self) -> Result:
        """The result of the products so far."""


def solve(
    iterations: Sequence[Iteration[Result]],
    multiply: Callable[[dict[int, Tensor]], Mapping[int, Tensor]],
) -> list[Result]:
    """Run the iterations in lockstep until all are done.

    Args:
        multiply: Gets the directions of every unfinished iteration, keyed by its index in
            `iterations`, and returns the products under the same keys, in the same shapes.

    >>> import torch
    >>> from spiritlevel.engine.weight_space.lanczos import Lanczos
    >>> diagonals = torch.tensor([[5.0, 1.0, -7.0], [2.0, 3.0, 4.0]])
    >>> settings = {"residual_rtol": 1e-6, "max_products": 9, "max_basis": 9}
    >>> results = solve(
    ...     [Lanczos(torch.ones(1, 3), **settings), Lanczos(torch.ones(1, 3), **settings)],
    ...     lambda directions: {i: diagonals[i] * v for i, v in directions.items()},
    ... )
    >>> [round(float(pairs.values), 5) for pairs in results]
    [5.0, 4.0]
    """
    while unfinished := {i: run for i, run in enumerate(iterations) if not run.done}:
        products = multiply({i: run.directions() for i, run in unfinished.items()})
        for i, run in unfinished.items():
            run.update(products[i])
        del products  # free them before the next ones are made
    return [run.result() for run in iterations]
