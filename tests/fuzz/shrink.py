"""Make a failing case small: leave parts out while it fails in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from fuzz.case import Case, Node
from fuzz.judge import Verdict, judge
from fuzz.productions import PRODUCTIONS, READOUTS, STEMS

Chain = tuple[Node, ...]


def shrink(
    case: Case, judged: Callable[[Case], Verdict] = judge, *, attempts: int = 200
) -> tuple[Case, Verdict]:
    """The smallest case found that fails as `case` does, and its verdict."""
    verdict = judged(case)
    kinds = failure_kinds(verdict)
    assert kinds, "only a failing case can be shrunk"
    while attempts > 0:
        for candidate in simpler(case):
            attempts -= 1
            outcome = judged(candidate)
            if kinds & failure_kinds(outcome):
                case, verdict = candidate, outcome
                break
            if attempts <= 0:
                break
        else:
            break
    return case, verdict


def failure_kinds(verdict: Verdict) -> set[str]:
    """In what ways a case failed, without its numbers and names."""
    kinds = set()
    for failure in verdict.failures:
        for mark in ("'exact'", "GGN", "intervals", "converged", "no eigenvalue", "layers"):
            if mark in failure:
                kinds.add(mark)
        if failure.startswith("changed"):
            kinds.add("changed")
        if failure.startswith("raised"):
            kinds.add(failure.partition(":")[0])
    return kinds


def simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less, those that save most first."""
    for body in _simpler_chains(case.body):
        yield dataclasses.replace(case, body=body)
    for name in case.measures if len(case.measures) > 1 else ():
        yield dataclasses.replace(case, measures=(name,))
    if case.lengths:
        yield dataclasses.replace(case, lengths=())
    for sizes in _simpler_sizes(case.sizes):
        yield dataclasses.replace(case, sizes=sizes, lengths=case.lengths[: len(sizes)])
    plain = {
        "loss": "cross_entropy",
        "dtype": "float64",
        "inputs": "normal",
        "layout": "pair",
        "method": "auto",
        "max_passes": 8,
        "call_seed": 0,
        "memory": None,
        "seed": 0,
    }
    for field, value in plain.items():
        if getattr(case, field) != value:
            yield dataclasses.replace(case, **{field: value})
    yield from _simpler_ends(case)


def _simpler_ends(case: Case) -> Iterator[Case]:
    """The first stem and the first readout of the table that fit are the simplest."""
    for stem, (stream, _, _) in STEMS.items():
        if stem == case.stem:
            break
        if stream == case.stream:
            yield dataclasses.replace(case, stem=stem)
    for readout, (stream, _, _) in READOUTS.items():
        if readout == case.readout:
            break
        if stream == case.stream:
            yield dataclasses.replace(case, readout=readout)


def _simpler_sizes(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(sizes) > 1:
        yield (sum(sizes),)
        for i in range(len(sizes)):
            yield sizes[:i] + sizes[i + 1 :]
    for i, size in enumerate(sizes):
        if size > 1:
            yield (*sizes[:i], size - 1, *sizes[i + 1 :])


def _simpler_chains(chain: Chain) -> Iterator[Chain]:
    """The chain with one part less, with a part replaced by its inside, or with a simpler part."""
    for i, node in enumerate(chain):
        before, after = chain[:i], chain[i + 1 :]
        yield before + after
        for inside in node.inner:
            yield before + inside + after
        for simpler_node in _simpler_nodes(node):
            yield (*before, simpler_node, *after)


def _simpler_nodes(node: Node) -> Iterator[Node]:
    for i, inside in enumerate(node.inner):
        for chain in _simpler_chains(inside):
            inner = (*node.inner[:i], chain, *node.inner[i + 1 :])
            yield dataclasses.replace(node, inner=inner)
    for name, values in PRODUCTIONS[node.kind].choices.items():
        if node.choices[name] != values[0]:
            yield dataclasses.replace(node, choices=node.choices | {name: values[0]})
