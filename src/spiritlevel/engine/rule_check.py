"""Do the rules give the gradients that autograd gives?

A rule is chosen by the kind of a layer, and the layer may do something else. So the gradients by
the rules, summed over all uses and samples, are compared with autograd's. Where the samples have no
gradient at all this shows nothing: then it is done again on later samples that have one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..model.layer_hooks import LayerUse
from ..model.layers import ContractionRequest
from ..model.surface import Surface
from .routes import Routing, cotangent_like
from .weight_space.parameter_space import parameter_groups


@dataclasses.dataclass(frozen=True)
class RuleCheck:
    """Parameters whose rule is wrong or could not be tried, and those of which nothing was seen."""

    wrong: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()


def check_rules(
    surface: Surface,
    uses: Sequence[LayerUse],
    routing: Routing,
    outputs: Tensor,
    names: frozenset[str] | None = None,
) -> RuleCheck:
    """Compare the gradients of these parameters, or of all, along one random cotangent."""
    found = RuleCheck()
    # by groups, since gradients by the rules and by autograd are held together
    for group in parameter_groups(surface):
        if chosen := [name for name in group if names is None or name in names]:
            of_group = _check_group(surface, uses, routing, outputs, chosen)
            found = RuleCheck(found.wrong | of_group.wrong, found.unseen | of_group.unseen)
    return found


def _check_group(
    surface: Surface,
    uses: Sequence[LayerUse],
    routing: Routing,
    outputs: Tensor,
    chosen: Sequence[str],
) -> RuleCheck:
    deltas: dict[int, Tensor] = {}
    for i, use in enumerate(uses):
        use.on_output = lambda g, i=i: deltas.__setitem__(i, g)
    parameters = [surface.parameters[name] for name in chosen]
    pulled = surface.pull(outputs, cotangent_like(outputs, 0), parameters)
    for use in uses:
        use.on_output = None
    truth = dict(zip(chosen, pulled, strict=True))
    by_rule = _by_rules(uses, routing, deltas, chosen)
    ruled = [name for name in chosen if routing.routes[name] in ("single", "sum")]
    wrong = {name for name in ruled if not _agrees(by_rule.get(name), truth[name])}
    if wrong:
        # The terms may cancel, as those of a key's bias under softmax do: then only the rounding of
        # the terms is left, in either gradient.
        terms = _by_rules(uses, routing, deltas, wrong, absolute=True)
        wrong -= {n for n, sizes in terms.items() if _cancels(by_rule[n], truth[n], sizes)}
    wrong |= {name for name in chosen if routing.routes[name] == "generic"}  # never tried
    seen = {name for name, gradient in truth.items() if gradient is not None and gradient.any()}
    unseen = set(chosen) - seen - wrong
    return RuleCheck(frozenset(wrong), frozenset(unseen))


def _by_rules(
    uses: Sequence[LayerUse],
    routing: Routing,
    deltas: dict[int, Tensor],
    chosen: Collection[str],
    absolute: bool = False,
) -> dict[str, Tensor]:
    """Gradients summed over uses and samples; with `absolute`, of the sizes of all terms."""
    sums: dict[str, Tensor] = {}
    request = ContractionRequest(kappa=False, num_columns=1, contract=False)
    for i, (use, layout) in enumerate(zip(uses, routing.layouts, strict=True)):
        ruled = {
            key: name
            for key, name in use.names.items()
            if name in chosen and routing.routes[name] in ("single", "sum")
        }
        if layout is None or i not in deltas or not ruled:
            continue
        rule = use.rule
        assert rule is not None
        entered, delta = use.input, deltas[i]
        if absolute:
            entered, delta = entered.abs(), delta.abs()
        prepared = rule.prepare(use.module, entered, use.output.shape, layout, request)
        gradients = prepared.gradients(delta)
        for key, name in ruled.items():
            if key in gradients:
                total = use.placed(key, gradients[key].sum(dim=0))
                sums[name] = sums[name] + total if name in sums else total
    return sums


def _agrees(by_rule: Tensor | None, truth: Tensor | None) -> bool:
    if by_rule is None or truth is None:
        return by_rule is None and truth is None
    scale = float(truth.abs().max())
    # Both are sums over positions in different orders; a wrong rule is off by its whole size.
    return float((by_rule - truth).abs().max()) <= 1e4 * torch.finfo(truth.dtype).eps * scale


def _cancels(by_rule: Tensor, truth: Tensor | None, sizes: Tensor) -> bool:
    """Whether both are 0 up to the rounding of their terms."""
    if truth is None:
        return False
    largest = max(float(by_rule.abs().max()), float(truth.abs().max()))
    return largest <= 100 * torch.finfo(truth.dtype).eps * float(sizes.max())
