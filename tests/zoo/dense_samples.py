"""Small problems with a dense Hessian and GGN for every sample, of any network of few weights.

A `SampleProblem` hands out workspaces as the library makes them, except that sample probes,
products with the Hessian and the sweep are read off these matrices.
That the library's own passes give the same numbers is tested in test_data_error.py for one seed.

Noise at one layer changes the input of the next. The library leaves that out of its sample probes,
here it is in them: terms between layers, whose mean is 0, differ. A single layer gives the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.engine.data_pass import NEEDS, Certificate, LossAndAccuracy, Needs, PassResult
from spiritlevel.engine.memory import VectorMemory
from spiritlevel.engine.moments import Moments
from spiritlevel.engine.plan import MeasuringPlan
from spiritlevel.engine.precision import Precision
from spiritlevel.engine.sample_draws import Slots
from spiritlevel.engine.sample_probes import SampleProbes, _ProbeValues
from spiritlevel.engine.sweep.backward import Probes
from spiritlevel.engine.sweep.sums import ChunkValues, SweepSums
from spiritlevel.engine.weight_space.chunk_products import Images, Operator
from spiritlevel.engine.weight_space.products import AbstractProducts, Request
from spiritlevel.engine.workspace import Workspace
from spiritlevel.measures.setup import Setup
from spiritlevel.model.layers.output_changes import ColumnNoise, Noise, SignedNoise
from spiritlevel.results import Cost
from spiritlevel.testing import references

Rows = dict[str, Tensor]  # by row: one value for every sample


class SampleProblem:
    """A network, its data, and the dense matrices of every sample."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self.model, self.x, self.y = model, x, y
        truths = [
            references.Truth(model, [(x[n : n + 1], y[n : n + 1])], F.cross_entropy)
            for n in range(len(x))
        ]
        self.parameters = truths[0].parameters
        self.names = list(self.parameters)
        self.matrices: dict[Operator, Tensor] = {
            "hessian": torch.stack([t.hessian(self.names) for t in truths]),
            "ggn": torch.stack([t.ggn(self.names) for t in truths]),
        }
        self.matrices["residual"] = self.matrices["hessian"] - self.matrices["ggn"]
        ends = [0]
        for name in self.names:
            ends.append(ends[-1] + self.parameters[name].numel())
        pairs = zip(self.names, ends, ends[1:], strict=False)
        self.places = {name: torch.arange(a, b) for name, a, b in pairs}
        self.views = references.matrices(model)
        # by the GGN and probes, whatever else the network allows
        self._first = Setup(method="split").workspace(model, (x, y))
        self._first.want(NEEDS["kappa"] | NEEDS["rho"])
        self.surface = self._first.surface
        with self.surface.preserved():
            self.plan, self.certificates = self._first.plan, self._first.certificates
        self._found: dict[Any, Rows] = {}

    def place(self, names: Sequence[str]) -> Tensor:
        """The positions of some parameters in the vector of all."""
        return torch.cat([self.places[name] for name in names])

    def block(self, operator: Operator, names: Sequence[str]) -> Tensor:
        """The matrices of all samples, restricted to some parameters."""
        at = self.place(names)
        return self.matrices[operator][:, at][:, :, at]

    def values(self, kind: str, operator: Operator = "hessian") -> Rows:
        """What every sample contributes to every row, by definition."""
        if (kind, operator) in self._found:
            return self._found[kind, operator]
        found: Rows = {}
        if kind == "trace":
            for name in self.names:
                found[name] = self.block(operator, [name]).diagonal(dim1=1, dim2=2).sum(dim=1)
        else:
            for row, (name, view) in self.views.items():
                weight = self.parameters[name]
                of = references.kappa if kind == "kappa" else lambda *a: sum(references.rho(*a))
                blocks = self.block(operator, [name])
                found[row] = torch.tensor(
                    [of(H, weight, view) for H in blocks], dtype=torch.float64
                )
        self._found[kind, operator] = found
        return found

    def neurons(self, operator: Operator = "hessian") -> Rows:
        """ρ(j) of every layer, of the mean over the samples."""
        key = ("neurons", operator)
        if key not in self._found:
            self._found[key] = {
                row: torch.tensor(
                    references.rho(
                        self.block(operator, [name]).mean(dim=0), self.parameters[name], view
                    ),
                    dtype=torch.float64,
                )
                for row, (name, view) in self.views.items()
            }
        return self._found[key]

    def workspace(self, seed: int, **precision: Any) -> SampleWork:
        """As the library would make it, on dense matrices."""
        return SampleWork(self, seed, Precision(**precision))


