"""Options that several commands share, each declared once, and the groups they come in.

A command that takes a group has all of its options: `common` unfolds groups where typer looks.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

from ..ground.errors import SpiritlevelError, brief, require, suggestion
from ..ground.need import Test, number, one_of, whole
from . import completion, console, inputs

Several = list[str] | None
Path = TypeVar("Path", str | None, pathlib.Path | None)
LARGEST = 2**63 - 1  # of whole numbers that torch takes


def parsed(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A callback of an option that refuses a wrong value before anything is loaded."""

    def callback(value: Any) -> Any:
        try:
            if value is not None:
                parse(value)
        except SpiritlevelError as error:
            raise typer.BadParameter(str(error)) from None
        return value

    return callback


def within(
    test: Test, wanted: str, then: str = "", names: Iterable[str] = ()
) -> Callable[[Any], Any]:
    """A callback for values that pass a test of `ground.need`."""

    def check(value: Any) -> None:
        if not test(value):
            hint = f" {then}" if then else suggestion(value, names)
            raise SpiritlevelError(f"It must be {wanted}. Got {brief(value)}.{hint}")

    return parsed(check)


def among(*names: str, then: str = "") -> Callable[[Any], Any]:
    """A callback for one of several names; the error suggests one that is close."""
    return within(one_of(names), f"one of {', '.join(names)}", then, names)


SHARE = within(number(above=0, below=1), "a number between 0 and 1")
ARITHMETICS = ("full", "tf32", "bf16")
MATRICES = ("hessian", "ggn")
METHODS = ("auto", "exact", "output_probes", "sample_probes", "split", "hutchinson", "hutch++")
DTYPES = ("float32", "float64")
LOSSES = ("cross_entropy", "mse", "bce")
# As a range of the option, all help texts would show it.
_for_torch = within(whole(), f"one that torch can hold, {LARGEST} at most")


Model = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A built-in name (docs/models.md lists them), module:function, or hf:FOLDER.",
        autocompletion=completion.model_names,
    ),
]
ModelArguments = Annotated[
    Several,
    typer.Option(
        metavar="KEY=VALUE",
        help="An argument of the model, such as width=16; may be repeated.",
        callback=parsed(lambda texts: inputs.parse_pairs(texts, "--model-arg width=16")),
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
        help="digits, a fetched set such as mnist, folder:/images, an .npz, or text:FILE for hf:.",
        autocompletion=completion.data_names,
    ),
]
Split = Annotated[
    str,
    typer.Option(
        metavar="PART", help="train, test or all.", callback=among("train", "test", "all")
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Use at most this many samples, drawn at random.",
        callback=_for_torch,
    ),
]
BatchSize = Annotated[
    int, typer.Option(min=1, metavar="N", help="Samples per batch.", callback=_for_torch)
]
Block = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Tokens per sample of a text (default: 256, or what the model takes).",
        callback=_for_torch,
    ),
]
LossName = Annotated[
    str, typer.Option(metavar="NAME", help="cross_entropy, mse or bce.", callback=among(*LOSSES))
]
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
        callback=parsed(lambda texts: inputs.parse_pairs(texts, "--option rho=0.1")),
    ),
]
Rtol = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Refine estimates until they are this precise, relatively.",
        callback=SHARE,
    ),
]
MethodName = Annotated[
    str,
    typer.Option(
        help="auto, exact, output_probes, sample_probes, split, hutchinson or hutch++.",
        callback=among(*METHODS),
    ),
]
ArithmeticName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="full, or tf32 or bf16: faster on a GPU; what that costs in accuracy is shown.",
        callback=among(*ARITHMETICS),
    ),
]
MaxPasses = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Most probes per estimate; each is one pass over the data.",
        callback=within(whole(least=1), "at least 1 pass over the data"),
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        help="Most forward-backwards over the data; what does not fit is left out, with its price. "
        "Default: for measures that you do not name, 20 (audit: 60), unless the network is small; "
        "inf sets no limit.",
        callback=within(lambda value: value > 0, "a positive number"),
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Limit for working memory, such as 512MiB or 2GiB.",
        callback=parsed(inputs.parse_memory),
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="float32 or float64.",
        callback=among(*DTYPES, then="Half precision has too few digits for curvature."),
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Seed of initial weights, drawn samples and probes.",
        callback=_for_torch,
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
        callback=SHARE,
    ),
]


def unwritten(path: Path) -> Path:
    """Raise now if a file would be replaced, not after an hour of measuring."""
    console.free(path)
    return path


Json = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Write JSON here. Use '-' for stdout; messages go to stderr.",
        callback=unwritten,
    ),
]


def _before_measuring(html: pathlib.Path | None) -> pathlib.Path | None:
    """Raise now if the page cannot be made."""
    if html is not None:
        require("plotly", what="An HTML page", extra="report")
    return unwritten(html)


Html = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="PATH",
        help="Write a self-contained HTML page here.",
        callback=_before_measuring,
    ),
]


def drawable(plot: pathlib.Path | None) -> pathlib.Path | None:
    """Raise now if the file cannot be drawn."""
    if plot is not None:
        from ..pages.figures import KINDS

        if plot.suffix[1:] not in KINDS:
            endings = ", ".join(f".{kind}" for kind in KINDS)
            raise typer.BadParameter(
                f"The file must have one of the endings {endings}. Got {brief(str(plot))}."
            )
    return unwritten(plot)


Plot = Annotated[
    pathlib.Path | None,
    typer.Option(metavar="PATH", help="Draw a figure: .png, .svg or .pdf.", callback=drawable),
]


Save = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--save",
        metavar="PATH",
        help="Write the changed weights (.safetensors).",
        callback=unwritten,
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Which network is built, and whose weights it gets."""

    model: Model
    model_arg: ModelArguments = None
    checkpoint: Checkpoint = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What the network is run on, and what its loss is there."""

    data: Data = "digits"
    split: Split = "train"
    samples: Samples = None
    batch_size: BatchSize = 256
    block: Block = None
    loss: LossName = "cross_entropy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured, and of which layers."""

    measures: Measures = None
    option: Options = None
    layers: Layers = None
    head: HeadName = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Which layers are changed, and what is written of that."""

    save_to: Save = None
    plot: Plot = None
    layers: Layers = None
    head: HeadName = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where it is computed, and with which random numbers."""

    memory: Memory = None
    device: Device = "cpu"
    dtype: Dtype = "float32"
    seed: Seed = 0

    @property
    def num_bytes(self) -> int | None:
        """The limit for working memory, if there is one."""
        return None if self.memory is None else inputs.parse_memory(self.memory)


def arguments(
    on: DataOptions, at: MachineOptions, layers: Several, head: str | None
) -> dict[str, Any]:
    """What every verb is told."""
    return {
        "loss": on.loss,
        "layers": inputs.one_or_many(layers),
        "head": head,
        "memory": at.num_bytes,
        "seed": at.seed,
    }
