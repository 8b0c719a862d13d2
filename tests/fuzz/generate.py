"""Random cases: case number i of a night is always the same."""

from __future__ import annotations

import dataclasses
import random

from fuzz.case import INPUTS, LAYOUTS, ON_TOKENS, Case, Node
from fuzz.losses import LEADABLE, LOSSES, MASKED
from fuzz.productions import PRODUCTIONS, READOUTS, ROWS, SEQUENCE, STEMS, WITHOUT_HEAD

MEASURES = (
    "curvature.trace",
    "curvature.ggn_trace",
    "relative.kappa",
    "neuron.rho_sum",
    "scaled.trace",
    "relative.kappa_max",
    "neuron.rho_max",
    "scaled.trace_max",
    "curvature.lambda_max",
    "curvature.lambda_min",
    "curvature.trace_squared",
    "scaled.lambda_max",
    "eigenvalues",
)
HEAD = ("head.trace", "head.kappa", "head.lambda_max", "head.trace_squared")
# Only the state of the model is judged after these: they are not functions of the Hessian.
OTHERS = ("pac_bayes.sigma", "sharpness.worst", "sharpness.average", "norms.fisher_rao")
METHODS = ("exact", "output_probes", "sample_probes", "split", "hutchinson", "hutch++")
SURE = 0.5  # of the cases whose loss allows it are confident networks
# Data on which the first samples say nothing about the others.
ONE_SIDED = ("first_three_left", "first_five_left", "first_five_right")
BLANKS = ("first_blank", "second_blank", "all_blank")
TELLING_INPUTS = {
    "index_experts": ONE_SIDED,
    "empty_experts": ONE_SIDED,
    "mask_experts": ONE_SIDED,
    "top_experts": ONE_SIDED,
    "early_exit": ONE_SIDED,
    "repeated_by_row": ONE_SIDED,
    "branch_per_batch": ONE_SIDED,
    "nonzero_tokens": ONE_SIDED,
    "siamese": BLANKS,
    "interleaved": BLANKS,
    "time_first": BLANKS,
    "flat_times": BLANKS,
    "sorted_rows": BLANKS,
    "rolled_by_data": ONE_SIDED,
    "cut_by_data": ONE_SIDED,
}
SIZES = ((5,), (2, 3), (4, 1, 2), (1, 1, 3), (6,), (3, 4), (1,), (8,))


def random_case(number: int) -> Case:
    """Case `number`; production and loss go round, so that a few hundred cases show all of them."""
    rng = random.Random(number)
    kinds = list(PRODUCTIONS)
    kind = kinds[number % len(kinds)]
    stem = _stem(rng, kind)
    telling = kind in TELLING_INPUTS and rng.random() < 0.6
    if telling:  # the part sees the inputs themselves
        stem = "sequence_bare" if ROWS not in PRODUCTIONS[kind].streams else "rows_bare"
    stream = STEMS[stem][0]
    body = [_node(rng, kind, stream, depth=1)]
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        node = _any_node(rng, stream, depth=0, pointwise=False)
        body.insert(len(body) if telling else rng.randrange(len(body) + 1), node)
    readout = rng.choice([name for name, (s, _, _) in READOUTS.items() if s == stream])
    per_token = READOUTS[readout][1] == "tokens"
    loss = _loss(rng, number // 3, per_token)
    inputs = "normal" if rng.random() < 0.6 else rng.choice(list(INPUTS))
    if STEMS[stem][1] == "tokens" and inputs not in ON_TOKENS:
        inputs = "normal"
    sizes = rng.choice(SIZES)
    if telling:
        inputs, sizes = rng.choice(TELLING_INPUTS[kind]), rng.choice(((8,), (4, 4), (2, 6)))
    varying = stream == SEQUENCE and len(sizes) > 1 and rng.random() < 0.4
    layout = "pair" if rng.random() < 0.75 else rng.choice(LAYOUTS)
    if layout == "mask" and loss not in MASKED:
        layout = "forward"
    case = Case(
        seed=rng.randrange(10_000),
        stem=stem,
        body=tuple(body),
        readout=readout,
        loss=loss,
        dtype=rng.choices(("float64", "float32", "bfloat16", "float16"), (80, 12, 5, 3))[0],
        inputs=inputs,
        sizes=sizes,
        lengths=tuple(rng.choice((1, 2, 4)) for _ in sizes) if varying else (),
        layout=layout,
        measures=_measures(rng, has_head=readout not in WITHOUT_HEAD and not LOSSES[loss].last),
        method="auto" if rng.random() < 0.8 else rng.choice(METHODS),
        max_passes=rng.choice((8, 8, 8, 4, 4, 12, 40)),
        call_seed=rng.randrange(100),
        memory=1 if rng.random() < 0.1 else None,
    )
    return _confident(rng, case) if rng.random() < SURE else case


def _confident(rng: random.Random, case: Case) -> Case:
    """The same with a loss of about 1e-6 or 1e-17, in float32 or float64, where that is known."""
    possible = case.loss in LEADABLE and case.dtype in ("float32", "float64")
    measures = tuple(name for name in case.measures if name not in HEAD)
    if not possible or not measures:
        return case
    dtype, lead = rng.choice(("float32", "float64")), rng.choice((14.0, 39.0))
    return dataclasses.replace(case, dtype=dtype, lead=lead, measures=measures)


def _stem(rng: random.Random, kind: str) -> str:
    stems = [name for name, (s, _, _) in STEMS.items() if s in PRODUCTIONS[kind].streams]
    numbers = [name for name in stems if STEMS[name][1] == "numbers"]
    return rng.choice(numbers if rng.random() < 0.7 else stems)


def _node(rng: random.Random, kind: str, stream: str, depth: int) -> Node:
    production = PRODUCTIONS[kind]
    choices = {name: rng.choice(values) for name, values in production.choices.items()}
    inner = []
    for _ in range(production.inner):
        pointwise = production.inner_pointwise
        length = rng.choice((1, 1, 2))
        inner.append(
            tuple(_any_node(rng, stream, depth=depth, pointwise=pointwise) for _ in range(length))
        )
    return Node(kind, choices, tuple(inner))


def _any_node(rng: random.Random, stream: str, *, depth: int, pointwise: bool) -> Node:
    """A part that may stand here; parts with others inside only while `depth` lasts."""
    possible = [
        kind
        for kind, production in PRODUCTIONS.items()
        if stream in production.streams
        and (production.pointwise or not pointwise)
        and (depth > 0 or production.inner == 0)
        and not (production.odd and rng.random() < 0.8)  # odd ones rarely: they may be refused
    ]
    layers = [kind for kind in ("linear", "conv") if kind in possible]
    kind = rng.choice(layers if rng.random() < 0.35 else possible)
    return _node(rng, kind, stream, depth - 1)


def _loss(rng: random.Random, number: int, per_token: bool) -> str:
    possible = [name for name, loss in LOSSES.items() if loss.tokens or not per_token]
    if rng.random() < 0.5:
        return rng.choice(("cross_entropy", "cross_entropy", "mse", "bce"))
    return possible[number % len(possible)]


def _measures(rng: random.Random, *, has_head: bool) -> tuple[str, ...]:
    chosen = rng.sample(MEASURES[:5], rng.choice((1, 1, 2, 3)))
    if rng.random() < 0.35:
        chosen.append(rng.choice(MEASURES[5:]))
    if has_head and rng.random() < 0.2:
        chosen.append(rng.choice(HEAD))
    if rng.random() < 0.08:
        chosen.append(rng.choice(OTHERS))
    return tuple(dict.fromkeys(chosen))