class DenseSampleProbes(SampleProbes):
    """Sample probes whose values are ⟨ξ, H ξ⟩, from the library's own noise."""

    def __init__(self, workspace: SampleWork, *arguments: Any) -> None:
        self.problem = workspace.problem
        self._block: dict[Operator, Tensor] = {}
        super().__init__(workspace, *arguments)

    def _method(self) -> Any:
        return "reverse"

    def _run(
        self,
        batch: Any,
        where: Any,
        slots: Slots,
        number: int,
        operators: Sequence[Operator],
        noting: bool = False,
    ) -> tuple[dict[Operator, list[_ProbeValues]], Tensor, Tensor]:
        surface, names, index = self.surface, list(self.row_of), slots.samples
        count = len(self.problem.x)
        samples = torch.arange(count) if index is None else index
        with torch.no_grad():
            curvatures = self._curvatures(*surface.outputs(batch, where=where))
        rounds = range(slots.rounds)
        noise = [self._noise.of(samples, slots.draws + i, number) for i in rounds]
        found = {}
        for operator in operators:
            if operator not in self._block:
                self._block[operator] = self.problem.block(operator, names)
            H = self._block[operator] if index is None else self._block[operator][index]
            found[operator] = [self._of(H, each) for each in noise]
        return found, torch.ones(len(samples), dtype=torch.float64), curvatures

    def _of(self, H: Tensor, noise: dict[str, Noise]) -> _ProbeValues:
        xi = torch.cat([self._change(name, each) for name, each in noise.items()], dim=1)
        terms = xi * torch.einsum("nij,nj->ni", H, xi)
        sizes = [self.problem.parameters[name].numel() for name in noise]
        parts = dict(zip(noise, terms.split(sizes, dim=1), strict=True))
        neurons = {}
        if self.kind == "rho":
            views = {name: view for name, view in self.problem.views.values()}
            neurons = {
                self.row_of[name]: torch.stack(
                    [part[:, place].sum() for place in views[name].neurons]
                )
                for name, part in parts.items()
            }
        return _ProbeValues(torch.stack([part.sum(dim=1) for part in parts.values()]), neurons)

    def _change(self, name: str, noise: Noise) -> Tensor:
        """ξ of a parameter for every sample, shape (N, size)."""
        shape = self.problem.parameters[name].shape
        if isinstance(noise, ColumnNoise):
            (view,) = (view for own, view in self.problem.views.values() if own == name)
            result = torch.zeros(len(noise.signs), shape.numel(), dtype=torch.float64)
            weight = self.problem.parameters[name].flatten()
            for j, place in enumerate(view.neurons):
                result[:, place] = noise.signs[:, j, None] * weight[place]
            return result
        if isinstance(noise, SignedNoise):
            signs = torch.einsum("ni,ij,nj->nij", noise.first, noise.shared(), noise.second)
            return (signs if noise.weight is None else noise.weight @ signs).flatten(1)
        if noise.second is None:
            return noise.first
        return torch.einsum("ni,nj->nij", noise.first, noise.second).flatten(1)


class DenseProducts(AbstractProducts):
    """The interface of `Products`, from dense matrices."""

    def __init__(self, problem: SampleProblem) -> None:
        super().__init__(problem.surface, "reverse", VectorMemory())
        self.problem = problem

    def by_chunk(
        self, requests: Sequence[Request], *, chunk: int | None = None
    ) -> Iterator[tuple[float, list[Images]]]:
        count = len(self.problem.x)
        for start in range(0, count, chunk or count):
            part = slice(start, start + (chunk or count))
            found = []
            for request in requests:
                H = self.problem.block(request.operator, request.space.names)[part].sum(dim=0)
                found.append(Images(request.vectors @ H))
            yield float(min(count, part.stop) - start), found

    def images(self, requests: Sequence[Request]) -> list[Images]:
        ((weight, found),) = self.by_chunk(requests)
        return [Images(each.rows / weight) for each in found]

    def keeping_graph(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @property
    def sought(self) -> float:
        return 0.0


class SampleWork(Workspace):
    """The library's own bookkeeping over a problem."""

    def __init__(self, problem: SampleProblem, seed: int, precision: Precision) -> None:
        super().__init__(problem.surface, seed=seed, precision=precision)
        self.problem = problem
        self.__dict__ |= {"products": DenseProducts(problem), "takes_elements": False}

    @property
    def plan(self) -> MeasuringPlan:
        return self.problem.plan

    @property
    def certificates(self) -> dict[str, Certificate]:  # type: ignore[override]
        return self.problem.certificates

    def _run(self, needs: Needs, probes: Probes | None) -> PassResult:
        problem, surface = self.problem, self.surface
        rows = {"trace": surface.parameters, "kappa": surface.matrices, "rho": surface.matrices}
        count = None if probes is None else len(probes.streams)
        sums = SweepSums(rows, surface.device, count)
        values = {
            kind: torch.stack([problem.values(kind, "ggn")[row] for row in rows[kind]])
            for kind in rows
        }
        assert probes is None, "these problems have few columns"
        neurons = {row: len(problem.x) * found for row, found in problem.neurons("ggn").items()}
        sums.neurons = {
            row: torch.zeros(1, len(found), dtype=torch.float64) for row, found in neurons.items()
        }
        sums.add([ChunkValues(values, neurons)], torch.ones(len(problem.x), dtype=torch.float64))
        empty = Moments(["trace", "kappa"], surface.device)
        return PassResult(
            needs=needs,
            num_samples=len(problem.x),
            total_weight=float(len(problem.x)),
            cost=Cost(),
            fit=LossAndAccuracy(surface.loss, surface.device),
            sweep=sums,
            head=empty,
            softmax=empty,
            margin=empty,
            margins=[],
            activity=None,
            blocks=None,
            bends={},
            look_again=dict,
            streamed=False,
        )
