"""`spiritlevel measure`: a network from a factory and a checkpoint, measured on a data set."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from torch import nn

from .. import api
from .._core import SpiritlevelError
from ..checkpoints import load_checkpoint, write_atomically
from ..models import build
from . import console, inputs, tables

Several = list[str] | None


def measure(
    model: Annotated[str, typer.Option(help="A built-in name, or module:factory of your own.")],
    option: Annotated[
        Several, typer.Option(help="key=value for the factory, as in width=16; repeat for more.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Weights: .safetensors, or a torch state dict.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="'digits', or an .npz file with the arrays x and y.")
    ] = "digits",
    split: Annotated[str, typer.Option(help="Of the digits: train, test or all.")] = "train",
    samples: Annotated[
        int | None, typer.Option(min=1, help="Use at most this many samples, drawn at random.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 256,
    loss: Annotated[str, typer.Option(help="cross_entropy, mse or bce.")] = "cross_entropy",
    measures: Annotated[
        Several, typer.Option(help="A name or a pattern such as 'relative.*'; repeat for more.")
    ] = None,
    layers: Annotated[
        Several, typer.Option(help="Module paths or patterns, or 'head'; repeat for more.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Path of the last linear layer, if it is not found.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Bound on working memory: 512MiB, 2GiB.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    seed: Annotated[
        int, typer.Option(help="Of initial weights, drawn samples and the certificate.")
    ] = 0,
    json: Annotated[
        str | None, typer.Option(help="Write the report here; '-' is stdout, and nothing else is.")
    ] = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Show every layer too.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Measure the flatness of a network on data.

    Says the planned cost first and the counted cost last; the network is left as it is.
    """
    talk = console.err() if json == "-" else console.out()
    options: dict[str, Any] = {
        "loss": loss,
        "measures": measures or None,
        "layers": _one_or_many(layers),
        "head": head,
        "memory": None if memory is None else inputs.parse_memory(memory),
        "seed": seed,
    }
    place, kind = inputs.parse_device(device), inputs.parse_dtype(dtype)
    x, y, origin = inputs.load_data(data, split=split, samples=samples, seed=seed)
    network = build(model, seed=seed, **inputs.parse_options(option or []))
    if checkpoint is not None:
        weights = f"weights: {load_checkpoint(network, checkpoint)}"
    else:
        weights = _untrained(model, seed)
    network = network.to(place, kind).eval()
    x, y = (t.to(kind) if t.is_floating_point() else t for t in (x, y))
    batches = list(zip(x.split(batch_size), y.split(batch_size), strict=True))

    count = sum(p.numel() for p in network.parameters() if p.requires_grad)
    console.tell(talk, f"model: {model}, {count:,} trainable parameters, {dtype} on {place}")
    console.tell(talk, weights)
    console.tell(talk, f"data: {origin}")
    planned = _attempt(api.preflight, network, batches, options, model=model, data=data)
    console.tell(talk, f"planned: {planned}")
    talk.print()
    with console.progress("measuring") as show:
        options["progress"] = show
        report = _attempt(api.measure, network, batches, options, model=model, data=data)
    tables.print_report(talk, report)
    if per_layer:
        tables.print_layers(talk, report)
    if json == "-":
        sys.stdout.write(report.to_json() + "\n")
    elif json is not None:
        write_atomically(json, f"{report.to_json()}\n".encode())
        console.tell(talk, f"written: {json}")


def _one_or_many(layers: Several) -> str | list[str] | None:
    """A single word stays a word, so that "head" keeps its meaning."""
    if not layers:
        return None
    return layers[0] if len(layers) == 1 else layers


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


def _attempt(
    verb: Any,
    network: nn.Module,
    batches: list[Any],
    options: dict[str, Any],
    *,
    model: str,
    data: str,
) -> Any:
    """Call, and say of an error inside the user's network that it came from there."""
    try:
        return verb(network, batches, **options)
    except SpiritlevelError:
        raise
    except MemoryError as error:
        raise _too_large() from error
    except (RuntimeError, TypeError, IndexError) as error:
        text = str(error)
        if "out of memory" in text or "can't allocate memory" in text:
            raise _too_large() from error
        shape = tuple(batches[0][0].shape[1:])
        cause = text.strip().splitlines()[0].rstrip(".") if text.strip() else type(error).__name__
        raise SpiritlevelError(
            f"The model {model!r} failed on the data {data!r}, whose samples are "
            f"{batches[0][0].dtype} of shape {shape}: {cause}. Check that --model, --option and "
            "--data belong together; --debug shows the traceback."
        ) from error


def _too_large() -> SpiritlevelError:
    return SpiritlevelError(
        "The memory is exhausted. Lower --memory (for example 256MiB) or --batch-size, or measure "
        "fewer --layers at a time."
    )
