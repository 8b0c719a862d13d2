"""When to stop training: by validation loss, by flatness, by both, or by the trend of flatness."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from torch import Tensor, nn

from ..ground.errors import SpiritlevelError
from ..ground.need import need, number, one_of, whole
from ..math.student import t_quantile
from ..model.distributed import unwrapped

Rule = Literal["flatness", "loss", "both", "trend"]
MIN_TREND = 4  # epochs: a line needs two of them, and its error at least two more


def epochs_without_improvement(losses: Sequence[float], min_delta: float = 0.0) -> int:
    """Epochs since the loss was last lower than ever before by more than `min_delta`.

    A loss that is NaN or infinite does not count as an improvement.

    >>> epochs_without_improvement([1.0, 0.5, 0.6, 0.55])
    2
    """
    best, since = math.inf, 0
    for loss in losses:
        better = math.isfinite(loss) and loss < best - min_delta
        best, since = (loss, 0) if better else (best, since + 1)
    return since


def relative_change(before: float, after: float) -> float:
    """|after − before| / |before|; infinite from zero to anything else.

    >>> relative_change(2.0, 1.9), relative_change(0.0, 0.0), relative_change(0.0, 1.0)
    (0.050000000000000044, 0.0, inf)
    """
    if not math.isfinite(before) or not math.isfinite(after):
        return math.inf
    if before == after:
        return 0.0
    return abs(after - before) / abs(before) if before else math.inf


def stable_epochs(values: Sequence[float], tolerance: float) -> int:
    """How many epochs in a row, up to the last, changed by less than `tolerance`.

    >>> stable_epochs([5.0, 3.0, 2.99, 2.98], 0.02)
    2
    """
    count = 0
    for before, after in zip(values[-2::-1], values[:0:-1], strict=True):
        if not relative_change(before, after) < tolerance:
            break
        count += 1
    return count


@dataclasses.dataclass(frozen=True)
class Trend:
    """Relative change per epoch, with its confidence interval."""

    change: float
    low: float
    high: float

    def within(self, tolerance: float) -> bool:
        """Whether all of the interval is closer to zero than `tolerance`."""
        return -tolerance < self.low and self.high < tolerance


def log_trend(values: Sequence[float], confidence: float = 0.95) -> Trend | None:
    """The slope of a least-squares line through the logarithms; None if it cannot be computed.

    The interval is Student's, with two degrees of freedom fewer than values. All values must have
    the same sign: a change through zero has no relative size.

    >>> trend = log_trend([100 * 0.9**n for n in range(5)])
    >>> round(trend.change, 9), round(trend.high - trend.low, 9)
    (-0.1, 0.0)
    """
    count = len(values)
    if count < MIN_TREND or not all(math.isfinite(value) for value in values):
        return None
    if not any(values):
        return Trend(0.0, 0.0, 0.0)
    if min(values) <= 0 <= max(values):
        return None
    logs = [math.log(abs(value)) for value in values]
    times = [n - (count - 1) / 2 for n in range(count)]
    spread = sum(t * t for t in times)
    middle = sum(logs) / count
    slope = sum(t * y for t, y in zip(times, logs, strict=True)) / spread
    residuals = sum((y - middle - slope * t) ** 2 for t, y in zip(times, logs, strict=True))
    error = math.sqrt(residuals / (count - 2) / spread)
    margin = t_quantile(0.5 + confidence / 2, count - 2) * error
    return Trend(math.expm1(slope), math.expm1(slope - margin), math.expm1(slope + margin))


class FlatnessStopping:
    """Says after each epoch whether training should stop, and why.

        stopping = sl.FlatnessStopping(rule="trend")
        if stopping.update(epoch=epoch, loss=loss, flatness=row["relative.kappa"]):
            print(stopping.reason); break

    Rules (the first three from Taleghani et al., section 5.6):
        "loss": the validation loss has not improved for `patience` epochs.
        "flatness": flatness changed by less than `tolerance` in each of the last `patience` epochs.
        "both": both of these in the same epoch.
        "trend": the line through the logarithms of the last `patience` values rises or falls by
            less than `tolerance` per epoch, including its interval at `confidence`.

    "flatness" never stopped any of the paper's 40 runs: single epochs jump by more than 2 % long
    after the level has settled, and one jump restarts the count. "trend" averages the jumps out.
    Noise makes its interval wider, so noise delays the stop and does not cause it. With jumps of
    5 % (one standard deviation) about 10 epochs determine a trend to 2 %, with jumps of 10 % about
    15. The interval assumes that the jumps are independent of each other. `tolerance` is per epoch
    under every rule: 2 % per epoch is 18 % in ten.

    Args:
        patience: number of epochs; each `update` is one.
        tolerance: relative change per epoch.
        min_delta: by how much a loss must be lower to count as an improvement.
        restore_best: keep a copy of the weights of the epoch with the lowest validation loss, on
            the CPU; `restore(model)` puts them back. It needs a loss under every rule: the
            flattest epoch is often the one before training began.
    """

    def __init__(
        self,
        rule: Rule = "flatness",
        *,
        patience: int = 10,
        tolerance: float = 0.02,
        min_delta: float = 0.0,
        confidence: float = 0.95,
        restore_best: bool = False,
    ) -> None:
        _check(rule, patience, tolerance, min_delta, confidence)
        self.rule: Rule = rule
        self.patience, self.tolerance = patience, tolerance
        self.min_delta, self.confidence = min_delta, confidence
        self.restore_best = restore_best
        self.reason = ""  # why to stop; empty as long as training should continue
        self.best_epoch: float | None = None  # with the lowest validation loss
        self.best_loss = math.inf
        self._epochs: list[float] = []
        self._losses: list[float] = []
        self._values: list[float] = []
        self._best_state: dict[str, Any] | None = None

    @property
    def needs_loss(self) -> bool:
        """Whether every update must come with a validation loss."""
        return self.rule in ("loss", "both") or self.restore_best

    @property
    def needs_flatness(self) -> bool:
        """Whether every update must come with a flatness."""
        return self.rule != "loss"

    def update(
        self,
        *,
        epoch: float,
        loss: float | Tensor | None = None,
        flatness: float | Tensor | None = None,
        model: nn.Module | None = None,
    ) -> bool:
        """Record an epoch; True if training should stop."""
        self._check_update(epoch, loss, flatness, model)
        self._epochs.append(epoch)
        self._losses.append(math.nan if loss is None else float(loss))
        self._values.append(math.nan if flatness is None else float(flatness))
        if math.isfinite(self._losses[-1]) and self._losses[-1] < self.best_loss:
            self.best_epoch, self.best_loss = epoch, self._losses[-1]
            if self.restore_best and model is not None:
                self._best_state = {
                    name: v.detach().cpu().clone() if isinstance(v, Tensor) else copy.deepcopy(v)
                    for name, v in unwrapped(model).state_dict().items()
                }
        self.reason = self._decide()
        return bool(self.reason)

    def restore(self, model: nn.Module) -> None:
        """Give the model the weights of `best_epoch`."""
        if self._best_state is None:
            raise SpiritlevelError(
                "There are no best weights to restore. With restore_best=True they are kept from "
                f"the first update with a finite loss. Got restore_best={self.restore_best} and "
                f"{len(self._epochs)} updates."
            )
        unwrapped(model).load_state_dict(self._best_state)

    # -- the rules ---------------------------------------------------------------------------

    def _decide(self) -> str:
        if self.rule == "loss":
            return self._loss_reason()
        if self.rule == "trend":
            return self._trend_reason()
        stable = self._stable_reason()
        if self.rule == "flatness" or not stable:
            return stable
        stuck = self._loss_reason()
        return f"{stuck}; and {stable}" if stuck else ""

    def _loss_reason(self) -> str:
        since = epochs_without_improvement(self._losses, self.min_delta)
        if since < self.patience:
            return ""
        if self.best_epoch is None:
            return f"validation loss was not finite in any of {since} epochs"
        return (
            f"validation loss has not improved for {since} epochs: "
            f"best {self.best_loss:.4g} at epoch {self.best_epoch:g}"
        )

    def _stable_reason(self) -> str:
        count = stable_epochs(self._values, self.tolerance)
        if count < self.patience:
            return ""
        return (
            f"flatness has changed by less than {100 * self.tolerance:.3g} % in each of the last "
            f"{count} epochs: {self._values[-1 - count]:.4g} at epoch "
            f"{self._epochs[-1 - count]:g}, {self._values[-1]:.4g} at epoch {self._epochs[-1]:g}"
        )

    def _trend_reason(self) -> str:
        if len(self._values) < self.patience:
            return ""
        trend = log_trend(self._values[-self.patience :], self.confidence)
        if trend is None or not trend.within(self.tolerance):
            return ""
        return (
            f"flatness follows a trend of {100 * trend.change:+.2g} % per epoch over the last "
            f"{self.patience} epochs ({100 * self.confidence:g} % interval {100 * trend.low:+.2g} "
            f"to {100 * trend.high:+.2g} %), within {100 * self.tolerance:g} %"
        )

    # -- what comes in -----------------------------------------------------------------------

    def _check_update(self, epoch: float, loss: Any, flatness: Any, model: Any) -> None:
        rule = f"The rule {self.rule!r}" + (" with restore_best" if self.restore_best else "")
        if self.needs_loss and loss is None:
            raise SpiritlevelError(
                f"{rule} needs the loss on validation data. Got loss=None at epoch {epoch:g}. "
                "Evaluate on held-out samples and pass update(loss=...), or choose "
                "rule='flatness' or 'trend'" + (" without restore_best." * self.restore_best or ".")
            )
        if self.needs_flatness and flatness is None:
            raise SpiritlevelError(
                f"{rule} needs a flatness. Got flatness=None at epoch {epoch:g}. Pass "
                "update(flatness=...) for the epochs that were measured and leave out the others, "
                "or choose rule='loss'."
            )
        if self.restore_best and model is None:
            raise SpiritlevelError(
                f"restore_best needs the model. Got model=None at epoch {epoch:g}. "
                "Pass update(model=...)."
            )
        if self._epochs and epoch <= self._epochs[-1]:
            raise SpiritlevelError(
                "The 'epoch' argument must be larger than in the last update. "
                f"Got {epoch:g} after {self._epochs[-1]:g}. Use a new FlatnessStopping for a new "
                "run."
            )

    # -- resuming ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain types, and the best weights if they are kept."""
        state: dict[str, Any] = {
            "epochs": list(self._epochs),
            "losses": list(self._losses),
            "flatness": list(self._values),
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss,
            "reason": self.reason,
        }
        return state | ({"best_state": self._best_state} if self.restore_best else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; rule and patience are those of this object."""
        self._epochs = list(state["epochs"])
        self._losses, self._values = list(state["losses"]), list(state["flatness"])
        self.best_epoch, self.best_loss = state["best_epoch"], state["best_loss"]
        self.reason = state["reason"]
        self._best_state = state.get("best_state")


def _check(rule: str, patience: int, tolerance: float, min_delta: float, confidence: float) -> None:
    need("rule", rule, one_of(get_args(Rule)), f"one of {', '.join(get_args(Rule))}")
    least = MIN_TREND if rule == "trend" else 1
    epochs = f"a number of epochs of at least {least} for the rule {rule!r}"
    need("patience", patience, whole(least=least), epochs, "Typical: 10.")
    change = "a relative change above 0"
    need("tolerance", tolerance, number(above=0), change, "Typical: 0.02.")
    need("min_delta", min_delta, number(least=0), "a loss difference of at least 0")
    between = "between 0 and 1"
    need("confidence", confidence, number(above=0, below=1), between, "Typical: 0.95.")
