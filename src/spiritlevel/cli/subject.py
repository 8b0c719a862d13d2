"""What a command works on: a network from a factory and a checkpoint, and its data."""

from __future__ import annotations

import copy
import dataclasses
import functools
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError, is_out_of_memory
from ..inputs.checkpoints import load_checkpoint
from ..inputs.data.loading import in_batches, load_samples
from ..inputs.models import build
from ..inputs.models.published import PREFIX, is_published
from ..measures.setup import Setup
from ..model.batches import map_tensors, tensors
from ..records.reading import to_json_float
from ..results import Report
from ..verbs.measuring import performance, preflight
from . import console, inputs
from .options import DataOptions, MachineOptions, NetworkOptions, Several

OF_TORCH = (RuntimeError, TypeError, IndexError)  # what it raises for tensors that do not fit


@dataclasses.dataclass(frozen=True)
class Subject:
    """A network in eval mode, its data in batches, and their names."""

    network: nn.Module
    batches: list[tuple[Any, Tensor]]
    model: str
    data: str
    lines: tuple[str, ...]  # what they are, for the reader
    facts: Mapping[str, Any]  # what they are, for the record: files, and whether it is trained

    def introduce(self, talk: Console) -> None:
        """Print what will be measured."""
        for line in self.lines:
            console.note(talk, line)

    def describe(self, settings: Any, loss: str) -> None:
        """Add to a result's settings what was measured: files, loss and accuracy.

        Where measuring did not yield the loss, that takes another pass over the data.
        """
        well = settings.get("subject", {})
        if "mean_loss" not in well:
            found = self.attempt(functools.partial(performance, Setup(loss)))
            well = {"mean_loss": to_json_float(found.loss), "accuracy": found.accuracy}
        settings["subject"] = dict(self.facts) | {
            name: well[name] for name in ("mean_loss", "accuracy")
        }

    def options(
        self, texts: Several, measures: Several, also: Iterable[str] = ()
    ) -> dict[str, object]:
        """Options of the measures; `initial` is loaded from a checkpoint of the same network.

        Refuses an option that none of the measures reads, nor any of `also`.
        """
        options = inputs.parse_pairs(texts or [], "--option rho=0.1")
        inputs.refuse_unread(options, measures, also)
        if "initial" in options:
            initial = copy.deepcopy(self.network)
            load_checkpoint(initial, str(options["initial"]))
            options["initial"] = initial
        return options

    def tell_plan(self, talk: Console, start: str, arguments: Mapping[str, Any]) -> None:
        """Print what measuring will cost, before it starts."""
        for line in f"{start}{self.attempt(preflight, **arguments)}".splitlines():
            console.note(talk, line)

    def attempt(self, verb: Callable[..., Any], **arguments: Any) -> Any:
        """Call `verb`; an error raised inside the user's network is reported as such."""
        try:
            return verb(self.network, self.batches, **arguments)
        except SpiritlevelError:
            raise
        except MemoryError as error:
            raise _too_large() from error
        except Exception as error:
            if not (isinstance(error, OF_TORCH) or _raised_in_a_module(error)):
                raise
            text = str(error)
            if is_out_of_memory(error):
                raise _too_large() from error
            x = tensors(self.batches[0][0])[0]
            cause = (
                text.strip().splitlines()[0].rstrip(".") if text.strip() else type(error).__name__
            )
            raise SpiritlevelError(
                f"The model {self.model!r} failed on the data {self.data!r}, whose samples are "
                f"{x.dtype} of shape {tuple(x.shape[1:])}: {cause}. Check that --model, "
                "--model-arg and --data fit together; --debug shows the traceback."
            ) from error


def load(network: NetworkOptions, on: DataOptions, at: MachineOptions) -> Subject:
    """Build the network, load weights and data, and move them to the device."""
    place, kind = inputs.parse_device(at.device), getattr(torch, at.dtype)
    console.details("setting", {"seed": at.seed, "device": place, "batch_size": on.batch_size})
    model, checkpoint, given = network.model, network.checkpoint, network.model_arg or []
    built = build(model, seed=at.seed, **inputs.parse_pairs(given, "--model-arg width=16"))
    x, y, origin = load_samples(
        on.data,
        split=on.split,
        samples=on.samples,
        seed=at.seed,
        model=built,
        block=on.block,
    )
    if checkpoint is not None:
        weights = f"weights: {load_checkpoint(built, checkpoint)}"
    elif is_published(model):
        weights = f"weights: as saved in {model.removeprefix(PREFIX)}"
    else:
        weights = _untrained(model, at.seed)
    built = built.to(place, kind).eval()
    x, y = map_tensors(lambda t: t.to(kind) if t.is_floating_point() else t, (x, y))
    count = sum(p.numel() for p in built.parameters() if p.requires_grad)
    return Subject(
        built,
        in_batches(x, y, on.batch_size),
        model,
        on.data,
        (
            f"model: {model}, {count:,} trainable parameters, {_name(kind)} on {place}",
            weights,
            f"data: {origin}",
        ),
        {
            "model": model,
            "model_arguments": list(given),
            "checkpoint": checkpoint,
            "trained": _is_trained(model, checkpoint),
            "data": origin,
        },
    )


def detail_report(report: Report, of: str = "") -> None:
    """Print settings and the cost of each measure per sample if --verbose is given."""
    n = int(report.settings["num_samples"])
    prefix = f"{of}: " if of else ""
    console.details(f"{prefix}setting", report.settings)
    console.details(f"{prefix}cost", {name: m.cost.passes(n) for name, m in report.items()})


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _is_trained(model: str, checkpoint: str | None) -> bool | None:
    """None for a user's own function, which may load weights itself."""
    if checkpoint is not None or is_published(model):
        return True
    return None if ":" in model else False


def _untrained(model: str, seed: int) -> str:
    if ":" not in model:
        return (
            f"weights: NOT TRAINED, initialized at random with seed {seed}. "
            "Give --checkpoint to measure a trained network."
        )
    return (
        f"weights: as {model} returns them, with seed {seed}. Unless it loads weights itself, they "
        "are random and NOT TRAINED. Give --checkpoint to measure a trained network."
    )


def _raised_in_a_module(error: Exception) -> bool:
    """Whether it comes out of a network: ours would be raised outside of any module's call."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is nn.Module._call_impl.__code__ for frame, _ in frames)


def _too_large() -> SpiritlevelError:
    return SpiritlevelError(
        "Out of memory. Lower --memory (for example 256MiB) or --batch-size, or measure "
        "fewer --layers at a time."
    )
