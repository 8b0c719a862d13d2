"""Paper 000, Tables 1 and 2: the closed-form trace against automatic differentiation and probes.

The task is one row of the tables: the trace of one convolution under average pooling by four
methods, the closed form, the diagonal of the Hessian by automatic differentiation (the reference),
a whole Hessian for every sample by `torch.func`, and Hutchinson's estimate from random signs. All
in float64.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, vmap
from torch.nn import functional as F

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.records.content import Cell, Figure, Series, Table
from spiritlevel.verbs import measuring as api

from ...claims.contrasts import factor, line
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import Finding, above, every, fact, verdict
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column, grouped
from ...population.registry import read_task, task
from ...population.run_results import RunResult
from ...population.runs.run_data import derived_generator
from ...population.runs.tasks import task_result
from ...population.settings.run import RunSettings

METHODS = ("closed", "autograd", "functorch", "hutchinson")
IMAGES, KERNELS = "task.images", "task.kernels"
TRACE_ERROR, KAPPA_ERROR, SECONDS = "task.trace_error", "task.kappa_error", "task.seconds"
FUNCTORCH_MIB = "task.functorch_mib"
SMALL = 1e-4  # the scale of the paper's random weights
REPEATS = 5  # of the closed form, which is over too soon for one reading of the clock
Result = tuple[float, float]  # trace and relative flatness


@dataclasses.dataclass(frozen=True)
class TraceArguments:
    """One row of the paper's tables: the convolution, its images, and the estimate's probes."""

    weights: str = "ones"  # or "random"
    images: int = 20
    kernels: int = 10
    channels: int = 3
    kernel_size: int = 3
    size: int = 8  # of an image, in pixels
    probes: int = 500
    memory_mib: int = 512  # beyond it, functorch is left out


@task("tasks_000_trace", uses=(), arguments=TraceArguments)  # images and network are made here
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """The seed draws images, classes and probes; random weights are the same for every seed."""
    arguments = read_task(settings, TraceArguments)
    model = _network(arguments).to(device)
    x, y = _batch(arguments, settings.seed, device)
    mib = _functorch_mib(model, len(x))
    results: dict[str, Result] = {}
    seconds: dict[str, float] = {}
    closed_form(model, x, y)  # the first call of anything pays for what later ones do not
    results["closed"], seconds["closed"] = _timed(lambda: closed_form(model, x, y), REPEATS)
    results["autograd"], seconds["autograd"] = _timed(lambda: autograd(model, x, y))
    if mib <= arguments.memory_mib:
        results["functorch"], seconds["functorch"] = _timed(lambda: functorch(model, x, y))
    probes = _probes(model, arguments.probes, settings.seed)
    trace, seconds["hutchinson"] = _timed(lambda: hutchinson_trace(model, x, y, probes))
    mixing = _mixing(model, arguments.probes, settings.seed)
    results["hutchinson"] = trace, hutchinson_kappa(model, x, y, mixing)
    values = {IMAGES: float(len(x)), KERNELS: float(arguments.kernels), FUNCTORCH_MIB: mib}
    values |= {f"{SECONDS}/{method}": seconds.get(method, float("nan")) for method in METHODS}
    return task_result(settings, values | _errors(results, model), device=device)


def closed_form(model: nn.Module, x: Tensor, y: Tensor) -> Result:
    """By the product's own measures, with all that comes around them."""
    report = api.measure(
        model, [(x, y)], measures=["head.trace", "head.kappa"], head="head", distributed=False
    )
    return report["head.trace"].value, report["head.kappa"].value


def autograd(model: nn.Module, x: Tensor, y: Tensor) -> Result:
    """Row by row of the Hessian; of each row only what trace and relative flatness need is kept."""
    weight = _weight(model)
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), weight, create_graph=True)
    kernels, inputs = gradient.flatten(1).shape
    blocks = torch.zeros(kernels, kernels, dtype=weight.dtype, device=weight.device)
    for kernel in range(kernels):
        for place in range(inputs):
            entry = gradient.flatten(1)[kernel, place]
            (row,) = torch.autograd.grad(entry, weight, retain_graph=True)
            blocks[kernel] += row.flatten(1)[:, place]  # Tr of the block of two kernels
    return _from_blocks(blocks, weight)


def functorch(model: nn.Module, x: Tensor, y: Tensor) -> Result:
    """A whole Hessian for every sample at once: as many numbers as samples × weights²."""
    weight = _weight(model)

    def loss(weights: Tensor, image: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, {"head.weight": weights}, (image[None],))
        return F.cross_entropy(outputs, target[None])

    whole = vmap(hessian(loss), in_dims=(None, 0, 0))(weight.detach(), x, y)
    kernels, inputs = weight.flatten(1).shape
    square = whole.mean(dim=0).reshape(kernels, inputs, kernels, inputs)
    return _from_blocks(torch.einsum("ipjp->ij", square), weight)


