"""Which measures may rank networks: those that no symmetry of these networks changes.

One network of each architecture is audited, on a few samples: what a symmetry does to a measure
does not depend on their number. What the cards claim holds for the symmetries they name, on the
networks of the contract suite; the audit finds those that these networks have.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ...engine.data_pass import Needs
from ...engine.weight_space.products import SMALL
from ...measures import registered_cards
from ...measures.setup import Setup
from ...symmetries import BOTH, DOWN, UP
from ...symmetries.completeness import MOST_PARAMETERS
from .. import measuring as api
from ..audit import Audit, audited
from ..audit.affording import LEAST_SAMPLES, spread
from ..audit.record import AnswerKind, strength

# What only a long search finds, by its name on the cards.
NOT_SEARCHED = frozenset({"free_shift", "logit_shift", "unit_mix"})
RESCALINGS = frozenset({"layer_rescale", "neuron_rescale"})
ADMITTED: tuple[AnswerKind, ...] = ("unchanged", "nearly", "untested")  # the surest first
KINDS: tuple[AnswerKind, ...] = (*ADMITTED, "open", "changes")
ALONG = "neuron.rho_sum"  # from the same passes; rescaling neurons does not change it either
NOT_AUDITED = "these networks were not audited"
LEAST_BUDGET = 500.0  # forward-backwards over the few samples


@dataclasses.dataclass(frozen=True)
class Scale:
    """What transformations that keep the function do to a measure."""

    kind: AnswerKind
    text: str
    slack: float = 1.0  # the factor by which they change it, so that a smaller one means nothing

    @property
    def admits(self) -> bool:
        """Whether networks may be ranked by it."""
        return self.kind in ADMITTED


def claimed(measure: str) -> Scale:
    """What its card claims, for networks that were not audited."""
    if not (changing := sorted(RESCALINGS - _invariances(measure))):
        return Scale("untested", "by its card no rescaling of layers or neurons changes it")
    return Scale("changes", f"by its card under {changing[0]}")


def scales_of(
    setup: Setup, models: Mapping[str, nn.Module], data: Iterable[Any], measures: Sequence[str]
) -> tuple[dict[str, Scale], str]:
    """By measure, the worst that was found of all architectures; and what was audited."""
    silent = dataclasses.replace(setup, progress=None)
    examples: dict[tuple[Any, ...], str] = {}
    for name, model in models.items():
        examples.setdefault(_architecture(model), name)
    found: dict[str, list[Scale]] = {measure: [] for measure in measures}
    symmetries: set[str] = set()
    for name in examples.values():
        one, missed = _audit_of(silent, models[name], data, measures)
        symmetries.update(one.preserving)
        for measure in measures:
            scale = _scale(one, measure, missed)
            where = f" in {name!r}" if len(examples) > 1 else ""
            found[measure].append(dataclasses.replace(scale, text=scale.text + where))
    worst = {
        measure: max(scales, key=lambda each: (KINDS.index(each.kind), each.slack))
        for measure, scales in found.items()
    }
    said = f"audited with {', '.join(sorted(symmetries)) or 'no symmetry: none was found'}"
    return worst, said


def _audit_of(
    setup: Setup, model: nn.Module, data: Iterable[Any], measures: Sequence[str]
) -> tuple[Audit, frozenset[str]]:
    """An audit that is cheap beside measuring, and what a card must claim because it was not tried.

    In a large network, symmetries that layers of a known kind do not show take longer to find than
    all else takes. A piecewise linear one has hardly any, but for what the loss takes away.
    """
    workspace = setup.workspace(model, data)
    workspace.want(Needs(sweep=True))  # whose plan tells what is not piecewise linear
    with workspace.surface.preserved():
        size = sum(p.numel() for p in workspace.surface.parameters.values())
        bent = bool(workspace.plan.bent)
        share = LEAST_SAMPLES / max(workspace.num_samples, LEAST_SAMPLES)
        few = spread(workspace.surface, LEAST_SAMPLES)
    thorough = size <= (MOST_PARAMETERS if bent else SMALL)
    one = audited(
        dataclasses.replace(setup, method="auto", arithmetic="full"),
        model,
        few,
        measures=measures,
        budget=max(api.BUDGET / share, LEAST_BUDGET),
        order=(BOTH, UP, DOWN),
        thorough=thorough,
    )
    missed = frozenset[str]() if thorough else NOT_SEARCHED if bent else frozenset({"logit_shift"})
    return one, missed


def _scale(one: Audit, measure: str, missed: frozenset[str]) -> Scale:
    if measure not in one.original:
        return Scale("open", "auditing it takes too long")
    if not one.original[measure].value:
        return Scale("open", "it is 0 on the audited samples")
    answer = one.verdict(measure).scale
    unclaimed = sorted(missed - _invariances(measure))
    if answer.kind in ADMITTED and unclaimed:
        return Scale("open", f"perhaps {' or '.join(unclaimed)} does; `audit` looks for that")
    sizes = [
        strength(one.factor(measure, move))
        for move in one.preserving
        if one.has_moved(measure, move)
    ]
    slack = math.exp(max(sizes)) if sizes and answer.kind in ADMITTED else 1.0
    return Scale(answer.kind, answer.text, slack)


def _invariances(measure: str) -> frozenset[str]:
    """What its card claims; nothing without a card."""
    return {card.name: card.invariant for card in registered_cards()}.get(measure, frozenset())


def _architecture(model: nn.Module) -> tuple[Any, ...]:
    """What networks of the same symmetries have in common: their code, settings and shapes."""
    modules = [
        (path, type(module), tuple(sorted(_settings(module).items())))
        for path, module in model.named_modules()
    ]
    tensors = [(name, tuple(t.shape)) for name, t in model.state_dict(keep_vars=True).items()]
    return tuple(modules), tuple(tensors)


def _settings(module: nn.Module) -> dict[str, str]:
    """Plain settings of a module, and functions that it calls."""
    kinds = (bool, int, float, str, tuple)
    return {
        name: repr(value)
        for name, value in vars(module).items()
        if isinstance(value, kinds) or callable(value)
    }
