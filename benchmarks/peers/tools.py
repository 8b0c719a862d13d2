"""How each tool answers each question, as its documentation says.

An answer is a number, or None where the tool has none. `products` is how many products with the
Hessian a tool may take that does not know when to stop. Blocks of vectors are multiplied together
where the tool does so by itself; if that does not fit in memory, one vector at a time.
"""

from __future__ import annotations

import abc
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Data = tuple[Tensor, Tensor]
STEPS = 40  # of Lanczos, for a density from one vector
FEW_OUTPUTS = 100


class Scores(nn.Module):
    """Plain scores, one row a prediction: peers know neither outputs of others nor positions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the only one with a second derivative
            scores = self.model(x)
        scores = scores if isinstance(scores, Tensor) else scores.logits
        return scores.flatten(0, -2)


class Tool(abc.ABC):
    """One library on one network."""

    name: str

    def __init__(self, model: nn.Module, data: Data) -> None:
        self.model, self.data = model, data
        self.scores, self.flat = Scores(model), (data[0], data[1].flatten())

    def exact_trace(self) -> float | None:
        """Of the Hessian, or of the GGN where these are equal."""
        return None

    def trace(self, rtol: float, products: int, seed: int) -> float | None:
        """To a tolerance, or by a number of products."""
        return None

    def ggn_trace(self, products: int) -> float | None:
        """The sum of the GGN's diagonal: exact, or by a number of products."""
        return None

    def default_trace(self) -> float | None:
        """As it comes without any option."""
        return None

    def largest_eigenvalue(self) -> float | None:
        """To about three digits."""
        return None

    def mean_eigenvalue(self) -> float | None:
        """The mean of a density from one vector: Tr H / n if it is right."""
        return None

    def layer_trace(self, parameter: str, products: int) -> float | None:
        """Of one parameter's block."""
        return None

    stops_by_itself = False


class Spiritlevel(Tool):
    name = "spiritlevel"
    stops_by_itself = True

    def exact_trace(self) -> float | None:
        import spiritlevel as sl

        # a network that is one linear layer is all head, which has a closed form
        name = "head.trace" if isinstance(self.model, nn.Linear) else "curvature.trace"
        trace = sl.measure(self.model, self.data, measures=name, method="exact")[name]
        return trace.value if trace.exact else None

    def trace(self, rtol: float, products: int, seed: int) -> float | None:
        import spiritlevel as sl

        found = sl.measure(
            self.model, self.data, measures="curvature.trace", rtol=rtol, max_passes=2000, seed=seed
        )
        return found["curvature.trace"].value

    def ggn_trace(self, products: int) -> float | None:
        import spiritlevel as sl

        with torch.no_grad():
            outputs = self.scores(self.data[0][:1]).shape[-1]
        # one column for each class: with many, probes to 10 % are what a user would take
        precision = {"method": "exact"} if outputs <= FEW_OUTPUTS else {"rtol": 0.1}
        name = "curvature.ggn_trace"
        return sl.measure(self.model, self.data, measures=name, **precision)[name].value

    def default_trace(self) -> float | None:
        import spiritlevel as sl

        return sl.measure(self.model, self.data, measures="curvature.trace")[
            "curvature.trace"
        ].value

    def largest_eigenvalue(self) -> float | None:
        import spiritlevel as sl

        (value,) = sl.eigenvalues(self.model, self.data, num=1).values
        return float(value)

    def mean_eigenvalue(self) -> float | None:
        import spiritlevel as sl

        found = sl.density(self.model, self.data, num_vectors=1, steps=STEPS)
        return float(found.moment(1)[0])

    def layer_trace(self, parameter: str, products: int) -> float | None:
        import spiritlevel as sl

        layer = parameter.rpartition(".")[0]
        found = sl.measure(
            self.model, self.data, measures="curvature.trace", layers=[layer], rtol=0.1
        )
        return found["curvature.trace"].value


class PyHessian(Tool):
    name = "PyHessian"

    def _operator(self):  # type: ignore[no-untyped-def]
        from pyhessian import hessian

        on_gpu = self.data[0].is_cuda
        return hessian(self.scores, nn.CrossEntropyLoss(), data=self.flat, cuda=on_gpu)

    def trace(self, rtol: float, products: int, seed: int) -> float | None:
        torch.manual_seed(seed)
        # its rule to stop divides by the trace: any tolerance above would end a negative one
        return _mean(self._operator().trace(maxIter=products, tol=-math.inf))

    def default_trace(self) -> float | None:
        torch.manual_seed(0)
        return _mean(self._operator().trace())

    def largest_eigenvalue(self) -> float | None:
        torch.manual_seed(0)
        return float(self._operator().eigenvalues()[0][0])

    def mean_eigenvalue(self) -> float | None:
        torch.manual_seed(0)
        values, weights = self._operator().density(iter=STEPS, n_v=1)
        return sum(v * w for v, w in zip(values[0], weights[0], strict=True))


