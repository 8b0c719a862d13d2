"""The plan of a measurement, made by running three samples before any real work starts.

For every parameter it decides how its per-sample gradients are computed, and it does not trust the
kinds of layers for that: on the three samples the rule's gradient of one sample must equal that of
autograd, and the gradients of the other two must be zero. What fails takes the generic route.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import SpiritlevelError
from ..model import batches as _batches
from ..model.batches import BatchLocation
from ..model.layer_hooks import LayerUse, parameter_uses, recording_uses, saved_bytes
from ..model.layers import (
    AbstractMatrixRule,
    AbstractRule,
    ContractionRequest,
    Layout,
    candidate_layouts,
    rule_for,
)
from ..model.model_state import ROOT
from ..model.surface import Surface
from ..records import Cost
from .head.head_layer import Head, find_heads
from .sweep.footprint import Footprint, footprint
from .sweep.per_sample import can_vectorize

# single: one use, contracted as it arrives; sum: several uses, G is formed and added up first;
# generic: per-sample gradients by vmap or one by one; unused: the outputs do not depend on it
Route = Literal["single", "sum", "generic", "unused"]

PROBE_SAMPLES = 3
OTHER_SAMPLES = 5  # the dimension that grows between 3 and 5 samples is the sample dimension


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a surface will be measured, and how much work and memory that takes.

    Routes and layouts are filled for a sweep only: finding them takes every layer's gradient.
    """

    sweep: bool
    routes: dict[str, Route]
    layouts: dict[str, Layout]
    heads: dict[str, Head]
    vectorize: bool
    num_outputs: int
    num_columns: int
    footprint: Footprint  # of all columns
    probe_footprint: Footprint  # of one output probe

    def cost(
        self,
        num_samples: int,
        *,
        sweep: bool,
        num_columns: int | None = None,
        spreads: bool = False,
    ) -> Cost:
        """The work for a data set: one forward, and one backward per factor column or probe.

        With `spreads` one more forward, which finds the spreads of the features first.
        """
        generic = "generic" in self.routes.values()
        num_routes = (1 + generic) if sweep else 0
        columns = self.num_columns if num_columns is None else num_columns
        forwards = max(num_routes, 1) + spreads
        return Cost(forwards=num_samples * forwards, backwards=num_samples * columns * num_routes)


def rules_of(surface: Surface) -> dict[str, AbstractRule]:
    """Rules by layer, for every module that has one."""
    rules: dict[str, AbstractRule] = {}
    for name, module in surface.model.named_modules():
        rule = rule_for(module)
        if rule is not None:
            rules[name or ROOT] = rule
    return rules


def matrix_layers(surface: Surface) -> dict[str, AbstractMatrixRule]:
    """Layers whose weight is measured and acts as a matrix, in the model's order."""
    rules = rules_of(surface)
    matrix_rules = {}
    for name in surface.parameters:
        layer = surface.layer_of(name)
        rule = rules.get(layer)
        if name.rpartition(".")[2] == "weight" and isinstance(rule, AbstractMatrixRule):
            matrix_rules[layer] = rule
    return matrix_rules


def make_plan(surface: Surface, *, kappa: bool = False, memories: int = 1) -> Plan:
    """Run the model on three samples and decide everything that a sweep needs.

    `memories` counts the scalings of the features that κ is computed for.
    """
    rules = rules_of(surface)
    batch = surface.first_samples(PROBE_SAMPLES)
    modules = {name: surface.module(name) for name in rules}
    saving, sizes = saved_bytes()
    with torch.enable_grad(), recording_uses(modules, inputs=frozenset()) as recorded, saving:
        outputs, targets = _probe(surface, batch)
    try:
        _check_independent(surface, batch, outputs.detach())
        _check_trainable(outputs)
        num_columns = surface.loss.num_columns(outputs, targets)
        shapes = _other_shapes(surface, modules)
        routes, layouts = _find_routes(surface, rules, recorded.uses, shapes, outputs)
        generic = [name for name, route in routes.items() if route == "generic"]
        vectorize = bool(generic) and can_vectorize(
            surface, generic, batch, torch.ones_like(outputs.detach()).unsqueeze(1)
        )
        saved = _saved(surface.model, sizes) // PROBE_SAMPLES
        generic_bytes = sum(surface.parameters[name].nbytes for name in generic)
        uses = [(u, rules[u.layer], layouts[u.layer]) for u in recorded.uses if u.layer in layouts]

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

        return Plan(
            sweep=True,
            routes=routes,
            layouts=layouts,
            heads=find_heads(recorded.uses, outputs, surface.loss.positions(outputs, targets)),
            vectorize=vectorize,
            num_outputs=outputs[0].numel(),
            num_columns=num_columns,
            footprint=footprint_of(num_columns),
            probe_footprint=footprint_of(1),
        )
    finally:
        recorded.close()


def make_head_plan(surface: Surface) -> Plan:
    """A plan without a sweep, from one sample only: outputs may be very large."""
    modules = {name: surface.module(name) for name in rules_of(surface)}
    batch = surface.first_samples(1)
    saving, sizes = saved_bytes()
    with torch.enable_grad(), recording_uses(modules, inputs=frozenset()) as recorded, saving:
        outputs, targets = _probe(surface, batch)
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
        return Plan(
            sweep=False,
            routes={},
            layouts={},
            heads=find_heads(recorded.uses, outputs, surface.loss.positions(outputs, targets)),
            vectorize=False,
            num_outputs=outputs[0].numel(),
            num_columns=surface.loss.num_columns(outputs, targets),
            footprint=without_sweep,
            probe_footprint=without_sweep,
        )
    finally:
        recorded.close()


