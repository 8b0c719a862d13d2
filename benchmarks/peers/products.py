"""Libraries that multiply with the Hessian: PyHessian, curvlinops, hessian-eigenthings."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tools import (
    DEFAULT,
    DENSITY,
    DIAGONAL,
    GGN,
    LARGEST,
    LAYERS,
    STEPS,
    TRACES,
    Answer,
    Library,
    Way,
    by_layer,
)
from torch import Tensor, nn

BLOCKS = (6, 12, 24, 48, 96, 192)  # products of methods that need all vectors at once
LANCZOS = (5, 10, 20, 40)
DIAGONALS = (96,)


class PyHessian(Library):
    name = "PyHessian"
    package = "pyhessian"

    def ways(self, question: str) -> list[Way]:
        if question in TRACES:
            # its rule to stop divides by the trace: any tolerance above would end a negative one
            def trace(seed: int, products: int) -> float:
                return _mean(self._hessian(seed).trace(maxIter=products, tol=-math.inf))

            return [Way("Hutchinson", trace, "formula")]
        if question == DEFAULT:
            return [Way("", lambda seed, products: _mean(self._hessian(seed).trace()))]
        if question == LAYERS:
            return [Way("Hutchinson", self._layers, "formula")]
        if question == LARGEST:
            return [Way("power iteration", self._largest)]
        if question == DENSITY:
            return [Way("Lanczos", self._mean_eigenvalue)]
        return []

    def _hessian(self, seed: int):  # type: ignore[no-untyped-def]
        from pyhessian import hessian

        torch.manual_seed(seed)
        on_gpu = self.data[0].is_cuda
        return hessian(self.scores, nn.CrossEntropyLoss(), data=self.flat, cuda=on_gpu)

    def _layers(self, seed: int, products: int) -> Answer:
        """One product with the whole Hessian serves all layers, by the function under `trace`."""
        from pyhessian.utils import hessian_vector_product

        held = self._hessian(seed)
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        sums = dict.fromkeys(names, torch.zeros((), device=self.data[0].device))
        for _ in range(products):
            signs = [torch.randint_like(p, high=2) * 2 - 1 for p in held.params]
            found = hessian_vector_product(held.gradsH, held.params, signs)
            for name, v, hv in zip(names, signs, found, strict=True):
                sums[name] = sums[name] + (v * hv).sum() / products
        return by_layer(sums)

    def _largest(self, seed: int, products: int) -> float:
        return float(self._hessian(seed).eigenvalues()[0][0])

    def _mean_eigenvalue(self, seed: int, products: int) -> float:
        values, weights = self._hessian(seed).density(iter=STEPS, n_v=1)
        return sum(v * w for v, w in zip(values[0], weights[0], strict=True))


class Curvlinops(Library):
    name = "curvlinops"
    package = "curvlinops-for-pytorch"

    def ways(self, question: str) -> list[Way]:
        from curvlinops import hutchinson_diag, hutchpp_trace, xdiag, xtrace

        if question in TRACES or question == GGN:
            kind = "GGN" if question == GGN else "Hessian"
            return [
                Way("Hutchinson", lambda s, n: self._one_by_one(kind, s, n), "formula"),
                Way("Hutch++", self._seeded(hutchpp_trace, kind), "ladder", BLOCKS),
                Way("XTrace", self._seeded(xtrace, kind), "ladder", BLOCKS),
            ]
        if question == LAYERS:
            return [Way("Hutchinson", self._layers, "formula")]
        if question == DIAGONAL:
            return [
                Way("Hutchinson", self._diagonal(hutchinson_diag), "fixed", DIAGONALS),
                Way("XDiag", self._diagonal(xdiag), "fixed", DIAGONALS),
            ]
        if question == LARGEST:
            return [Way("eigsh", self._largest)]
        if question == DENSITY:
            return [Way("Lanczos", self._mean_eigenvalue)]
        return []

    def _operator(self, seed: int, kind: str = "Hessian"):  # type: ignore[no-untyped-def]
        import curvlinops

        torch.manual_seed(seed)
        return getattr(curvlinops, f"{kind}LinearOperator")(
            self.scores,
            nn.CrossEntropyLoss(),
            [p for p in self.model.parameters() if p.requires_grad],
            [self.flat],
            check_deterministic=False,  # two more products; the others do not check
            num_data=len(self.flat[1]),
            batch_size_fn=lambda x: len(self.flat[1]),  # predictions, of which tokens have many
        )

    def _one_by_one(self, kind: str, seed: int, products: int) -> float:
        from curvlinops import hutchinson_trace

        operator = self._operator(seed, kind)
        return _mean([float(hutchinson_trace(operator, 1)) for _ in range(products)])

    def _seeded(self, estimate: Callable[..., Tensor], kind: str) -> Callable[[int, int], Answer]:
        return lambda seed, products: float(estimate(self._operator(seed, kind), products))

    def _diagonal(self, estimate: Callable[..., Tensor]) -> Callable[[int, int], Answer]:
        def call(seed: int, products: int) -> Answer:
            parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
            found = estimate(self._operator(seed), products)
            parts = found.split([p.numel() for p in parameters.values()])
            return {n: d.view_as(p) for (n, p), d in zip(parameters.items(), parts, strict=True)}

        return call

    def _layers(self, seed: int, products: int) -> Answer:
        operator = self._operator(seed)
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        sums = dict.fromkeys(parameters, torch.zeros((), device=self.data[0].device))
        for _ in range(products):
            signs = [torch.randint_like(p, high=2) * 2 - 1 for p in parameters.values()]
            for name, v, hv in zip(parameters, signs, operator @ signs, strict=True):
                sums[name] = sums[name] + (v * hv).sum().detach() / products
        return by_layer(sums)

    def _largest(self, seed: int, products: int) -> float:
        from scipy.sparse.linalg import eigsh

        operator = self._operator(seed).to_scipy()
        start = torch.randn(operator.shape[0]).numpy()
        found = eigsh(operator, k=1, which="LA", tol=1e-2, v0=start, return_eigenvectors=False)
        return float(found[0])

    def _mean_eigenvalue(self, seed: int, products: int) -> float:
        from curvlinops import lanczos_approximate_spectrum

        grid, density = lanczos_approximate_spectrum(self._operator(seed), STEPS)
        return float(torch.trapezoid(density * grid, grid) / torch.trapezoid(density, grid))


class Eigenthings(Library):
    name = "hessian-eigenthings"
    package = "hessian-eigenthings"

    def ways(self, question: str) -> list[Way]:
        from hessian_eigenthings import trace

        if question in TRACES or question == GGN:
            make = self._ggn if question == GGN else self._hessian
            return [
                Way("Hutchinson", lambda s, n: self._trace(make, s, n, "hutchinson"), "formula"),
                Way("Hutch++", lambda s, n: self._trace(make, s, n, "hutch++"), "ladder", BLOCKS),
            ]
        if question == DEFAULT:
            return [Way("", lambda seed, n: float(trace(self._hessian(), seed=seed).estimate))]
        if question == LAYERS:
            return [Way("Hutchinson", self._layers, "formula")]
        if question == LARGEST:
            return [
                Way("Lanczos", self._lanczos, "ladder", LANCZOS),
                Way("power iteration", self._power),
            ]
        if question == DENSITY:
            return [Way("Lanczos", self._mean_eigenvalue)]
        return []

    def _hessian(self):  # type: ignore[no-untyped-def]
        from hessian_eigenthings import HessianOperator, supervised_loss

        return HessianOperator(self.scores, [self.flat], supervised_loss(F.cross_entropy))

    def _ggn(self):  # type: ignore[no-untyped-def]
        from hessian_eigenthings import GGNOperator, supervised_forward, supervised_loss_of_output

        loss = supervised_loss_of_output(F.cross_entropy)
        return GGNOperator(self.scores, [self.flat], supervised_forward, loss)

    def _trace(self, make, seed: int, products: int, method: str) -> float:  # type: ignore[no-untyped-def]
        from hessian_eigenthings import trace

        return float(trace(make(), num_matvecs=products, method=method, seed=seed).estimate)

    def _layers(self, seed: int, products: int) -> Answer:
        torch.manual_seed(seed)
        operator = self._hessian()
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        sizes = [p.numel() for p in parameters.values()]
        device = self.data[0].device
        sums = dict.fromkeys(parameters, torch.zeros((), device=device))
        for _ in range(products):
            signs = torch.randint(2, (sum(sizes),), device=device).float() * 2 - 1
            parts = (signs * operator.matvec(signs)).split(sizes)
            for name, part in zip(parameters, parts, strict=True):
                sums[name] = sums[name] + part.sum() / products
        return by_layer(sums)

    def _lanczos(self, seed: int, products: int) -> float:
        from hessian_eigenthings import lanczos

        found = lanczos(self._hessian(), k=1, max_iter=products, which="LA", seed=seed)
        return float(found.eigenvalues[0])

    def _power(self, seed: int, products: int) -> float:
        from hessian_eigenthings import deflated_power_iteration

        found = deflated_power_iteration(self._hessian(), k=1, tol=1e-2, seed=seed)
        return float(found.eigenvalues[0])

    def _mean_eigenvalue(self, seed: int, products: int) -> float:
        from hessian_eigenthings import spectral_density

        found = spectral_density(self._hessian(), num_runs=1, lanczos_steps=STEPS, seed=seed)
        return float((found.raw_eigenvalues[0] * found.raw_weights[0]).sum())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
