"""Libraries with exact diagonals: BackPACK, nngeometry, laplace-torch.

The diagonal of the GGN is that of the Hessian where the network is piecewise linear. The library
does not tell where that is so; the questions about the Hessian are asked only there.
"""

from __future__ import annotations

from collections.abc import Callable

from tools import DIAGONAL, EXACT, GGN, LAYERS, TRACES, Answer, Library, Way
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ASKED = (EXACT, *TRACES, LAYERS, DIAGONAL)


def whole(diagonal: Callable[[], Answer], name: str) -> Way:
    return Way(name, lambda seed, products: diagonal(), has_all=True)


class Diagonals(Library):
    """A library that has the GGN's whole diagonal, and all that follows from it."""

    def ways(self, question: str) -> list[Way]:
        is_ggn = question == GGN or (question in ASKED and self.network.is_piecewise_linear)
        return [whole(*each) for each in self._ggn()] if is_ggn else []

    def _ggn(self):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def _loader(self, size: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(*self.flat), batch_size=size)


class BackPack(Diagonals):
    name = "BackPACK"
    package = "backpack-for-pytorch"

    def ways(self, question: str) -> list[Way]:
        if question in ASKED and not self.network.is_piecewise_linear:
            return [whole(*each) for each in self._in_parts("DiagHessian")]
        return super().ways(question)

    def _ggn(self):  # type: ignore[no-untyped-def]
        return self._in_parts("DiagGGNExact")

    def _in_parts(self, extension: str):  # type: ignore[no-untyped-def]
        ways = [(lambda: self._diagonal(extension, len(self.data[0])), extension)]
        if (size := self.network.part) is not None and size < len(self.data[0]):
            name = f"{extension} in parts of {size}"
            ways.append((lambda: self._diagonal(extension, size), name))
        return ways

    def _diagonal(self, extension: str, size: int) -> dict[str, Tensor]:
        from backpack import backpack, extend, extensions

        field = {"DiagGGNExact": "diag_ggn_exact", "DiagHessian": "diag_h"}[extension]
        is_plain = all(not list(child.children()) for child in self.model.children())
        model = extend(self.model, use_converter=not is_plain)
        loss = extend(nn.CrossEntropyLoss())
        names = {id(p): name for name, p in self.model.named_parameters()}
        sums: dict[str, Tensor] = {}
        for x, y in zip(self.data[0].split(size), self.data[1].split(size), strict=True):
            model.zero_grad()
            with backpack(getattr(extensions, extension)()):
                loss(model(x), y).backward()
            for p in model.parameters():
                name, part = names[id(p)], getattr(p, field) * (len(x) / len(self.data[0]))
                sums[name] = sums[name] + part if name in sums else part
                delattr(p, field)
        return sums


class NNGeometry(Diagonals):
    name = "nngeometry"
    package = "nngeometry"

    def _ggn(self):  # type: ignore[no-untyped-def]
        ways = [(lambda: self._diagonal(len(self.data[0])), "FIM, PMatDiag")]
        if (size := self.network.part) is not None and size < len(self.data[0]):
            ways.append((lambda: self._diagonal(size), f"FIM, PMatDiag in parts of {size}"))
        return ways

    def _diagonal(self, size: int) -> dict[str, Tensor]:
        from nngeometry.metrics import FIM
        from nngeometry.object import PMatDiag

        device = str(self.data[0].device)
        loader = self._loader(size)
        matrix = FIM(self.model, loader, PMatDiag, variant="classif_logits", device=device)
        parameters = dict(self.model.named_parameters())
        collection, found = matrix.generator.layer_collection, {}
        for layer, start in collection.p_pos.items():
            for kind in ("weight", "bias"):
                p = parameters.get(f"{layer}.{kind}")
                if p is not None:
                    found[f"{layer}.{kind}"] = matrix.get_diag()[start : start + p.numel()]
                    found[f"{layer}.{kind}"] = found[f"{layer}.{kind}"].view_as(p)
                    start += p.numel()
        return found


class Laplace(Diagonals):
    name = "laplace-torch"
    package = "laplace-torch"

    def _ggn(self):  # type: ignore[no-untyped-def]
        count = len(self.data[0])
        return [
            (lambda: self._diagonal("BackPackGGN", count), "DiagLaplace, BackPACK"),
            (lambda: self._diagonal("AsdlGGN", count), "DiagLaplace, ASDL"),
            (
                lambda: self._diagonal("CurvlinopsGGN", 8),
                "DiagLaplace, default backend, parts of 8",
            ),
        ]

    def _diagonal(self, backend: str, size: int) -> dict[str, Tensor]:
        from laplace import Laplace as make
        from laplace import curvature

        kind = {"subset_of_weights": "all", "hessian_structure": "diag"}
        model = self.scores if hasattr(self.model, "config") else self.model
        fitted = make(model, "classification", backend=getattr(curvature, backend), **kind)
        fitted.fit(self._loader(size))
        parts = fitted.H.split([p.numel() for p in self.model.parameters()])
        named = zip(self.model.named_parameters(), parts, strict=True)
        return {name: part.view_as(p) / len(self.data[0]) for (name, p), part in named}
