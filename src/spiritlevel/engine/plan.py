"""The plan of a measurement, made by running three samples before any real work starts.

For every parameter it decides how its per-sample gradients are computed, and it does not trust the
kinds of layers for that: on the three samples the rule's gradients must add up to that of autograd.
What fails takes the generic route. Whether the rest of the data does the same as these samples is
looked at again in every run (`routes`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError, is_out_of_memory
from ..math.signs import random_signs
from ..model import batches as _batches
from ..model.autograd_graph import refuse_hidden_graphs, shape_of_graph
from ..model.batches import BatchLocation
from ..model.elementwise import elementwise_bends
from ..model.layer_hooks import LayerUse, LayerUses, recording_uses, result_bytes, saved_bytes
from ..model.layers import Layout
from ..model.linearity import SLICE_WRITTEN
from ..model.surface import Surface
from ..records.measurements import Cost
from .head.head_layer import Head, find_heads
from .routes import Route, Signature, find_routing
from .rule_check import RuleCheck, check_rules
from .sweep.elements import work_of_sites
from .sweep.footprint import Footprint, footprint
from .sweep.per_sample import can_vectorize
from .uses import complete_uses

PROBE_SAMPLES = 3
DRAWS = 8  # random moves of the weights' last digits that are tried
CANCELLED = 10  # times what the last digits of the weights do: another order of sums does no more
SHOWN_SAMPLES = 5  # how many samples an error of the first run looks at to name its batch


@dataclasses.dataclass(frozen=True)
class MeasuringPlan:
    """How a surface will be measured, and how much work and memory that takes.

    Routes and layouts are filled for a sweep only: finding them takes every layer's gradient.
    """

    sweep: bool
    routes: dict[str, Route]
    layouts: dict[str, Layout]
    writes_slices: bool  # whether the model changes parts of tensors in place
    signature: Signature | None  # of runs that need no test of their layouts; None: all need it
    rules: RuleCheck  # whether the rules give the parameters' gradients
    operations: frozenset[str]  # parameters whose uses are read off the graph
    bent: frozenset[str]  # parameters in which the outputs bend, on the first samples
    heads: dict[str, Head]
    vectorize: bool
    repeats: bool  # whether lookups that samples share can be repeated for each of them
    num_outputs: int
    num_columns: int
    num_elements: int  # columns of elementwise functions that would complete the GGN; 0 if none
    element_passes: float  # passes that these take; infinite where they would not do
    element_probe: float  # passes that random signs of all of them take
    footprint: Footprint  # of all columns
    probe_footprint: Footprint  # of one output probe

    @property
    def exact_passes(self) -> float:
        """Passes of a sweep whose rows are the Hessian's, where the GGN's are not."""
        return self.num_columns + self.element_passes

    def cost(
        self,
        num_samples: int,
        *,
        sweep: bool,
        num_columns: int | None = None,
        spreads: bool = False,
        elements: bool = False,
    ) -> Cost:
        """The work for a data set: one forward, and one backward per factor column or probe.

        With `spreads` one more forward, which finds the spreads of the features first. With
        `elements` the columns of elementwise functions too, and two backwards that weigh them.
        """
        generic = "generic" in self.routes.values()
        num_routes = (1 + generic) if sweep else 0
        columns = self.num_columns if num_columns is None else num_columns
        forwards = max(num_routes, 1) + spreads
        backwards = columns * num_routes + (self.num_elements + 2 if elements else 0)
        return Cost(forwards=num_samples * forwards, backwards=num_samples * backwards)


def make_plan(surface: Surface, *, kappa: bool = False, memories: int = 1) -> MeasuringPlan:
    """Run the model on three samples and decide everything that a sweep needs.

    A later call that does the same in this run recalls it.

    `memories` counts the scalings of the features that κ is computed for.
    """
    _ = surface.matrices  # all processes find them together, whatever their first samples do
    batch = surface.first_samples(PROBE_SAMPLES)
    recorded, outputs, targets, sizes, repeats = _first_run(surface, batch)
    names = {id(p): name for name, p in surface.parameters.items()}
    run = shape_of_graph(outputs, names), _batches.form_of([batch, targets])
    key = ("plan", surface.dtype, *run, kappa, memories)
    try:
        _check_trainable(outputs)
        if (known := surface.findings.get(key)) is not None:
            complete_uses(surface, recorded, outputs)
            heads = find_heads(recorded.uses, outputs, surface.loss.positions(outputs, targets))
            return dataclasses.replace(known, heads=heads)
        known_apart = ("independent", surface.dtype, *run)
        values = outputs.detach()
        surface.findings.recall(known_apart, lambda: _check_independent(surface, batch, values))
        num_columns = surface.loss.num_columns(outputs, targets)
        complete_uses(surface, recorded, outputs)
        routing = find_routing(surface, recorded.uses, outputs)
        checked = check_rules(surface, recorded.uses, routing, outputs)
        routes: dict[str, Route] = {
            name: "generic" if name in checked.wrong else route
            for name, route in routing.routes.items()
        }
        layouts: dict[str, Layout] = {}
        for use, layout in zip(recorded.uses, routing.layouts, strict=True):
            if layout is not None:
                layouts.setdefault(use.layer, layout)
        generic = [name for name, route in routes.items() if route == "generic"]
        # two columns: torch's rules for vmap within vmap may be right for one alone (PReLU)
        ones = torch.ones_like(outputs.detach())
        vectorize = bool(generic) and can_vectorize(
            surface, generic, batch, torch.stack([ones, 2.0 * ones], dim=1)
        )
        saved = _saved(surface.model, sizes) // PROBE_SAMPLES
        generic_bytes = sum(surface.parameters[name].nbytes for name in generic)
        uses = [
            (use, layout)
            for use, layout in zip(recorded.uses, routing.layouts, strict=True)
            if layout is not None
        ]
        operations = {name for u in recorded.uses if u.is_operation for name in u.names.values()}
        edges = {use.edge.node for use in recorded.uses if use.edge is not None}
        elementwise = elementwise_bends(outputs, names, counted=edges)
        num_elements, *element_passes = work_of_sites(elementwise, names, generic, len(outputs))

        def footprint_of(columns: int) -> Footprint:
            return footprint(
                uses,
                saved=saved,
                generic=2 * columns * generic_bytes,
                num_columns=columns,
                kappa=kappa,
                memories=memories,
                largest=_largest_output(recorded.uses, PROBE_SAMPLES),
                on_cpu=surface.device.type == "cpu",
            )

        plan = MeasuringPlan(
            sweep=True,
            routes=routes,
            layouts=layouts,
            writes_slices=SLICE_WRITTEN in routing.signature.operations,
            signature=routing.signature if routing.certain else None,
            rules=checked,
            operations=frozenset(operations),
            bent=frozenset(elementwise.bends),
            num_elements=num_elements,
            element_passes=element_passes[0],
            element_probe=element_passes[1],
            heads=find_heads(recorded.uses, outputs, surface.loss.positions(outputs, targets)),
            vectorize=vectorize,
            repeats=repeats,
            num_outputs=outputs[0].numel(),
            num_columns=num_columns,
            footprint=footprint_of(num_columns),
            probe_footprint=footprint_of(1),
        )
        if not checked.unseen:  # a later call may see more
            surface.findings.put(key, dataclasses.replace(plan, heads={}))
        return plan
    finally:
        recorded.close()


def _first_run(
    surface: Surface, batch: Any
) -> tuple[LayerUses, Tensor, Tensor, dict[int, int], bool]:
    """The recorded uses, outputs, targets, bytes that were saved, and whether lookups repeat."""
    try:
        return *_recorded(surface, batch, _batches.num_samples(batch)), True
    except (RuntimeError, IndexError, ValueError) as error:
        if is_out_of_memory(error):
            raise
    # the model's code needs the shapes as they are, or it fails anyway
    return *_recorded(surface, batch, 1), False


def _recorded(
    surface: Surface, batch: Any, num_samples: int
) -> tuple[LayerUses, Tensor, Tensor, dict[int, int]]:
    modules = {name: surface.layers.module(name) for name in surface.layers.rules}

    def run(
        saving: contextlib.AbstractContextManager[Any], sizes: dict[int, int]
    ) -> tuple[LayerUses, Tensor, Tensor, dict[int, int]]:
        recording = recording_uses(modules, num_samples=num_samples)
        with torch.enable_grad(), recording as recorded, saving:
            outputs, targets = _probe(surface, batch)
        return recorded, outputs, targets, sizes

    try:
        return run(*saved_bytes())
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return run(*result_bytes())  # the model's code uses torch.func, or it fails anyway


def make_head_plan(surface: Surface) -> MeasuringPlan:
    """A plan without a sweep, from one sample only: outputs may be very large.

    Whether samples interact is looked at too, unless a later call does the same as an earlier one.
    """
    batch = surface.first_samples(1)
    recorded, outputs, targets, sizes = _recorded(surface, batch, 1)
    names = {id(p): name for name, p in surface.parameters.items()}
    run = shape_of_graph(outputs, names), _batches.form_of([batch, targets])
    try:
        _check_trainable(outputs)
        without_sweep = footprint(
            [],
            saved=_saved(surface.model, sizes),
            generic=0,
            num_columns=1,
            kappa=False,
            memories=1,
            largest=_largest_output(recorded.uses, 1),
            on_cpu=surface.device.type == "cpu",
        )
        plan = MeasuringPlan(
            sweep=False,
            routes={},
            layouts={},
            writes_slices=False,
            signature=None,
            rules=RuleCheck(),
            operations=frozenset(),
            bent=frozenset(),
            heads=find_heads(recorded.uses, outputs, surface.loss.positions(outputs, targets)),
            vectorize=False,
            repeats=False,
            num_outputs=outputs[0].numel(),
            num_columns=surface.loss.num_columns(outputs, targets),
            num_elements=0,
            element_passes=math.inf,
            element_probe=math.inf,
            footprint=without_sweep,
            probe_footprint=without_sweep,
        )
    finally:
        recorded.close()
    del outputs  # and the graph
    fitting = [head for head in plan.heads.values() if head.fits]
    known_apart = ("independent", surface.dtype, *run)
    surface.findings.recall(known_apart, lambda: _check_samples(surface, [None, *fitting][-1]))
    return plan


def _check_samples(surface: Surface, head: Head | None) -> None:
    """Refuse a model whose samples interact, seen at its outputs or at the input of its head."""
    batch = surface.first_samples(PROBE_SAMPLES)

    def run(part: Any) -> Tensor:
        with torch.no_grad():
            if head is not None and head.can_be_left_out:
                return surface.features(part, where=BatchLocation(0), head=head.module)[0]
            return surface.outputs(part, where=BatchLocation(0))[0]

    _check_independent(surface, batch, run(batch), run)


def _check_trainable(outputs: Tensor) -> None:
    refuse_hidden_graphs(outputs)
    if not outputs.requires_grad:
        raise SpiritlevelError(
            "The model's outputs do not depend on any trainable parameter. Check that forward "
            "does not run under torch.no_grad() and does not detach its result."
        )


def _saved(model: nn.Module, sizes: dict[int, int]) -> int:
    """Bytes that autograd saves, without parameters and buffers, which exist anyway."""
    model_storages = _storages(model)
    return sum(size for address, size in sizes.items() if address not in model_storages)


def _largest_output(uses: list[LayerUse], num_samples: int) -> int:
    return max((use.output.nbytes for use in uses), default=0) // num_samples


def _probe(surface: Surface, batch: Any) -> tuple[Tensor, Tensor]:
    """Outputs and targets of a few samples; errors name the user's batch they come from."""
    try:
        result = surface.outputs(batch, where=BatchLocation(0))
        surface.check_last_batch()
        return result
    except SpiritlevelError:
        seen = 0
        with torch.no_grad():
            for where, whole in surface.batches():
                surface.outputs(whole, where=where)
                surface.check_last_batch()
                seen += _batches.num_samples(whole)
                if seen >= SHOWN_SAMPLES:
                    break
        raise


