"""What a command works on: a network from a factory and a checkpoint, and data for it.

The options are the same for every command that measures something, so they stand here once.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from ..errors import SpiritlevelError, require
from ..files import write_atomically
from ..pages import report as pages
from ..results import Report
from ..study.checkpoints import load_checkpoint
from ..study.models import build
from . import completion, console, inputs

Several = list[str] | None
Model = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A built-in name (docs/models.md has them with their options), or module:function.",
        autocompletion=completion.model_names,
    ),
]
Options = Annotated[
    Several,
    typer.Option(metavar="KEY=VALUE", help="For the factory, as in width=16; repeat it for more."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Weights: .safetensors, or a torch state dict."),
]
Data = Annotated[
    str,
    typer.Option(
        metavar="DATA",
        help="digits, a fetched set such as mnist, folder:/images, or an .npz with x and y.",
        autocompletion=completion.data_names,
    ),
]
Split = Annotated[str, typer.Option(metavar="PART", help="train, test or all.")]
Samples = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Use at most this many samples, drawn at random."),
]
BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Samples in a batch.")]
LossName = Annotated[str, typer.Option(metavar="NAME", help="cross_entropy, mse or bce.")]
Layers = Annotated[
    Several,
    typer.Option(metavar="PATTERN", help="Module paths, or 'head'; repeat it for more."),
]
HeadName = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Path of the last linear layer, if it is not found."),
]
Measures = Annotated[
    Several,
    typer.Option(
        metavar="PATTERN",
        help="A name, or a pattern such as 'relative.*'; repeat it for more.",
        autocompletion=completion.measures,
    ),
]
Settings = Annotated[
    Several,
    typer.Option(metavar="KEY=VALUE", help="For the measures, as in rho=0.1; the cards name them."),
]
Rtol = Annotated[
    float, typer.Option(metavar="SHARE", help="Refine estimates to this share of their value.")
]
MaxPasses = Annotated[
    int, typer.Option(metavar="N", help="Probes an estimate may take, one pass over the data each.")
]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Bound on working memory: 512MiB, 2GiB.")
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1.")]
Dtype = Annotated[str, typer.Option(metavar="NAME", help="float32 or float64.")]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Of initial weights, drawn samples and probes.")
]
Confounders = Annotated[
    Several,
    typer.Option(
        metavar="NAME",
        help="What is held fixed, such as train_loss; repeat it for more. Without it: training "
        "loss, Gini and weight norm, where the study has them.",
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Of the intervals, between 0 and 1; 0.95 unless you say else.",
    ),
]
Json = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The result as JSON; '-' is stdout, and nothing else is."),
]


def _before_measuring(html: pathlib.Path | None) -> pathlib.Path | None:
    """A page that cannot be made is refused now, not after an hour of measuring."""
    if html is not None:
        require("plotly", what="A page with pictures", extra="report")
    return html


Html = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="PATH",
        help="The result as one page that opens anywhere.",
        callback=_before_measuring,
    ),
]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A network in eval mode with its data in batches, and how they are spoken of."""

    network: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    model: str
    data: str
    lines: tuple[str, ...]  # what they are, for the reader

    def introduce(self, talk: Console) -> None:
        """Say what will be measured."""
        for line in self.lines:
            console.note(talk, line)

    def settings(self, texts: Several) -> dict[str, object]:
        """Settings of the measures; `initial` is a checkpoint of the same network."""
        found = inputs.parse_options(texts or [], "--setting rho=0.1")
        if "initial" in found:
            initial = copy.deepcopy(self.network)
            load_checkpoint(initial, str(found["initial"]))
            found["initial"] = initial
        return found

    def attempt(self, verb: Callable[..., Any], **options: Any) -> Any:
        """Call, and say of an error inside the user's network that it came from there."""
        try:
            return verb(self.network, self.batches, **options)
        except SpiritlevelError:
            raise
        except MemoryError as error:
            raise _too_large() from error
        except (RuntimeError, TypeError, IndexError) as error:
            text = str(error)
            if "out of memory" in text or "can't allocate memory" in text:
                raise _too_large() from error
            x = self.batches[0][0]
            cause = (
                text.strip().splitlines()[0].rstrip(".") if text.strip() else type(error).__name__
            )
            raise SpiritlevelError(
                f"The model {self.model!r} failed on the data {self.data!r}, whose samples are "
                f"{x.dtype} of shape {tuple(x.shape[1:])}: {cause}. Check that --model, --option "
                "and --data belong together; --debug shows the traceback."
            ) from error


def load(
    *,
    model: str,
    option: Several,
    checkpoint: str | None,
    data: str,
    split: str,
    samples: int | None,
    batch_size: int,
    device: str,
    dtype: str,
    seed: int,
) -> Subject:
    """Build, load and move everything to its place."""
    place, kind = inputs.parse_device(device), inputs.parse_dtype(dtype)
    console.details("setting", {"seed": seed, "device": place, "batch_size": batch_size})
    x, y, origin = inputs.load_data(data, split=split, samples=samples, seed=seed)
    network = build(model, seed=seed, **inputs.parse_options(option or []))
    if checkpoint is not None:
        weights = f"weights: {load_checkpoint(network, checkpoint)}"
    else:
        weights = _untrained(model, seed)
    network = network.to(place, kind).eval()
    x, y = (t.to(kind) if t.is_floating_point() else t for t in (x, y))
    count = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return Subject(
        network,
        list(zip(x.split(batch_size), y.split(batch_size), strict=True)),
        model,
        data,
        (
            f"model: {model}, {count:,} trainable parameters, {_name(kind)} on {place}",
            weights,
            f"data: {origin}",
        ),
    )


def detail_report(report: Report, of: str = "") -> None:
    """Settings and what each measure cost, a sample, for --verbose; `of` is the network's name."""
    n = int(report.settings["num_samples"])
    prefix = f"{of}: " if of else ""
    console.details(f"{prefix}setting", report.settings)
    console.details(f"{prefix}cost", {name: m.cost.passes(n) for name, m in report.items()})


def write_json(talk: Console, json: str | None, text: str) -> None:
    """To where --json says; nothing where it was not given."""
    if json == "-":
        sys.stdout.write(f"{text}\n")
    elif json is not None:
        write_atomically(json, f"{text}\n".encode())
        console.note(talk, f"written: {json}")


def write_html(talk: Console, html: pathlib.Path | None, result: Any) -> None:
    """To where --html says; nothing where it was not given."""
    if html is not None:
        pages.save(result, html)
        console.note(talk, f"written: {html}")


def one_or_many(layers: Several) -> str | list[str] | None:
    """A single word stays a word, so that "head" keeps its meaning."""
    if not layers:
        return None
    return layers[0] if len(layers) == 1 else layers


def by_pass(show: console.Report, text: str) -> Callable[[int, int | None], None]:
    """Progress that starts anew with every pass over the data, which are numbered."""
    last, passes = 0, 1

    def report(done: int, total: int | None) -> None:
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
        f"weights: as {model} returns them, with seed {seed}. Unless it loads some itself they are "
        "random and NOT TRAINED. Give --checkpoint to measure a trained network."
    )


def _too_large() -> SpiritlevelError:
    return SpiritlevelError(
        "The memory is exhausted. Lower --memory (for example 256MiB) or --batch-size, or measure "
        "fewer --layers at a time."
    )
