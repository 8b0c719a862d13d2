"""Every tool, every question, every network, side by side in one run.

    make bench-peers                      on the CPU, in an environment of its own
    make bench-peers DEVICE=cuda          on a GPU
    python benchmarks/peers/run.py --networks VGG-small --questions "exact trace"

Whole calls on a network that the tool has not seen before: what a user waits for. A tool that does
not know when to stop is given 3, 9, 27, … products until three runs with other seeds all lie within
the tolerance; that last budget counts, although a user would not know it. Every answer is held
against ours: the largest eigenvalue, and the exact trace, or where there is none one to 5 %, or to
the tolerance if that is smaller. Where this takes us longer than `--limit` seconds, our value to a
larger tolerance has to do, and the answer says so. What a tool cannot answer, or not within the
limit, stays empty, with the reason. A trace that a tool did not find to some precision is not asked
of it to a higher one.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import gc
import json
import math
import pathlib
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import networks
from harness import RESULTS, machine, seconds
from tools import TOOLS, Data, Spiritlevel, Tool

NETWORKS: dict[str, Callable[[torch.device], networks.Network]] = {
    "MLP": networks.mlp,
    "VGG-small": networks.vgg_small,
    "ResNet-18": networks.resnet18,
    "ResNet-50": networks.resnet50,
    "ViT-B/16": networks.vit,
    "GPT-2 small": networks.gpt2,
    "head of GPT-2": networks.language_model_head,
}
REFERENCES = (0.01, 0.03, 0.05)  # relative half-widths of the interval of a trace not certified
PIECEWISE_LINEAR = ("ResNet-50",)  # whose GGN is the Hessian, with too many columns to be exact
CERTIFIED = ("MLP", "VGG-small", "ResNet-18", "head of GPT-2")  # whose exact trace is known
ON_CPU = ("MLP", "VGG-small")
QUESTIONS = ("exact trace", "trace to 10 %", "trace to 3 %", "trace to 1 %", "default trace")
QUESTIONS += ("largest eigenvalue", "density", "traces of all layers to 10 %", "GGN trace")
PRODUCTS = 27  # for a tool that does not stop by itself, where no tolerance is asked for
BUDGETS = (3, 9, 27, 81, 243)
SEEDS = 3
PATIENCE = 10.0  # seconds from which a tool is not given more products
NOT_ASKED = "not asked:"
SHORT = 10.0  # seconds up to which a call is made again
Fresh = Callable[[], Tool]  # a tool on a network that it has not seen
Question = Callable[[Tool], float | None]


@dataclasses.dataclass
class Answer:
    """What a tool said, what it took, and how far it is from the truth."""

    network: str
    question: str
    tool: str
    seconds: float | None = None
    peak_bytes: int | None = None
    value: float | None = None
    error: float | None = None  # relative
    products: int | None = None  # that it was given
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Terms:
    """What holds for all answers of a run."""

    device: torch.device
    budgets: Sequence[int]  # of products, for a tool that does not stop by itself
    limit: float  # seconds for one call

    @property
    def not_in_time(self) -> str:
        return f"not within {self.limit:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="*", default=None, choices=NETWORKS)
    parser.add_argument("--questions", nargs="*", default=list(QUESTIONS), choices=QUESTIONS)
    parser.add_argument("--tools", nargs="*", default=None, choices=[t.name for t in TOOLS])
    parser.add_argument("--budgets", nargs="*", type=int, default=BUDGETS, help="of products")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one call")
    parser.add_argument("--out", type=pathlib.Path, default=None)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.backends.cudnn.allow_tf32 = False  # the same precision for all
    out = options.out or RESULTS / f"peers-{device.type}.json"
    answers = [Answer(**row) for row in json.loads(out.read_text())["rows"]] if out.exists() else []
    chosen = options.networks or (ON_CPU if device.type == "cpu" else list(NETWORKS))
    terms = Terms(device, options.budgets, options.limit)
    for network in chosen:
        missed = tolerances_missed(network, answers)
        for question in options.questions:
            for answer in asked(network, question, options.tools, terms, missed):
                known = (answer.network, answer.question, answer.tool)
                answers = [a for a in answers if (a.network, a.question, a.tool) != known]
                answers.append(answer)
                print(answer, flush=True)
                record = {
                    "machine": machine(device),
                    "rows": [dataclasses.asdict(a) for a in answers],
                }
                out.write_text(json.dumps(record, indent=1) + "\n")


def asked(
    network: str,
    question: str,
    names: Collection[str] | None,
    terms: Terms,
    missed: dict[str, float],
) -> Iterator[Answer]:
    """One question to all tools, or to those with these names, each on a network of its own.

    `missed` has the largest tolerance that a tool did not reach, and learns of new ones.
    """
    device = terms.device
    ours_is_asked = names is None or Spiritlevel.name in names
    is_held_against_it = ours_is_asked and (
        question == "largest eigenvalue" or (question == "GGN trace" and network in CERTIFIED)
    )
    truth, known_to = (None, 0.0) if is_held_against_it else reference(network, question, terms)
    rtol = tolerance(question)
    is_coarse = rtol is not None and known_to > rtol  # we have just failed to find it in time
    for make in TOOLS:
        if names is not None and make.name not in names:
            continue
        answer = Answer(network, question, make.name)
        if rtol is not None and rtol < missed.get(make.name, 0.0):
            answer.note = f"{NOT_ASKED} missed {100 * missed[make.name]:.0f} %"
            yield answer
            continue
        if make is Spiritlevel and is_coarse:
            answer.note = terms.not_in_time
            missed |= tolerances_missed(network, [answer])
            yield answer
            continue
        missed.pop(make.name, None)
        model, data = made(network, device)

        def fresh(make: type[Tool] = make, model: nn.Module = model, data: Data = data) -> Tool:
            return make(copy.deepcopy(model), data)

        try:
            ask(answer, fresh, truth, terms)
        except torch.OutOfMemoryError:
            answer.note = "out of memory"
        except TooLong:
            answer = Answer(network, question, make.name, note=terms.not_in_time)
        except Exception as error:  # whatever a tool raises is its answer
            answer.note = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"
            if "deprecated since version 1.9" in answer.note:
                answer.note = "fails: needs a function that torch no longer has"
        if make is Spiritlevel and is_held_against_it:
            truth = answer.value
        elif answer.value is not None and truth and question != "density":
            answer.error = abs(answer.value - truth) / abs(truth)
            if is_coarse:
                held = f"held against a value to {100 * known_to:.0f} %"
                answer.note = f"{answer.note}; {held}" if answer.note else held
        missed |= tolerances_missed(network, [answer])
        yield answer
        del model, data, fresh
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def tolerances_missed(network: str, answers: Sequence[Answer]) -> dict[str, float]:
    """By tool, the largest tolerance that it did not reach on this network."""
    missed: dict[str, float] = {}
    for answer in answers:
        rtol = tolerance(answer.question)
        is_miss = answer.note.startswith("not ") and not answer.note.startswith(NOT_ASKED)
        if rtol is not None and is_miss and answer.network == network:
            missed[answer.tool] = max(rtol, missed.get(answer.tool, 0.0))
    return missed


class TooLong(Exception):
    """A tool took longer than it was given."""


@contextlib.contextmanager
def within(limit: float) -> Iterator[None]:
    """Raise TooLong in the block after so many seconds, as soon as Python runs again."""

    def stop(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@functools.lru_cache(maxsize=1)
def made(network: str, device: torch.device) -> networks.Network:
    """A network with its data. Some are trained first, so it is kept until the next is wanted."""
    return NETWORKS[network](device)


@functools.cache
def trace_of(network: str, device: torch.device, rtol: float) -> float | None:
    """By us: exactly, or to this precision."""
    tool = Spiritlevel(*made(network, device))
    return tool.exact_trace() if network in CERTIFIED else tool.trace(rtol, 0, seed=17)


def reference(network: str, question: str, terms: Terms) -> tuple[float | None, float]:
    """The value that answers are held against, and to what precision it is known.

    A trace is known to the tolerance of the question, or to the next one that we reach in time.
    """
    device = terms.device
    if question == "density" or question.startswith("traces of all layers"):
        return None, 0.0
    ours = Spiritlevel(*made(network, device))  # training it does not count as our time
    if question == "largest eigenvalue":
        return ours.largest_eigenvalue(), 0.0
    if question == "GGN trace" and network in CERTIFIED:
        return ours.ggn_trace(PRODUCTS), 0.0
    if question == "GGN trace" and network not in PIECEWISE_LINEAR:
        return None, 0.0  # ours is an estimate, too
    coarsest = REFERENCES[-1]
    wanted = min(coarsest, tolerance(question) or coarsest)
    for rtol in [r for r in REFERENCES if r >= wanted]:
        with contextlib.suppress(TooLong), within(terms.limit):
            return trace_of(network, device, rtol), 0.0 if network in CERTIFIED else rtol
    return None, math.inf


def tolerance(question: str) -> float | None:
    """The relative one that a question names."""
    return float(question.split()[2]) / 100 if question.startswith("trace to") else None


def ask(answer: Answer, fresh: Fresh, truth: float | None, terms: Terms) -> None:
    question = answer.question
    simple: dict[str, Question] = {
        "exact trace": lambda tool: tool.exact_trace(),
        "default trace": lambda tool: tool.default_trace(),
        "largest eigenvalue": lambda tool: tool.largest_eigenvalue(),
        "density": lambda tool: tool.mean_eigenvalue(),
        "GGN trace": lambda tool: tool.ggn_trace(PRODUCTS),
    }
    if question in simple:
        timed(answer, fresh, simple[question], terms)
    elif question.startswith("traces of all layers"):
        layer_traces(answer, fresh, terms)
    elif (rtol := tolerance(question)) is not None:
        to_tolerance(answer, fresh, truth, rtol, terms)
    if answer.value is None and not answer.note:
        answer.note, answer.seconds, answer.peak_bytes = "no answer", None, None


def timed(answer: Answer, fresh: Fresh, call: Question, terms: Terms) -> None:
    """Twice if it is short, since the first call of a tool also loads kernels.

    Each time on a copy of the network that the tool has not seen before.
    """
    device = terms.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    values: list[float | None] = []
    for _ in range(2):
        tool = fresh()
        with within(terms.limit):
            answer.seconds = seconds(lambda tool=tool: values.append(call(tool)), device)
        del tool
        if answer.seconds > SHORT or values[-1] is None:
            break
    answer.value = values[-1]
    if device.type == "cuda":
        answer.peak_bytes = torch.cuda.max_memory_allocated(device)


def to_tolerance(
    answer: Answer, fresh: Fresh, truth: float | None, rtol: float, terms: Terms
) -> None:
    tool = fresh()
    if tool.stops_by_itself:
        timed(answer, fresh, lambda tool: tool.trace(rtol, 0, seed=0), terms)
        return
    for products in terms.budgets:
        timed(answer, fresh, lambda tool, n=products: tool.trace(rtol, n, seed=0), terms)
        answer.products = products
        if answer.value is None or truth is None:
            return
        others = [answer.value]
        if abs(answer.value / truth - 1) <= rtol:
            others += [tool.trace(rtol, products, seed) or math.nan for seed in range(1, SEEDS)]
            if all(abs(value / truth - 1) <= rtol for value in others):
                return
        if (answer.seconds or 0.0) > PATIENCE:
            break
    answer.note = f"not reached with {answer.products} products"


def layer_traces(answer: Answer, fresh: Fresh, terms: Terms) -> None:
    """Of every weight's block, each with `PRODUCTS` where the tool does not stop by itself."""
    names = [name for name, p in fresh().model.named_parameters() if p.dim() > 1]

    def all_layers(tool: Tool) -> float | None:
        if isinstance(tool, Spiritlevel):  # one call has them all
            return tool.trace(0.1, 0, seed=0)
        values = []
        for name in names:
            value = tool.layer_trace(name, PRODUCTS)
            if value is None:
                return None
            values.append(value)
        return sum(values)

    timed(answer, fresh, all_layers, terms)
    answer.products = None if fresh().stops_by_itself else PRODUCTS * len(names)


if __name__ == "__main__":
    main()