def hutchinson_trace(model: nn.Module, x: Tensor, y: Tensor, probes: Tensor) -> float:
    """The mean of vᵀHv over random signs v."""
    return _mean_product(model, x, y, probes)


def hutchinson_kappa(model: nn.Module, x: Tensor, y: Tensor, mixing: Tensor) -> float:
    """The mean of vᵀHv over v = W ε with random signs ε of inputs × inputs."""
    weight = _weight(model).detach()
    return _mean_product(model, x, y, (weight.flatten(1) @ mixing).reshape(-1, *weight.shape))


def _mean_product(model: nn.Module, x: Tensor, y: Tensor, directions: Tensor) -> float:
    weight = _weight(model)
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), weight, create_graph=True)
    total = torch.zeros((), dtype=weight.dtype, device=weight.device)
    for v in directions:
        (image,) = torch.autograd.grad(gradient, weight, grad_outputs=v, retain_graph=True)
        total += (v * image).sum()
    return float(total) / len(directions)


def _from_blocks(blocks: Tensor, weight: Tensor) -> Result:
    flat = weight.detach().flatten(1)
    return float(blocks.detach().trace()), float((blocks.detach() * (flat @ flat.mT)).sum())


def _errors(results: dict[str, Result], model: nn.Module) -> dict[str, float]:
    """Of the trace relative to itself; of κ, which may be 0, relative to trace × mean ‖w‖²."""
    trace, kappa = results["autograd"]
    unit = trace * float(_weight(model).detach().flatten(1).square().sum(dim=1).mean())
    errors = {}
    for method in METHODS:
        if method == "autograd":
            continue
        theirs = results.get(method, (float("nan"), float("nan")))
        errors[f"{TRACE_ERROR}/{method}"] = abs(theirs[0] - trace) / trace
        errors[f"{KAPPA_ERROR}/{method}"] = abs(theirs[1] - kappa) / unit
    return errors


def _timed(work: Callable[[], Any], repeats: int = 1) -> tuple[Any, float]:
    """What it gives, and the median of the seconds; results are numbers, so no GPU lags behind."""
    readings = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        readings.append(time.perf_counter() - start)
    return result, statistics.median(readings)


