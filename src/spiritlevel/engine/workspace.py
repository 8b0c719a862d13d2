"""The work that measures share: each piece is done once, however many measures use it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from torch import Tensor

from ..ground.errors import SpiritlevelError
from ..model.arithmetic import full_precision
from ..model.losses import CrossEntropy
from ..model.surface import Surface
from ..records.measurements import Cost
from .activity import ActivationSites, find_activation_sites
from .data_pass import Budget, Certificate, Needs, PassResult, certify, run_pass
from .estimate import Estimate
from .head.head_layer import Head, choose_head
from .head.rows import HeadBlock, iterate_blocks
from .memory import VectorMemory, chunk_memory, most_kept
from .plan import MeasuringPlan, make_head_plan, make_plan
from .precision import Precision
from .refine import refine
from .settings import settings_of
from .sweep.backward import Probes
from .sweep.feature_scales import POWERS, StandardizedFeatures
from .sweep.leading import Leading, Split, least_probes
from .sweep.output_probes import OutputProbes
from .sweep.sums import Factors, RowKind
from .sweep_passes import SweepPasses
from .weight_space.chunk_products import ProductChoice, ProductMethod
from .weight_space.perturbed import NoiseVectors, PerturbedLoss
from .weight_space.product_methods import choose_method
from .weight_space.products import SMALL, Products
from .weight_space.trusted_derivatives import samples_at_once

Made = TypeVar("Made")
STREAM_FROM = 4096  # classes from which a head is streamed over its vocabulary
NEARLY_ALL = 0.9  # of the parameters: if these bend, all are probed


class Workspace:
    """A surface, the plan for it, and everything computed on it so far."""

    def __init__(
        self,
        surface: Surface,
        *,
        head: str | None = None,
        memory: int | None = None,
        seed: int = 0,
        precision: Precision | None = None,
        products: ProductChoice = "auto",
        options: Any = None,  # of the measures, which alone know them
    ) -> None:
        """`memory` is the number of bytes that samples and vectors of the weights may take."""
        self.surface, self.seed, self.head_name = surface, seed, head
        self.precision = precision or Precision()
        self.wanted_products: ProductChoice = products
        self.options = options
        self.asked: frozenset[str] = frozenset()  # the measures of this call, by name
        self.cache: dict[Any, Any] = {}  # estimates that several measures share
        self._memory = memory
        # half of a limit is for vectors as large as the weights, the other half for samples
        self.vector_memory = VectorMemory(None if memory is None else memory // 2)
        self._plan: MeasuringPlan | None = None
        self._passes: SweepPasses | None = None
        self._wanted = Needs()

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returns, made once for each key, so that measures share it."""
        if key not in self.cache:
            self.cache[key] = make()
        made: Made = self.cache[key]
        return made

    def want(self, needs: Needs) -> None:
        """Announce all needs in advance, so that the first pass computes everything."""
        if not self.precision.way.ggn:
            needs = needs.without_sweep
        self._wanted = needs

    @property
    def wanted(self) -> Needs:
        """What the first pass will compute."""
        return self._wanted

    @property
    def plan(self) -> MeasuringPlan:
        """How this surface is measured; made again if a sweep becomes necessary."""
        plan = self._network_plan
        if self._wanted.activity:
            with contextlib.suppress(SpiritlevelError):  # raised again by measures that need it
                _ = self.activation_sites  # must be known before the pass
        return plan

    @property
    def _network_plan(self) -> MeasuringPlan:
        wanted = self._wanted
        if self._plan is None or (wanted.sweep and not self._plan.sweep):
            with full_precision():
                if wanted.sweep:
                    memories = 1 + len(POWERS) * wanted.standardized
                    self._plan = make_plan(self.surface, kappa=wanted.kappa, memories=memories)
                else:
                    self._plan = make_head_plan(self.surface)
        return self._plan

    @functools.cached_property
    def activation_sites(self) -> ActivationSites:
        """Where the model applies rectifiers and calls layers."""
        heads = [h for h in self._network_plan.heads.values() if h.fits and h.can_be_left_out]
        with full_precision():
            return find_activation_sites(self.surface, heads[-1].module if heads else None)

    @functools.cached_property
    def head(self) -> Head:
        """The head: the last linear layer, or the layer that the user named."""
        return choose_head(self.plan.heads, self.head_name)

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Whether the outputs are linear in each parameter, on the data of all processes."""
        return certify(self.surface.parameters, self.run(Needs(sweep=True)).bends)

    @functools.cached_property
    def features(self) -> StandardizedFeatures:
        """The inputs of layers, and what standardized features are divided by."""
        chunk = self.plan.footprint.chunk(self.memory, sweep=False)
        return StandardizedFeatures(self.surface, chunk)

    @property
    def product_chunk(self) -> int:
        """Samples at a time in products with the Hessian."""
        memory = self.memory - (self.vector_memory.limit or 0)
        return min(max(1, memory // self.plan.footprint.graph), self.plan.footprint.fitting)

    @property
    def kept_samples(self) -> int:
        """Samples whose graphs are held for products one after another."""
        chunk, graph = self.product_chunk, self.plan.footprint.graph
        return most_kept(self.surface.device, self._memory, chunk=chunk, graph=graph)

    @functools.cached_property
    def products(self) -> Products:
        """Products with the Hessian over this surface."""
        return Products(
            self.surface,
            chunk=self.product_chunk,
            method=self.product_method,
            memory=self.vector_memory,
            kept=self.kept_samples,
        )

    @property
    def product_remark(self) -> str:
        """On the products so far, where they are not exact up to rounding."""
        return self.products.remark if "products" in vars(self) else ""

    @functools.cached_property
    def product_method(self) -> ProductMethod:
        """How products are formed: as the user wants it, or found by a run of the model."""
        at_once = samples_at_once(self.surface, self.product_chunk)
        return choose_method(self.surface, at_once, self.wanted_products)

    @functools.cached_property
    def perturbed(self) -> PerturbedLoss:
        """The loss and its gradient at weights other than the network's own."""
        plain = self.plan.footprint.chunk(self.memory, sweep=False)
        with_graph = max(1, self.memory // self.plan.footprint.graph)
        return PerturbedLoss(self.surface, chunk=plain, gradient_chunk=with_graph)

    @functools.cached_property
    def draws(self) -> NoiseVectors:
        """Noise for the weights, the same for all measures."""
        return NoiseVectors(self.surface, seed=self.seed, memory=self.memory)

    @functools.cached_property
    def memory(self) -> int:
        """Bytes that a chunk of samples may take."""
        return chunk_memory(self.surface.device, self._memory)

    # -- the pass over the data --------------------------------------------------------------

    def start(self) -> None:
        """Make the pass that was announced, as far as it is sure to be needed."""
        if self._wanted.sweep and self.sweep_can_wait:
            if self._wanted.without_sweep == Needs():
                return
            self.run(self._wanted.without_sweep)
        else:
            self.run(self._wanted)

    @functools.cached_property
    def sweep_can_wait(self) -> bool:
        """Whether sample probes may give all rows, so that the GGN need not be known.

        That is so in a large network in which nearly everything bends. Where it is exact for a
        large part, the sweep is the better way to that part.
        """
        wanted, parameters = self._wanted, self.surface.parameters
        if self.precision.way.sample_probes == "never" or wanted.standardized:
            return False
        names = () if self.takes_elements else self.plan.bent
        bent = sum(parameters[name].numel() for name in names)
        return bent > SMALL and bent >= NEARLY_ALL * sum(p.numel() for p in parameters.values())

    def run(self, needs: Needs) -> PassResult:
        """The result of a pass over the data that covers at least these needs."""
        if self._passes is None or not self._passes.first.needs.covers(needs):
            self._wanted = self._wanted | needs
            probes, now = None, self._wanted
            if not needs.sweep and self._wanted.sweep and self.sweep_can_wait:
                now = self._wanted.without_sweep
            if now.sweep and self.by_probes:
                probes = self._probes(range(self.pilot_count))
            self._passes = SweepPasses(self._run(now, probes))
        return self._passes.first

    def head_blocks(self) -> Iterable[HeadBlock]:
        """The rows of the head, as kept by the pass, or by running the network again."""
        run = self.run(Needs(head=True, features=True))
        if run.blocks is not None:
            return run.blocks
        chunk = self.plan.footprint.chunk(self.memory, sweep=False)
        stream = self.memory // 4 if run.streamed else None
        return iterate_blocks(self.surface, self.head, chunk=chunk, stream=stream)

    def _run(self, needs: Needs, probes: Probes | None) -> PassResult:
        head = self.head if needs.head else None
        stream = None
        if (needs.head or needs.softmax or needs.margins) and not needs.sweep:
            fitting = [h for h in self.plan.heads.values() if h.fits]
            if head is None and fitting:
                head = self.head
            if head is not None and self._streams(head):
                stream = self.memory // 4
        footprint = self.plan.footprint if probes is None else self.plan.probe_footprint
        return run_pass(
            self.surface,
            self.plan,
            needs,
            head=head,
            budget=Budget(footprint.chunk(self.memory, sweep=needs.sweep), self.memory, stream),
            seed=self.seed,
            probes=probes,
            sites=self.activation_sites if needs.activity else None,
            scales=self.features.scales if needs.standardized and needs.sweep else None,
            elements=needs.sweep and probes is None and self.takes_elements,
        )

    def _streams(self, head: Head) -> bool:
        """Whether the head has too many outputs to form: a large vocabulary or long sequences."""
        if not head.can_be_left_out:
            return False
        large = len(head.weight()) >= STREAM_FROM or 48 * self.plan.num_outputs > self.memory // 4
        return large and isinstance(self.surface.loss, CrossEntropy)

    # -- the sweep, exact or by output probes ------------------------------------------------

    @property
    def by_probes(self) -> bool:
        """Whether output probes replace the factor columns."""
        asked = self.precision
        return asked.way.ggn and asked.probes_columns(self.plan.num_columns)

    @functools.cached_property
    def takes_elements(self) -> bool:
        """Whether columns of elementwise functions complete the sweep to the Hessian's rows."""
        takes = not self.by_probes and self.precision.takes_elements(self.plan.exact_passes)
        return all(self.surface.processes.gather(takes))

    @property
    def elements_at(self) -> float:
        """The max_passes from which on they are taken, if nothing else is missing."""
        passes = math.inf if self.by_probes else self.plan.exact_passes
        return passes if passes > self.precision.max_passes else math.inf

    @functools.cached_property
    def num_samples(self) -> int:
        """Samples in all processes, counted without running the model where that is possible."""
        return sum(self._counts)

    @functools.cached_property
    def _counts(self) -> list[int]:
        return self.surface.processes.gather(self.surface.count_samples())

    @property
    def pilot_count(self) -> int:
        """Output probes to start with: two, and more if few samples leave their error unknown."""
        return least_probes(self.num_samples)

    def _probes(self, streams: range, leading: int = 0) -> Probes:
        offset = sum(self._counts[: self.surface.processes.rank])
        return Probes(self.seed, streams, offset, leading)

    def output_probes(self, at_least: int) -> Probes:
        """The first output probes, for a sweep of one's own."""
        return self._probes(range(max(self.pilot_count, at_least)))

    def sweep_to(self, needs: Needs, kind: RowKind, factors: Factors, rtol: float) -> None:
        """Add output probes until Σ factor × value of a kind of rows is within `rtol`."""
        self.run(needs)
        refine(self.sweep_rows(kind, factors), self.precision, rtol)

    def sweep_rows(self, kind: RowKind, factors: Factors, *, whole: bool = False) -> OutputProbes:
        """Σ factor × value over the GGN's rows, or `whole` ones, and the way to more probes."""
        passes = self._swept()

        def take_pass(streams: range | None) -> None:
            if streams is None:
                passes.replace(self._run(self._wanted, None))
            else:
                passes.more.append(self._run(self._wanted, fresh(streams, passes.leading)))

        def take_split(split: Split) -> None:
            passes.replace(self._run(self._wanted, fresh(range(split.probes), split.leading)))

        def fresh(streams: range, leading: int) -> Probes:
            """Probes that no pass had before."""
            numbers = range(passes.drawn + streams.start, passes.drawn + streams.stop)
            return self._probes(numbers, leading)

        leading = Leading(
            lambda: passes.sums, lambda: passes.dropped, take_split, self.plan.num_columns
        )
        return OutputProbes(
            lambda: [(s.num_probes, s.kinds[kind]) for s in passes.sums_of(whole=whole)],
            take_pass,
            factors,
            num_columns=self.precision.most_probes(self.plan.num_columns),
            leading=leading if self.probed else None,
            probe=self.plan.cost(1, sweep=True, num_columns=1),
        )

    @property
    def swept(self) -> bool:
        """Whether a sweep was run."""
        return self._passes is not None and self._passes.first.needs.sweep

    @property
    def probed(self) -> bool:
        """Whether the sweep used output probes."""
        return self._passes is not None and self._passes.first.sweep.num_probes is not None

    def _swept(self) -> SweepPasses:
        assert self._passes is not None
        return self._passes

    @property
    def num_probes(self) -> int:
        """How many output probes the sweep has used so far."""
        return 0 if self._passes is None else self._passes.num_probes

    @property
    def sweep_cost(self) -> Cost:
        """The work of all passes with a sweep."""
        return Cost() if self._passes is None else self._passes.cost

    def sweep_estimate(self, kind: RowKind, factors: Factors) -> Estimate:
        """Σ factor × value over the rows of a kind, with elementwise functions if possible."""
        return self.sweep_rows(kind, factors, whole=True).estimate()

    def sweep_neurons(self, layer: str) -> Tensor:
        """The same for ρ(j), one row per probe; a single row if exact."""
        return self._swept().neurons(layer)

    @property
    def sweep_text(self) -> str:
        """How the GGN was computed, for the report."""
        return self._swept().text(self.plan.num_columns)

    # -- the record --------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The settings needed to reproduce the numbers."""
        passes = self._passes
        return settings_of(
            self.surface,
            self.precision,
            num_samples=self.num_samples if passes is None else passes.first.num_samples,
            num_outputs=self.plan.num_outputs,
            seed=self.seed,
            products=self.wanted_products,
        )

    def subject(self) -> dict[str, Any]:
        """The model's class, with loss and accuracy once a pass has formed the outputs."""
        known: dict[str, Any] = {"model": type(self.surface.model).__name__}
        return known if self._passes is None else known | self._passes.first.fit.to_dict()

    @property
    def cost(self) -> Cost:
        """All work counted so far, the plan and the certificate included."""
        return self.surface.processes.total_cost(self.surface.cost)
