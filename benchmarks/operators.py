"""How many operators a measurement dispatches and how many passes it makes, and what for.

Nothing is timed. On a GPU a small batch takes as long as it takes to launch its kernels, about one
for each operator that is not a view; so operators and the sizes of batches tell what a call costs
there. The networks are as deep as those that people have, and narrow.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from networks import Network, images, trained
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import spiritlevel as sl
from spiritlevel.engine import plan, sample_probes, workspace
from spiritlevel.engine.sample_probes import SampleProbes
from spiritlevel.engine.weight_space.probes import WeightProbes
from spiritlevel.model.surface import Surface
from spiritlevel.records.measurements import Cost

RESULTS = pathlib.Path(__file__).parent / "results"
# A later call saves the same whatever the precision.
CALLS = [("first", 0.1), ("later", 0.1), ("first", 0.03)]
MAX_PASSES = 400
NO_KERNEL = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty")
SUMMED = ("operators", "operators_fb", "flops_fb")
PURPOSES = [
    (plan, "_check_independent", "plan"),
    (workspace, "make_plan", "plan"),
    (sample_probes, "choose_method", "derivatives"),
    (workspace, "run_pass", "sweep"),
    (WeightProbes, "draw", "weight probes"),
    (SampleProbes, "draw", "sample probes"),
]


@dataclasses.dataclass
class Tally:
    """What was done for one purpose."""

    operators: int = 0
    flops: int = 0  # of matrix products and convolutions
    runs: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class Counter(TorchDispatchMode):
    """Counts operators that are no views, and passes, by what they are for."""

    def __init__(self) -> None:
        super().__init__()
        self.purposes: list[str] = ["other"]
        self.by_purpose: dict[str, Tally] = collections.defaultdict(Tally)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tally = self.by_purpose[self.purposes[-1]]
        tally.operators += not _is_view(func)
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            tally.flops += count(*args, **(kwargs or {}), out_val=out)
        return out

    def spent(self, cost: Cost) -> None:
        tally = self.by_purpose[self.purposes[-1]]
        for name, count in dataclasses.asdict(cost).items():
            if count:
                tally.runs[f"{name} of {count}"] += 1

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count everything in the block."""
        with contextlib.ExitStack() as stack:
            for owner, name, purpose in PURPOSES:
                stack.enter_context(self._named(owner, name, purpose))
            stack.enter_context(_watched_cost(self))
            stack.enter_context(self)
            yield

    @contextlib.contextmanager
    def _named(self, owner: Any, name: str, purpose: str) -> Iterator[None]:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.purposes.append(purpose)
            try:
                return plain(*args, **kwargs)
            finally:
                self.purposes.pop()

        setattr(owner, name, call)
        try:
            yield
        finally:
            setattr(owner, name, plain)


@functools.cache
def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    if func._overloadpacket.__name__ in NO_KERNEL:
        return True
    return func.namespace == "aten" and any(
        each.alias_info is not None and not each.alias_info.is_write for each in returned
    )


@contextlib.contextmanager
def _watched_cost(counter: Counter) -> Iterator[None]:
    """Every addition to a surface's cost is one run of the model, forwards or backwards."""

    def set_cost(self: Surface, cost: Cost) -> None:
        counter.spent(cost - self.__dict__.get("_cost", Cost()))
        self.__dict__["_cost"] = cost

    Surface.cost = property(lambda self: self.__dict__["_cost"], set_cost)  # type: ignore
    try:
        yield
    finally:
        del Surface.cost  # type: ignore[misc]


# -- networks ---------------------------------------------------------------------------------

DEPTH, WIDTH, SAMPLES, CLASSES = 12, 32, 32, 10


class Scores(nn.Module):
    """A network of transformers, with its scores for its output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x).logits
        return scores


def vit() -> Network:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": 4}
    config = ViTConfig(
        **sizes,
        intermediate_size=4 * WIDTH,
        image_size=32,
        patch_size=8,
        num_labels=CLASSES,
        attn_implementation="eager",
    )
    data = images(SAMPLES, 32, CLASSES, torch.device("cpu"))
    return trained(Scores(ViTForImageClassification(config)).eval(), data, 30, 1e-3), data


def gpt2() -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": 4, "n_positions": 32}
    config = GPT2Config(**sizes, vocab_size=256, attn_implementation="eager")
    tokens = torch.randint(256, (8, 33)).sort(dim=1).values
    data = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return trained(Scores(GPT2LMHeadModel(config)).eval(), data, 60, 3e-3), data


def convnext() -> Network:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    torch.manual_seed(0)
    config = ConvNextConfig(
        hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 6, 2], num_labels=CLASSES, image_size=32
    )
    data = images(SAMPLES, 32, CLASSES, torch.device("cpu"))
    return trained(Scores(ConvNextForImageClassification(config)).eval(), data, 30, 1e-3), data


def resnet() -> Network:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[3, 4, 6, 3], num_labels=1000
    )
    data = images(SAMPLES, 32, 1000, torch.device("cpu"))
    return Scores(ResNetForImageClassification(config)).eval(), data


NETWORKS = {"ViT": vit, "GPT-2": gpt2, "ConvNeXt": convnext, "ResNet-50": resnet}


def counted(network: Callable[[], Network], calls: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Some calls on a network, by purpose, in forward-backwards of the same data."""
    model, data = network()
    floor = Counter()
    with floor:
        loss = F.cross_entropy(model(data[0]).flatten(0, -2), data[1].flatten())
        loss.backward()
    one = floor.by_purpose["other"]
    rows = []
    for call, rtol in calls:
        if call == "first":
            model, _ = network()  # of which nothing is known
        counter = Counter()
        with counter.counting():
            report = sl.measure(
                model, data, measures="curvature.trace", rtol=rtol, max_passes=MAX_PASSES
            )
        m = report["curvature.trace"]
        parts = {
            name: {
                "operators": tally.operators,
                "operators_fb": tally.operators / one.operators,
                "flops_fb": tally.flops / one.flops,
                "runs": dict(tally.runs),
            }
            for name, tally in counter.by_purpose.items()
        }
        found = {"loss": loss.item(), "value": m.value, "stderr": m.stderr, "text": m.text}
        sums = {key: sum(part[key] for part in parts.values()) for key in SUMMED}
        rows.append({"call": call, "rtol": rtol, **found, **sums, "by_purpose": parts})
    return rows


def main() -> None:
    """Count on the networks that are named, or on all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--calls", type=int, default=len(CALLS), help="so many of them")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "operators-cpu.json")
    chosen = parser.parse_args()
    content = {"torch": torch.__version__, "networks": {}}
    for name in chosen.networks:
        content["networks"][name] = rows = counted(NETWORKS[name], CALLS[: chosen.calls])
        for row in rows:
            found = f"{row['value']:.4g} ± {row['stderr'] or 0:.2g}: {row['text']}"
            print(f"{name:10s} {row['call']} {row['rtol']:.0%} {_shown(row)} {found}")
            for purpose, part in row["by_purpose"].items():
                runs = ", ".join(f"{n}x {text}" for text, n in sorted(part["runs"].items()))
                print(f"    {purpose:14s} {_shown(part)} {runs}", flush=True)
        chosen.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _shown(row: dict[str, Any]) -> str:
    operators, times = row["operators"], row["operators_fb"]
    return f"{operators:8d} operators, {times:6.1f} fb; {row['flops_fb']:6.1f} fb of work"


if __name__ == "__main__":
    main()