def check_samples(surface: Surface, head: Head | None) -> None:
    """Refuse a model whose samples interact, seen at its outputs or at the input of its head."""
    batch = surface.first_samples(PROBE_SAMPLES)

    def run(part: Any) -> Tensor:
        with torch.no_grad():
            if head is not None and head.can_be_left_out:
                return surface.features(part, where=BatchLocation(0), head=head.module)[0]
            return surface.outputs(part, where=BatchLocation(0))[0]

    _check_independent(surface, batch, run(batch), run)


def _check_trainable(outputs: Tensor) -> None:
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
                if seen >= OTHER_SAMPLES:
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
        alone, again = run(_batches.take(batch, slice(1, 2))), run(batch)
    gaps = {
        f"Sample 1 alone differs from sample 1 in a batch of {PROBE_SAMPLES}": alone[0]
        - outputs[1],
        f"The same {PROBE_SAMPLES} samples run again differ": again - outputs,
    }
    scale = float(outputs.abs().max())
    # Kernels for other batch sizes sum in another order; anything above this is a real difference.
    tolerance = min(1e3 * torch.finfo(outputs.dtype).eps, 0.05)
    for finding, difference in gaps.items():
        gap = float(difference.abs().max())
        if gap > tolerance * max(scale, 1e-30):
            raise SpiritlevelError(
                "The outputs for a sample must not depend on the rest of its batch or on chance. "
                f"{finding} by {gap:.2g} (outputs up to {scale:.2g}). Look for dropout or noise in "
                "forward, or for batch statistics; call model.eval()."
            )


def _other_shapes(surface: Surface, modules: dict[str, nn.Module]) -> list[torch.Size]:
    """Output shapes of the same uses with another number of samples."""
    # with gradients, though none is computed: without them torch may fuse layers past our hooks
    with torch.enable_grad(), recording_uses(modules, inputs=frozenset()) as recorded:
        _probe(surface, surface.first_samples(OTHER_SAMPLES))
    shapes = [use.output.shape for use in recorded.uses]
    recorded.close()
    return shapes


def _find_routes(
    surface: Surface,
    rules: dict[str, AbstractRule],
    uses: list[LayerUse],
    shapes: list[torch.Size],
    outputs: Tensor,
) -> tuple[dict[str, Route], dict[str, Layout]]:
    """Compare every rule with autograd on a cotangent that touches only the middle sample."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    cotangent = torch.zeros_like(outputs)
    cotangent[1] = noise[1]
    deltas: dict[int, Tensor] = {}
    for i, use in enumerate(uses):
        use.on_output = lambda g, i=i: deltas.__setitem__(i, g)
    names = list(surface.parameters)
    truth = dict(
        zip(names, surface.pull(outputs, cotangent, list(surface.parameters.values())), strict=True)
    )
    by_id = {id(p): name for name, p in surface.parameters.items()}
    counts = parameter_uses(outputs)
    seen: dict[str, int] = {}
    sums: dict[str, Tensor] = {}
    layouts: dict[str, Layout] = {}
    broken: set[str] = set()
    foreign: set[str] = set()
    request = ContractionRequest(kappa=False, num_columns=1, contract=False)
    for i, (use, other) in enumerate(itertools.zip_longest(uses, shapes[: len(uses)])):
        rule = rules[use.layer]
        measured = {
            key: p for key, p in use.module.named_parameters(recurse=False) if id(p) in by_id
        }
        layout = _find_layout(rule, use, other, deltas.get(i), layouts.get(use.layer))
        if layout is None:
            broken |= {by_id[id(p)] for p in measured.values()}
            continue
        layouts[use.layer] = layout
        if i not in deltas:
            gradients = {}
        else:
            prepared = rule.prepare(use.module, use.input, use.output.shape, layout, request)
            gradients = prepared.gradients(deltas[i])
        for key, parameter in measured.items():
            name = by_id[id(parameter)]
            seen[name] = seen.get(name, 0) + 1
            if surface.layer_of(name) != use.layer:
                foreign.add(name)  # a shared weight, used by a module other than its first owner
            if key in gradients:
                sums[name] = sums.get(name, torch.zeros_like(gradients[key])) + gradients[key]
            elif gradients:
                broken.add(name)
    routes: dict[str, Route] = {}
    for name, parameter in surface.parameters.items():
        count = counts.get(id(parameter), 0)
        if count == 0:
            routes[name] = "unused"
        elif (
            name in broken or seen.get(name, 0) != count or not _agrees(sums.get(name), truth[name])
        ):
            routes[name] = "generic"
        else:
            routes[name] = "single" if count == 1 and name not in foreign else "sum"
    return routes, layouts


def _find_layout(
    rule: AbstractRule,
    use: LayerUse,
    other: torch.Size | None,
    delta: Tensor | None,
    previous: Layout | None,
) -> Layout | None:
    """The layout in which only the middle sample has a gradient; None if there is none."""
    if other is None:
        return None
    shape = use.output.shape
    leading = rule.leading(use.module, shape)
    for layout in candidate_layouts(shape, PROBE_SAMPLES, other, OTHER_SAMPLES, leading=leading):
        if previous is not None and layout != previous:
            continue
        if delta is None:
            return layout
        split = layout.split(delta)
        if not bool(split[0].any()) and not bool(split[2].any()):
            return layout
    return None


def _agrees(by_rule: Tensor | None, truth: Tensor | None) -> bool:
    if by_rule is None or truth is None:
        return by_rule is None and truth is None
    expected = torch.zeros_like(by_rule)
    expected[1] = truth
    scale = float(truth.abs().max())
    # Both are sums over positions in different orders; a wrong rule is off by its whole size.
    return float((by_rule - expected).abs().max()) <= 1e4 * torch.finfo(truth.dtype).eps * scale