class Curvlinops(Tool):
    name = "curvlinops"

    def _operator(self, parameters=None, kind: str = "Hessian"):  # type: ignore[no-untyped-def]
        import curvlinops

        chosen = parameters or [p for p in self.model.parameters() if p.requires_grad]
        loss = nn.CrossEntropyLoss()
        return getattr(curvlinops, f"{kind}LinearOperator")(
            self.scores,
            loss,
            chosen,
            [self.flat],
            check_deterministic=False,  # two more products; the others do not check
            num_data=len(self.flat[0]),
        )

    def trace(self, rtol: float, products: int, seed: int) -> float | None:
        torch.manual_seed(seed)
        return self._estimated(self._operator(), products)

    def ggn_trace(self, products: int) -> float | None:
        torch.manual_seed(0)
        return self._estimated(self._operator(kind="GGN"), products)

    def _estimated(self, operator, products: int) -> float:  # type: ignore[no-untyped-def]
        from curvlinops import hutchinson_trace, hutchpp_trace

        try:
            return float(hutchpp_trace(operator, products))
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
        torch.cuda.empty_cache()
        return _mean([float(hutchinson_trace(operator, 1)) for _ in range(products)])

    def largest_eigenvalue(self) -> float | None:
        from scipy.sparse.linalg import eigsh

        operator = self._operator().to_scipy()
        return float(eigsh(operator, k=1, which="LA", tol=1e-3, return_eigenvectors=False)[0])

    def layer_trace(self, parameter: str, products: int) -> float | None:
        from curvlinops import hutchinson_trace

        torch.manual_seed(0)
        operator = self._operator([self.model.get_parameter(parameter)])
        return _mean([float(hutchinson_trace(operator, 1)) for _ in range(products)])


class Eigenthings(Tool):
    name = "hessian-eigenthings"

    def _operator(self, parameter: str | None = None):  # type: ignore[no-untyped-def]
        from hessian_eigenthings import HessianOperator, match_names, supervised_loss

        chosen = None if parameter is None else match_names(f"model.{parameter}")
        loss = supervised_loss(F.cross_entropy)
        return HessianOperator(self.scores, [self.flat], loss, param_filter=chosen)

    def trace(self, rtol: float, products: int, seed: int) -> float | None:
        from hessian_eigenthings import trace

        found = trace(self._operator(), num_matvecs=products, seed=seed)
        return float(found.estimate)

    def default_trace(self) -> float | None:
        from hessian_eigenthings import trace

        return float(trace(self._operator(), seed=0).estimate)

    def largest_eigenvalue(self) -> float | None:
        from hessian_eigenthings import lanczos

        found = lanczos(self._operator(), k=1, max_iter=50, tol=1e-3, which="LA", seed=0)
        return float(found.eigenvalues[0])

    def mean_eigenvalue(self) -> float | None:
        from hessian_eigenthings import spectral_density

        found = spectral_density(self._operator(), num_runs=1, lanczos_steps=STEPS, seed=0)
        mass = torch.trapezoid(found.density, found.grid)
        return float(torch.trapezoid(found.density * found.grid, found.grid) / mass)

    def layer_trace(self, parameter: str, products: int) -> float | None:
        from hessian_eigenthings import trace

        found = trace(self._operator(parameter), num_matvecs=products, method="hutchinson", seed=0)
        return float(found.estimate)


class BackPack(Tool):
    name = "BackPACK"

    def ggn_trace(self, products: int) -> float | None:
        return self.exact_trace()

    def exact_trace(self) -> float | None:
        from backpack import backpack, extend
        from backpack.extensions import DiagGGNExact

        plain = all(not list(child.children()) for child in self.model.children())
        model = extend(self.model, use_converter=not plain)
        loss = extend(nn.CrossEntropyLoss())
        with backpack(DiagGGNExact()):
            loss(model(self.data[0]), self.data[1]).backward()
        total = sum(float(p.diag_ggn_exact.sum()) for p in model.parameters())
        for p in model.parameters():
            del p.diag_ggn_exact
            p.grad = None
        return total


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


TOOLS: list[type[Tool]] = [
    Spiritlevel,
    BackPack,
    PyHessian,
    Curvlinops,
    Eigenthings,
]
