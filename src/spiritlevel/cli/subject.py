"""What a command works on: a network from a factory and a checkpoint, and its data.

All commands that measure something share these options.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from ..analysis.performance import performance
from ..errors import SpiritlevelError, is_out_of_memory, require
from ..files import write_atomically
from ..model.batches import map_tensors, tensors
from ..pages import report as pages
from ..pages.figures import KINDS
from ..records import to_json_float
from ..results import Progress, Report
from ..study.checkpoints import load_checkpoint
from ..study.data.samples import in_batches, load_samples
from ..study.models import build
from . import completion, console, inputs

Several = list[str] | None
LARGEST = 2**63 - 1  # of whole numbers that torch takes
OF_TORCH = (RuntimeError, TypeError, IndexError)  # what it raises for tensors that do not fit
Model = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A built-in name (docs/models.md lists them and their arguments), or module:function",
        autocompletion=completion.model_names,
    ),
]
ModelArguments = Annotated[
    Several,
    typer.Option(
        metavar="KEY=VALUE", help="An argument of the model, such as width=16; may be repeated."
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Weights to load: .safetensors, a torch state dict, or a save_pretrained folder.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        metavar="DATA",
        help="digits, a fetched data set such as mnist, folder:/images, or an .npz with x and y.",
        autocompletion=completion.data_names,
    ),
]
Split = Annotated[str, typer.Option(metavar="PART", help="train, test or all.")]
Samples = Annotated[
    int | None,
    typer.Option(
        min=1, max=LARGEST, metavar="N", help="Use at most this many samples, drawn at random."
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, max=LARGEST, metavar="N", help="Samples per batch.")]
LossName = Annotated[str, typer.Option(metavar="NAME", help="cross_entropy, mse or bce.")]
Layers = Annotated[
    Several,
    typer.Option(metavar="PATTERN", help="A module path, or 'head'; may be repeated."),
]
HeadName = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Module path of the last linear layer, if it is not found automatically.",
    ),
]
Measures = Annotated[
    Several,
    typer.Option(
        metavar="PATTERN",
        help="A name, or a pattern such as 'relative.*'; several with commas, or repeated.",
        autocompletion=completion.measures,
        callback=inputs.split_commas,
    ),
]
Options = Annotated[
    Several,
    typer.Option(
        metavar="KEY=VALUE",
        help="An option of the measures, such as rho=0.1 (see `spiritlevel show`); repeatable.",
    ),
]
Rtol = Annotated[
    float,
    typer.Option(metavar="SHARE", help="Refine estimates until they are this precise, relatively."),
]
ArithmeticName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="full, or tf32 or bf16: faster on a GPU; what that costs in accuracy is shown.",
    ),
]
MaxPasses = Annotated[
    int, typer.Option(metavar="N", help="Most probes per estimate; each is one pass over the data.")
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Limit for working memory, such as 512MiB or 2GiB."),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, typer.Option(metavar="NAME", help="float32 or float64.")]
Seed = Annotated[
    int,
    typer.Option(
        min=-LARGEST,
        max=LARGEST,
        metavar="N",
        help="Seed of initial weights, drawn samples and probes.",
    ),
]
Confounders = Annotated[
    Several,
    typer.Option(
        metavar="NAME",
        help="A quantity to hold fixed, such as train_loss; may be repeated. Default: training "
        "loss, Gini impurity and weight norm, if the study has them.",
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Confidence level of the intervals, between 0 and 1 (default: 0.95).",
    ),
]


def _unwritten(json: str | None) -> str | None:
    console.free(json)
    return json


Json = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Write JSON here. Use '-' for stdout; messages go to stderr.",
        callback=_unwritten,
    ),
]


def _before_measuring(html: pathlib.Path | None) -> pathlib.Path | None:
    """Raise now if the page cannot be made, not after an hour of measuring."""
    if html is not None:
        require("plotly", what="An HTML page", extra="report")
    console.free(html)
    return html


Html = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="PATH",
        help="Write a self-contained HTML page here.",
        callback=_before_measuring,
    ),
]


def _drawable(plot: pathlib.Path | None) -> pathlib.Path | None:
    """Raise now if the file cannot be drawn, not after an hour of measuring."""
    if plot is not None and plot.suffix[1:] not in KINDS:
        endings = ", ".join(f".{kind}" for kind in KINDS)
        raise SpiritlevelError(
            f"The --plot must be a file with one of the endings {endings}. Got {str(plot)!r}."
        )
    return plot


Plot = Annotated[
    pathlib.Path | None,
    typer.Option(metavar="PATH", help="Draw a figure: .png, .svg or .pdf.", callback=_drawable),
]


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

    def describe(self, settings: dict[str, Any], **arguments: Any) -> None:
        """Add to a result's settings what was measured: files, loss and accuracy.

        Where measuring did not yield the loss, that takes another pass over the data.
        """
        well = settings.get("subject", {})
        if "mean_loss" not in well:
            found = self.attempt(performance, **arguments)
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


def load(
    *,
    model: str,
    model_arg: Several,
    checkpoint: str | None,
    data: str,
    split: str,
    samples: int | None,
    batch_size: int,
    device: str,
    dtype: str,
    seed: int,
) -> Subject:
    """Build the network, load weights and data, and move them to the device."""
    place, kind = inputs.parse_device(device), inputs.parse_dtype(dtype)
    console.details("setting", {"seed": seed, "device": place, "batch_size": batch_size})
    x, y, origin = load_samples(data, split=split, samples=samples, seed=seed)
    network = build(model, seed=seed, **inputs.parse_pairs(model_arg or [], "--model-arg width=16"))
    if checkpoint is not None:
        weights = f"weights: {load_checkpoint(network, checkpoint)}"
    else:
        weights = _untrained(model, seed)
    network = network.to(place, kind).eval()
    x, y = map_tensors(lambda t: t.to(kind) if t.is_floating_point() else t, (x, y))
    count = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return Subject(
        network,
        in_batches(x, y, batch_size),
        model,
        data,
        (
            f"model: {model}, {count:,} trainable parameters, {_name(kind)} on {place}",
            weights,
            f"data: {origin}",
        ),
        {
            "model": model,
            "model_arguments": list(model_arg or []),
            "checkpoint": checkpoint,
            "trained": None if checkpoint is None and ":" in model else checkpoint is not None,
            "data": origin,
        },
    )


def detail_report(report: Report, of: str = "") -> None:
    """Print settings and the cost of each measure per sample if --verbose is given."""
    n = int(report.settings["num_samples"])
    prefix = f"{of}: " if of else ""
    console.details(f"{prefix}setting", report.settings)
    console.details(f"{prefix}cost", {name: m.cost.passes(n) for name, m in report.items()})


def write_json(talk: Console, json: str | None, text: str) -> None:
    """Write to the path of --json, if given."""
    if json == "-":
        sys.stdout.write(f"{text}\n")
    elif json is not None:
        write_atomically(json, f"{text}\n".encode())
        console.note(talk, f"written: {json}")


def write_html(talk: Console, html: pathlib.Path | None, result: Any) -> None:
    """Write to the path of --html, if given."""
    if html is not None:
        pages.save(result, html)
        console.note(talk, f"written: {html}")


def one_or_many(layers: Several) -> str | list[str] | None:
    """One layer as a string, so that "head" keeps its meaning."""
    if not layers:
        return None
    return layers[0] if len(layers) == 1 else layers


def by_pass(show: Progress, text: str) -> Progress:
    """Progress that starts again with each pass over the data and shows the pass number."""
    last, passes = 0, 1

    def report(done: int, total: int | None, what: str) -> None:
        nonlocal last, passes
        if done <= last:
            passes += 1
        last = done
        show(done, total, text if passes == 1 else f"{text}, pass {passes}")

    return report


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


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