def _network(arguments: TraceArguments) -> nn.Module:
    head = nn.Conv2d(
        arguments.channels, arguments.kernels, arguments.kernel_size, bias=False
    ).double()
    with torch.no_grad():
        if arguments.weights == "ones":
            head.weight.fill_(1.0)
        elif arguments.weights == "random":
            head.weight.uniform_(0.0, 1.0, generator=derived_generator(0, "weights")).mul_(SMALL)
        else:
            raise SpiritlevelError(
                f"The study's task.weights must be 'ones' or 'random'. Got {arguments.weights!r}."
            )
    layers = [("head", head), ("average", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
    return nn.Sequential(OrderedDict(layers)).eval()


def _batch(
    arguments: TraceArguments, seed: int, device: str | torch.device
) -> tuple[Tensor, Tensor]:
    shape = (arguments.images, arguments.channels, arguments.size, arguments.size)
    x = torch.rand(shape, generator=derived_generator(seed, "images"), dtype=torch.float64)
    drawn = derived_generator(seed, "classes")
    y = torch.randint(0, arguments.kernels, (arguments.images,), generator=drawn)
    return x.to(device), y.to(device)


def _weight(model: nn.Module) -> Tensor:
    return model.get_parameter("head.weight")


def _functorch_mib(model: nn.Module, samples: int) -> float:
    weight = _weight(model)
    return samples * weight.numel() ** 2 * weight.element_size() / 2**20


def _probes(model: nn.Module, count: int, seed: int) -> Tensor:
    return _signs((count, *_weight(model).shape), derived_generator(seed, "probes"), model)


def _mixing(model: nn.Module, count: int, seed: int) -> Tensor:
    inputs = _weight(model).flatten(1).shape[1]
    return _signs((count, inputs, inputs), derived_generator(seed, "mixing"), model)


def _signs(shape: tuple[int, ...], generator: torch.Generator, model: nn.Module) -> Tensor:
    drawn = torch.randint(0, 2, shape, generator=generator)
    return (2.0 * drawn.double() - 1.0).to(_weight(model).device)


WEIGHTS = "task.weights"
EXACT = 1e-9  # relative, in float64: rounding, and no more
WORDS = {  # the methods that are compared with the closed form
    "autograd": "automatic differentiation",
    "functorch": "functorch",
    "hutchinson": "Hutchinson's estimate",
}
JUDGED = ("autograd", "hutchinson")
Place = tuple[str, float, float]  # weights, images, kernels


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """The error of the closed form, and how many times longer every other method takes."""
    groups = _groups(rows)
    slower = {
        place: {method: _slower(group, method) for method in WORDS}
        for place, group in groups.items()
    }
    table = [_row(place, group, slower[place]) for place, group in groups.items()]
    errors = [row[f"{name}/closed"] for row in rows for name in (TRACE_ERROR, KAPPA_ERROR)]
    worst = max(errors)
    missed = _missed(rows)
    ranges = {
        method: [by_method[method].value for by_method in slower.values()] for method in JUDGED
    }
    exact = _exact(errors)
    findings = [exact, *(_longer(method, slower) for method in JUDGED)]
    return Outcome(
        table=Table(
            (
                *("weights", "images", "kernels", "n", "error of the closed form"),
                "error of Hutchinson's estimate",
                *(f"{title}: times the closed form's time" for title in WORDS.values()),
                "MiB that functorch needs",
            ),
            table,
        ),
        figure=Figure(
            "kernels",
            "times the closed form's time",
            [_line(method, rows) for method in WORDS],
            log_y=True,
        ),
        findings=findings,
        # A fast method with wrong results is worth nothing, so speed alone is not "partly".
        agrees=verdict(findings if exact.result == "held" else [exact]),
        conclusion=(
            f"The closed form is within {worst:.1g} of automatic differentiation throughout, where "
            f"Hutchinson's estimate of the trace is off by {missed} on average (n = {missed.n} "
            f"draws of images and probes); {WORDS['autograd']} takes "
            f"{min(ranges['autograd']):.3g} to {max(ranges['autograd']):.3g} times as long as the "
            f"closed form, {WORDS['hutchinson']} {min(ranges['hutchinson']):.3g} to "
            f"{max(ranges['hutchinson']):.3g} times."
        ),
    )


def _groups(rows: Sequence[Row]) -> dict[Place, list[Row]]:
    groups: dict[Place, list[Row]] = {}
    for row in sorted(rows, key=lambda r: (r[WEIGHTS], r[KERNELS], r[IMAGES])):
        groups.setdefault((row[WEIGHTS], row[IMAGES], row[KERNELS]), []).append(row)
    return groups


def _slower(group: Sequence[Row], method: str) -> IntervalEstimate:
    return factor((row[f"{SECONDS}/closed"], row.get(f"{SECONDS}/{method}")) for row in group)


def _missed(rows: Sequence[Row]) -> IntervalEstimate:
    """The error of Hutchinson's estimate over draws.

    Both kinds of weights are measured with the same images and probes, so their errors are nearly
    the same: each draw counts once.
    """
    draws: dict[tuple[float, float, int], list[float]] = {}
    for row in rows:
        draw = (row[IMAGES], row[KERNELS], row["seed"])
        draws.setdefault(draw, []).append(row[f"{TRACE_ERROR}/hutchinson"])
    return mean(statistics.fmean(errors) for errors in draws.values())


def _row(place: Place, group: Sequence[Row], slower: dict[str, IntervalEstimate]) -> list[Cell]:
    weights, images, kernels = place
    closed = max(column(group, f"{TRACE_ERROR}/closed"))
    probed = mean(column(group, f"{TRACE_ERROR}/hutchinson"))
    times = [slower[method] if slower[method].n else "does not fit" for method in WORDS]
    needed = group[0][FUNCTORCH_MIB]
    return [weights, int(images), int(kernels), len(group), closed, probed, *times, needed]


def _line(method: str, rows: Sequence[Row]) -> Series:
    """Times over both kinds of weights, since they do not depend on the kind."""
    ratios = {kernels: _slower(group, method) for kernels, group in grouped(rows, KERNELS).items()}
    timed = {kernels: each for kernels, each in ratios.items() if each.n}
    return line(WORDS[method], list(timed), list(timed.values()))


def _exact(errors: Sequence[float]) -> Finding:
    close = [error <= EXACT for error in errors]  # one by one, because nan is not close
    return fact(
        "the closed form gives trace and relative flatness without error (within 1e-9)",
        all(close),
        f"{sum(close)} of {len(close)} numbers; the largest error is {max(errors):.1g}",
    )


def _longer(method: str, slower: dict[Place, dict[str, IntervalEstimate]]) -> Finding:
    return every(
        f"{WORDS[method]} takes longer (times the closed form's time)",
        [
            above(f"weights {weights}, {images:g} images, {kernels:g} kernels", ratios[method], 1.0)
            for (weights, images, kernels), ratios in slower.items()
        ],
    )
