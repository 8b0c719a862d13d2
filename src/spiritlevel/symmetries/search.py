"""Find the moves of a user's network by running it, and keep those that hold."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from ..records.measurements import Progress
from .adding import Vary
from .logit_size import temperature_move, weight_scale_move
from .moves import Group, Move
from .names import FUNCTION_PRESERVING, MOVES
from .numeric import NAMES, NumericMoves, find_numeric_moves
from .permuting import find_permutations
from .ports import ports_of
from .precision import as_written, precise
from .scaling import find_scalings, folded
from .tracing import Diverged, Run, Trace, View, viewed
from .verification import NUM_FACTORS, Reference

_COARSEST = 1e-2  # above this tolerance a wrong move could be taken for a right one
STRUCTURAL = tuple(name for name in FUNCTION_PRESERVING if name not in NAMES)
_NO_BATCHNORM = "no BatchNorm in eval mode reads a layer that nothing else reads"
_NO_SEARCH = "symmetries that take a long search were not looked for"
_SHOWN = 4  # reasons given for a move that is absent


@dataclasses.dataclass(frozen=True)
class FoundMoves:
    """The moves that a network has, each verified, and why the others do not apply."""

    moves: dict[str, Move]
    absent: dict[str, str]
    tolerance: float  # outputs of a moved copy differ by less, as a share of the largest output
    unexplored: str = ""  # which symmetries may have been missed, and why


def find_moves(
    model: nn.Module,
    run: Run,
    *,
    head: str | None = None,
    vary: Vary | None = None,
    seen: View | None = None,
    generator: torch.Generator,
    progress: Progress | None = None,
    thorough: bool = True,
) -> FoundMoves:
    """Look for all of MOVES; each one found was applied to a copy, run and compared.

    `run` gives the outputs of the model, or of a copy in another precision, on a few samples that
    are always the same, with classes along the last axis. `head` is the path of the layer that
    gives the logits. `vary(k)` is another `run`, on the k-th choice of other inputs: with it the
    search finds what can be added to parameters, and says whether it has found all there is.
    `seen(outputs)` is what the loss depends on, if that is less than all of them: the moves keep
    only this. `progress` is told how many runs are done and how many are planned so far. Without
    `thorough`, only known layers are looked at: linear algebra takes most of the time.
    """
    counted = _Counted(run, progress)
    devices = {t.device for t in (*model.parameters(), *model.buffers()) if t.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices, key=str)), as_written():
        moves = _search(model, counted, head, vary, seen, generator, thorough=thorough)
    counted.finish()
    return moves


class _Counted:
    """Counts the runs for `progress`; how many there will be is known only step by step."""

    def __init__(self, run: Run, progress: Progress | None) -> None:
        self._run, self._progress = run, progress
        self.done = 0
        self.planned = 1

    def __call__(self, model: nn.Module) -> Tensor:
        outputs = self._run(model)
        self.done += 1
        self._tell()
        return outputs

    def finish(self) -> None:
        self.planned = self.done
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.done, max(self.planned, self.done), "looking for symmetries")


def _search(
    model: nn.Module,
    run: _Counted,
    head: str | None,
    vary: Vary | None,
    seen: View | None,
    generator: torch.Generator,
    *,
    thorough: bool,
) -> FoundMoves:
    run_seen = viewed(run, seen)
    reference = Reference(*precise(model, run_seen), run_seen, generator, run, seen)
    moves: dict[str, Move] = {}
    absent: dict[str, str] = {}
    if reference.tolerance > _COARSEST:
        coarse = "its precision is too low to verify any move"
        return FoundMoves(moves, dict.fromkeys(MOVES, coarse), reference.tolerance, coarse)
    scaled: Move | str
    try:
        trace = Trace(
            reference.model, reference.whole, ports_of(reference.model), reference.generator
        )
        candidates, why = _candidates(trace, reference)
        scaled = weight_scale_move(reference.model, trace, reference.tolerance)
    except Diverged as diverged:
        scaled = f"with other values in its layers the network does not run: {diverged}"
        candidates = {name: [] for name in STRUCTURAL}
        why = {name: [scaled] for name in STRUCTURAL}
    run.planned = run.done + len(candidates) + 2 * NUM_FACTORS
    for name, groups in candidates.items():
        verified_groups, dropped = reference.holding(name, groups)
        if verified_groups:
            moves[name] = Move(name, tuple(verified_groups))
        else:
            absent[name] = _summary([*dropped, *why[name]])
    rescaled = [
        group
        for name in ("neuron_rescale", "batchnorm_fold")
        if name in moves
        for group in moves[name].groups
    ]
    numeric = NumericMoves(absent=dict.fromkeys(NAMES, _NO_SEARCH), unexplored=_NO_SEARCH)
    if thorough:
        numeric = find_numeric_moves(reference, vary, rescaled)
    moves.update(numeric.moves)
    absent.update(numeric.absent)
    heated = "no head was named" if head is None else temperature_move(reference.model, head)
    for name, move in {"logit_temperature": heated, "weight_scale": scaled}.items():
        verified = reference.grown(move) if isinstance(move, Move) else move
        if isinstance(verified, str) and name == "logit_temperature" and numeric.growing:
            # a tied head cannot be multiplied alone; a gain before it can, and so can bare weights
            verified = reference.grown(Move(name, (numeric.growing,)), shared=True)
        if isinstance(verified, Move):
            moves[name] = verified
        else:
            absent[name] = verified
    return FoundMoves(moves, absent, reference.tolerance, numeric.unexplored)


def _candidates(
    trace: Trace, reference: Reference
) -> tuple[dict[str, list[Group]], dict[str, list[str]]]:
    """Unverified groups for each function-preserving move, and why other groups fail."""
    scalings, not_scaled = find_scalings(trace, reference.tolerance, reference.generator)
    permutations, not_permuted = find_permutations(trace, reference.tolerance, reference.generator)
    neurons = scalings["neuron_rescale"]
    absorbed = (folded(group, reference.model) for group in scalings["batchnorm_absorb"])
    groups = {
        "layer_rescale": neurons,
        "unit_permute": permutations,
        "batchnorm_fold": [group for group in absorbed if group],
        **scalings,
    }
    why = {
        "layer_rescale": not_scaled,
        "neuron_rescale": not_scaled,
        "unit_permute": not_permuted,
        "batchnorm_absorb": [_NO_BATCHNORM],
        "batchnorm_fold": [f"{_NO_BATCHNORM}, and scales it"],
        "attention_rescale": ["there is no attention whose values go only to a projection"],
    }
    return {name: groups[name] for name in STRUCTURAL}, why


def _summary(reasons: list[str]) -> str:
    reasons = list(dict.fromkeys(reasons)) or ["the network calls no layer of a known kind"]
    more = len(reasons) - _SHOWN
    return "; ".join(reasons[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