def _storages(model: nn.Module) -> set[int]:
    """Addresses of parameters and buffers: saving them for the backward takes no memory."""
    return {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}


def _check_independent(
    surface: Surface, batch: Any, outputs: Tensor, run: Callable[[Any], Tensor] | None = None
) -> None:
    """Refuse outputs that depend on the rest of the batch, or that differ when run again."""
    with torch.no_grad():
        run = run or (lambda part: surface.outputs(part, where=BatchLocation(0))[0])
        # each of them: in a blank one nothing would show
        alone = torch.cat([run(_batches.take(batch, slice(i, i + 1))) for i in range(len(outputs))])
        again = run(batch)
    gaps = {
        f"A sample alone differs from the same sample in a batch of {PROBE_SAMPLES}": alone
        - outputs,
        f"The same {PROBE_SAMPLES} samples run again differ": again - outputs,
    }
    scale = float(outputs.abs().max())
    # Kernels for other batch sizes sum in another order; anything above this is a real difference,
    # unless large numbers cancel on the way to the outputs.
    tolerance = min(1e3 * torch.finfo(outputs.dtype).eps, 0.05) * max(scale, 1e-30)
    repeats = float((again - outputs).abs().max()) <= tolerance
    for finding, difference in gaps.items():
        gap = float(difference.abs().max())
        if gap <= tolerance:
            continue
        if repeats and gap <= CANCELLED * _last_digits(surface, batch, outputs, run):
            continue
        raise SpiritlevelError(
            "The outputs for a sample must not depend on the rest of its batch or on chance. "
            f"{finding} by {gap:.2g} (outputs up to {scale:.2g}). Look for dropout or noise in "
            "forward, or for batch statistics; call model.eval()."
        )


def _last_digits(
    surface: Surface, batch: Any, outputs: Tensor, run: Callable[[Any], Tensor]
) -> float:
    """How far the outputs move if every weight moves by a unit in its last place, up or down.

    Where large numbers cancel that is far, and so is what another order of sums does. Of several
    draws the largest: in one of them two numbers may go the same way.
    """
    weights = {n: p for n, p in surface.model.named_parameters() if p.is_floating_point()}
    # a float64 network may compute in float32 somewhere
    inside = torch.finfo(surface.numbers.coarsest(surface.trial)).eps
    far = 0.0
    for draw in range(DRAWS):
        moved = {}
        for number, (name, weight) in enumerate(weights.items()):
            row = torch.full((1,), draw, dtype=torch.int64, device=weight.device)
            signs = random_signs(0, number, row, weight.numel(), weight.dtype)
            unit = max(torch.finfo(weight.dtype).eps, inside)
            moved[name] = weight.detach() * (1 + unit * signs.view(weight.shape))
        with torch.no_grad(), surface.substituting(moved):
            far = max(far, float((run(batch) - outputs).abs().max()))
    return far
