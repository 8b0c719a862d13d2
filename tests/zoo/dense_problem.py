"""Small problems whose estimators run on dense matrices: hundreds of repetitions take seconds.

A `DenseProblem` hands out `Work` objects as the library makes them, except that products with the
Hessian and passes over the data are read off matrices computed once by autograd. What is left is
the statistics: signs, means, intervals, stopping rules. That the library's own products and sweeps
give the same numbers is tested in test_products.py and, for one seed, in test_coverage.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from spiritlevel.engine.data_pass import NEEDS, Certificate, LossAndAccuracy, Needs, PassResult
from spiritlevel.engine.memory import VectorMemory
from spiritlevel.engine.moments import Moments
from spiritlevel.engine.plan import MeasuringPlan
from spiritlevel.engine.precision import EXACT_COLUMNS, Precision
from spiritlevel.engine.row_estimator import RowEstimator
from spiritlevel.engine.row_probing import RowProbing
from spiritlevel.engine.sweep.backward import Probes
from spiritlevel.engine.sweep.sums import SweepSums
from spiritlevel.engine.weight_space.chunk_products import Images
from spiritlevel.engine.weight_space.products import AbstractProducts, Request
from spiritlevel.engine.workspace import Workspace
from spiritlevel.math.curvature import OrderedColumns, SoftmaxCurvature
from spiritlevel.math.signs import random_signs
from spiritlevel.measures.setup import Setup
from spiritlevel.results import Cost
from spiritlevel.testing import references


class DenseProducts(AbstractProducts):
    """The interface of `Products`, from dense matrices; all data is one chunk."""

    def __init__(self, surface: Any, names: list[str], hessian: Tensor, ggn: Tensor) -> None:
        super().__init__(surface, "reverse", VectorMemory())
        self.matrices = {"hessian": hessian, "ggn": ggn, "residual": hessian - ggn}
        ends = [0]
        for name in names:
            ends.append(ends[-1] + surface.parameters[name].numel())
        pairs = zip(names, ends, ends[1:], strict=False)
        self.places = {name: torch.arange(a, b) for name, a, b in pairs}
        self.count = 0  # vectors multiplied so far

    def by_chunk(
        self, requests: Sequence[Request], *, chunk: int | None = None
    ) -> Iterator[tuple[float, list[Images]]]:
        found = []
        for request in requests:
            self.count += len(request.vectors)
            place = torch.cat([self.places[name] for name in request.space.names])
            found.append(Images(request.vectors @ self.matrices[request.operator][place][:, place]))
        yield 1.0, found

    def images(self, requests: Sequence[Request]) -> list[Images]:
        ((_, found),) = self.by_chunk(requests)
        return found

    def keeping_graph(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @property
    def sought(self) -> float:
        return 0.0


def root_of(logits: Tensor) -> Tensor:
    """S with S S' = diag p − p p', shape (N, C, C), in the order of `order_of`.

    With many classes each in turn is made exact among those that follow.
    """
    p, order = logits.softmax(dim=1), order_of(logits)
    if logits.shape[1] <= 1 + EXACT_COLUMNS:
        return torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None, :]
    S = torch.zeros(*p.shape, p.shape[1], dtype=p.dtype)
    for n in range(len(p)):
        for rank in range(p.shape[1] - 1):
            first, later = order[n, rank], order[n, rank + 1 :]
            mass = p[n, later].sum()
            if mass > 0:
                size = (p[n, first] / (p[n, first] + mass) * mass).sqrt()
                S[n, first, rank], S[n, later, rank] = size, -size * p[n, later] / mass
    return S


def order_of(logits: Tensor) -> Tensor:
    """The class that each column starts from."""
    if logits.shape[1] <= 1 + EXACT_COLUMNS:
        return torch.arange(logits.shape[1]).expand_as(logits)
    return logits.argsort(dim=1, descending=True, stable=True)


class DenseProblem:
    """A network of linear layers under cross-entropy, its dense matrices, and its `Work`s."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self.model, self.x, self.y = model, x, y
        self.truth = references.Truth(model, [(x, y)], F.cross_entropy)
        self.names = list(self.truth.parameters)
        self.layers = {
            name.rpartition(".")[0]: name for name in self.names if name.endswith("weight")
        }
        # by the GGN and probes, whatever else the network allows
        self._first = Setup(method="split").workspace(model, (x, y))
        self._first.want(NEEDS["kappa"] | NEEDS["rho"])
        self.surface = self._first.surface
        with self.surface.preserved():
            self.plan, self.certificates = self._first.plan, self._first.certificates
        self._forms = self._quadratic_forms()

    def products(self) -> DenseProducts:
        """A new operator, with its own count."""
        H, ggn = self.truth.hessian(self.names), self.truth.ggn(self.names)
        return DenseProducts(self.surface, self.names, H, ggn)

    def workspace(self, seed: int, **precision: Any) -> DenseWork:
        """As the library would make it, on dense matrices."""
        return DenseWork(self, seed, Precision(**precision))

    def rows(self, kind: str, seed: int, **precision: Any) -> RowEstimator:
        """The estimate of a kind over the whole network."""
        rows = {n: n for n in self.names} if kind == "trace" else self.layers
        workspace = self.workspace(seed, **precision)
        whole = dict.fromkeys(rows, 1.0)
        return RowEstimator(RowProbing(workspace, kind, rows, whole))  # type: ignore[arg-type]

    def value(self, kind: str, matrix: str = "Hessian") -> float:
        """The truth, by definition."""
        if kind == "trace":
            return float(self.truth.matrix(matrix, self.names).trace())
        if kind == "trace_squared":
            return float(self.truth.matrix(matrix, self.names).square().sum())
        total = 0.0
        for layer, name in self.layers.items():
            module = self.model.get_submodule(layer)
            view = references.matrix_view(module)
            assert view is not None
            H = self.truth.matrix(matrix, [name])
            if kind == "kappa":
                total += references.kappa(H, module.weight, view)
            else:
                total += sum(references.rho(H, module.weight, view))
        return total

    # -- the sweep -----------------------------------------------------------------------------

    def _quadratic_forms(self) -> dict[str, Tensor]:
        """M of shape (rows, N, C, C): with signs r the value of a sample is r'Mr, on average Tr M.

        M = S'BS with A = SS' the softmax Hessian and B the products of the gradients of the
        outputs: of themselves (trace), of W'G (kappa), of w_j·G_j (rho).
        """
        parameters = {n: p.detach() for n, p in self.model.named_parameters()}

        def outputs(p: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.model, p, (x[None],))[0]

        J = vmap(jacrev(outputs), in_dims=(None, 0))(parameters, self.x)
        with torch.no_grad():
            self.logits = self.model(self.x)
        S = root_of(self.logits)
        flat = {name: J[name].flatten(2) for name in self.names}
        gram = {name: G @ G.mT for name, G in flat.items()}
        kappa, rho = [], []
        for name in self.layers.values():
            W = parameters[name]
            back = torch.einsum("oi,ncoj->ncij", W, J[name]).flatten(2)
            kappa.append(back @ back.mT)
            own = torch.einsum("oj,ncoj->ncj", W, J[name])
            rho.append(own @ own.mT)
        B = {"trace": torch.stack([gram[name] for name in self.names])}
        B |= {"kappa": torch.stack(kappa), "rho": torch.stack(rho)}
        return {kind: S.mT @ b @ S for kind, b in B.items()}

    def draw(self, kind: str, seed: int, streams: range, leading: int = 0) -> list[Tensor]:
        """What the leading columns and each output probe bring, shape (rows, N) each."""
        M = self._forms[kind]
        index = torch.arange(M.shape[1])
        order = order_of(self.logits)
        exact = list(M.diagonal(dim1=2, dim2=3).movedim(2, 0)[:leading])
        signs = torch.stack(
            [random_signs(seed, stream, index, M.shape[2], torch.float64) for stream in streams]
        )
        signs = signs.gather(2, order.expand_as(signs))
        signs[:, :, :leading] = 0.0
        return exact + list(torch.einsum("knc,rncd,knd->krn", signs, M, signs))

    def run_pass(self, needs: Needs, probes: Probes | None) -> PassResult:
        matrices = self.surface.matrices
        rows = {"trace": self.surface.parameters, "kappa": matrices, "rho": matrices}
        count = None if probes is None else len(probes.streams)
        leading = 0 if probes is None else probes.leading
        sums = SweepSums(rows, self.surface.device, count, leading)
        if self.logits.shape[1] > 1 + EXACT_COLUMNS:
            sums.add_left(OrderedColumns(SoftmaxCurvature(self.logits)))
        weights = torch.ones(len(self.x), dtype=torch.float64)
        kinds = ["trace", *(k for k in ("kappa", "rho") if getattr(needs, k))]
        for kind in kinds[-1:]:  # the only one that `rows` will look at
            draws = [self._forms[kind].diagonal(dim1=2, dim2=3).sum(dim=2)]
            if probes is not None:
                draws = self.draw(kind, probes.seed, probes.streams, leading)
            sums.kinds[kind].add(draws[leading:], weights, draws[:leading])  # type: ignore[index]
        empty = Moments(["trace", "kappa"], self.surface.device)
        return PassResult(
            needs=needs,
            num_samples=len(self.x),
            total_weight=float(len(self.x)),
            cost=Cost(),
            fit=LossAndAccuracy(self.surface.loss, self.surface.device),
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


class DenseWork(Workspace):
    """The library's own bookkeeping over a dense problem."""

    def __init__(self, problem: DenseProblem, seed: int, precision: Precision) -> None:
        super().__init__(problem.surface, seed=seed, precision=precision)
        self.problem = problem
        self.__dict__ |= {"products": problem.products(), "takes_elements": False}

    @property
    def plan(self) -> MeasuringPlan:
        return self.problem.plan

    @property
    def certificates(self) -> dict[str, Certificate]:  # type: ignore[override]
        return self.problem.certificates

    def _run(self, needs: Needs, probes: Probes | None) -> PassResult:
        return self.problem.run_pass(needs, probes)
