"""`Setup`: what all verbs share, as one record, with its checks and its defaults."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar, get_args

from torch import Tensor, nn

from ..engine.head.head_layer import choose_head
from ..engine.plan import make_head_plan
from ..engine.precision import Method, Precision
from ..engine.sharded_workspace import ShardedWorkspace
from ..engine.weight_space.chunk_products import ProductChoice
from ..engine.weight_space.long_rows import divided_among
from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError
from ..ground.need import is_number, is_whole, need, number, one_of, or_none
from ..model.arguments import CHECKED_LATER, ArgumentCheck, is_text
from ..model.arguments import CHECKS as CHECKS_OF_MODEL
from ..model.arithmetic import Arithmetic, full_precision
from ..model.batches import Forward
from ..model.distributed import Processes
from ..model.model_state import check_model
from ..model.surface import Surface
from ..records.measurements import Progress
from .options import Options, as_options

Loss: TypeAlias = str | nn.Module | Callable[[Tensor, Tensor], Tensor]
Keywords = TypeVar("Keywords")

CHECKS: dict[str, ArgumentCheck] = {
    **CHECKS_OF_MODEL,
    "head": ArgumentCheck(or_none(is_text), "the path of a layer, or None"),
    "method": ArgumentCheck(or_none(is_text), "the name of a method, such as 'auto'"),
    "products": ArgumentCheck(is_text, "the name of a method, such as 'auto'"),
    "rtol": ArgumentCheck(is_number, "a number, such as 0.05"),
    "confidence": ArgumentCheck(is_number, "a number, such as 0.95"),
    "max_passes": ArgumentCheck(is_whole, "a whole number below 2**63, such as 100"),
    "options": CHECKED_LATER,
}


class OnData(TypedDict, total=False):
    """How the network is run on the data: the keywords of a verb about one of its outputs."""

    loss: Loss
    forward: Forward | None
    memory: int | None
    progress: Progress | None


class OnLayers(OnData, total=False):
    """Arguments of a verb about the curvature of chosen layers."""

    layers: str | Sequence[str] | None
    head: str | None
    seed: int
    distributed: bool


class OnLayersFast(OnLayers, total=False):
    """Arguments of a verb that may use a faster arithmetic."""

    arithmetic: Arithmetic


class OfProducts(OnLayers, total=False):
    """Arguments of a verb that forms products with the Hessian."""

    products: ProductChoice


class ToPrecision(OfProducts, total=False):
    """Of a verb whose values are refined until they are as precise as is asked."""

    rtol: float
    confidence: float
    max_passes: int


class ToPrecisionByMethod(ToPrecision, total=False):
    """Arguments of a verb whose method can be chosen, too."""

    method: Method


class OfMeasures(ToPrecision, total=False):
    """Arguments of a verb that computes measures, some of which have options."""

    options: Options | Mapping[str, Any] | None


class AllShared(OfMeasures, ToPrecisionByMethod, OnLayersFast, total=False):
    """Arguments of `measure`: all there are."""


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What all verbs share; what each argument means stands with `spiritlevel.measure`.

    Its fields are the keywords of the verbs, in this order and with these defaults.
    """

    loss: Loss = "cross_entropy"
    layers: str | Sequence[str] | None = None
    head: str | None = None
    forward: Forward | None = None
    method: Method = "auto"
    products: ProductChoice = "auto"
    rtol: float = 0.05
    confidence: float = 0.95
    max_passes: int = 100
    options: Options | Mapping[str, Any] | None = None
    memory: int | None = None
    arithmetic: Arithmetic = "full"
    seed: int = 0
    distributed: bool = True
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        _ = self.precision
        needed = f"one of {', '.join(get_args(ProductChoice))}"
        chosen = one_of(get_args(ProductChoice))
        need("products", self.products, chosen, needed, "'auto' takes what the model supports.")
        object.__setattr__(self, "options", as_options(self.options))
        then = "Leave it out for 640 MiB, or half the free memory of a GPU."
        need("memory", self.memory, or_none(number(above=0)), "a positive number of bytes", then)

    @property
    def precision(self) -> Precision:
        """How precise estimates must be, and what they may cost."""
        return Precision(self.method, self.rtol, self.confidence, self.max_passes)

    def whole(self) -> Setup:
        """This setup for all layers, without what is about estimates."""
        return dataclasses.replace(Setup(**self.keywords(OfProducts)), layers=None)

    def keywords(self, kind: type[Keywords]) -> Keywords:
        """The arguments of a verb, by one of the classes above: `neurons(model, data, **these)`."""
        names = kind.__optional_keys__  # type: ignore[attr-defined]  # they are TypedDicts
        return kind(**{name: value for name, value in vars(self).items() if name in names})

    def workspace(self, model: nn.Module, data: Iterable[Any]) -> Workspace:
        """The workspace over the chosen layers."""
        layers = None if self.layers == "head" else self.layers
        surface = self._surface(model, data, layers)
        check_model(surface.model)
        if self.layers == "head":
            surface = self._surface(model, data, self._head_layer(surface))
        kind = Workspace if surface.shards is None else ShardedWorkspace
        return kind(
            surface,
            head=self.head,
            memory=None if self.memory is None else int(self.memory),  # 2e9 is a number of bytes
            seed=self.seed,
            precision=self.precision,
            products=self.products,
            options=as_options(self.options),
        )

    @contextlib.contextmanager
    def opened(self, model: nn.Module, data: Iterable[Any]) -> Iterator[Workspace]:
        """The workspace, in which the model may change: it is restored at the end."""
        workspace = self.workspace(model, data)
        surface = workspace.surface
        whole = surface.shards is None
        parts = contextlib.nullcontext() if whole else divided_among(surface.processes)
        with surface.preserved(), parts:
            yield workspace

    def _surface(
        self, model: nn.Module, data: Iterable[Any], layers: str | Sequence[str] | None
    ) -> Surface:
        return Surface(
            model,
            data,
            loss=self.loss,
            forward=self.forward,
            layers=layers,
            progress=self.progress,
            processes=Processes(join=self.distributed),
            arithmetic=self.arithmetic,
        )

    def _head_layer(self, surface: Surface) -> str:
        """What the layers "head" are: the one of this name, or else the head."""
        if "head" in surface.layers.owned():
            return "head"
        if surface.shards is not None:
            raise SpiritlevelError(
                "The 'layers' argument must name layers by their paths where fully_shard divides "
                "the model. Got 'head', which is found with whole weights. Pass its path, such as "
                "layers='lm_head', or products='reverse', for which the model is gathered."
            )
        with surface.preserved(), full_precision():
            return choose_head(make_head_plan(surface).heads, self.head).layer
