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
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from networks import Network, images, trained
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import spiritlevel as sl
from spiritlevel.engine import plan, sample_noise, sample_probes, workspace
from spiritlevel.engine.sample_probes import SampleProbes
from spiritlevel.engine.weight_space.probes import WeightProbes
from spiritlevel.model.surface import Surface
from spiritlevel.records.measurements import Cost

RESULTS = pathlib.Path(__file__).parent / "results"
RTOLS = (0.1, 0.03)
# In forward-backwards: a backward takes twice a forward, and a product twice of both.
UNITS = Cost(forwards=1, backwards=2, products=6)
PURPOSES = [
    (plan, "_check_independent", "plan"),
    (workspace, "make_plan", "plan"),
    (sample_probes, "choose_method", "derivatives"),
    (workspace, "run_pass", "sweep"),
    (WeightProbes, "draw", "weight probes"),
    (SampleProbes, "draw", "sample probes"),
]


def units(cost: Cost) -> float:
    """What a cost is in forward-backwards of single samples."""
    return (
        UNITS.forwards * cost.forwards
        + UNITS.backwards * cost.backwards
        + UNITS.products * cost.products
    ) / (UNITS.forwards + UNITS.backwards)


@dataclasses.dataclass
class Tally:
    """What was done for one purpose."""

    operators: int = 0
    cost: Cost = dataclasses.field(default_factory=Cost)
    runs: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class Counter(TorchDispatchMode):
    """Counts operators that are no views, and passes, by what they are for."""

    def __init__(self) -> None:
        super().__init__()
        self.purposes: list[str] = ["other"]
        self.by_purpose: dict[str, Tally] = collections.defaultdict(Tally)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not _is_view(func):
            self.by_purpose[self.purposes[-1]].operators += 1
        return func(*args, **(kwargs or {}))

    def spent(self, cost: Cost) -> None:
        tally = self.by_purpose[self.purposes[-1]]
        tally.cost += cost
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
    model = _Flat(ResNetForImageClassification(config)).eval()
    return model, data


class _Flat(Scores):
    """In eval mode."""


NETWORKS = {"ViT": vit, "GPT-2": gpt2, "ConvNeXt": convnext, "ResNet-50": resnet}


def counted(network: Any, rtol: float, max_passes: int) -> list[dict[str, Any]]:
    """A first and a later call, by purpose."""
    model, data = network()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        loss = float(F.cross_entropy(model(data[0]).flatten(0, -2), data[1].flatten()))
    floor = Counter()
    with floor:
        F.cross_entropy(model(data[0]).flatten(0, -2), data[1].flatten()).backward()
    model.zero_grad(set_to_none=True)
    rows = []
    for call in ("first", "later"):
        counter = Counter()
        with counter.counting():
            report = sl.measure(
                model, data, measures="curvature.trace", rtol=rtol, max_passes=max_passes
            )
        m, samples = report["curvature.trace"], len(data[0])
        total = sum(tally.operators for tally in counter.by_purpose.values())
        spent = sum(units(tally.cost) for tally in counter.by_purpose.values())
        one = floor.by_purpose["other"].operators
        rows.append(
            {
                "call": call,
                "rtol": rtol,
                "loss": loss,
                "value": m.value,
                "stderr": m.stderr,
                "text": m.text,
                "operators": total,
                "operators_fb": total / one,
                "samples_fb": spent / samples,
                "by_purpose": {
                    name: {
                        "operators": tally.operators,
                        "operators_fb": tally.operators / one,
                        "samples_fb": units(tally.cost) / samples,
                        "runs": dict(tally.runs),
                    }
                    for name, tally in counter.by_purpose.items()
                },
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "operators-cpu.json")
    chosen = parser.parse_args()
    content = {}
    for name in chosen.networks:
        content[name] = [row for rtol in RTOLS for row in counted(NETWORKS[name], rtol, 2000)]
        for row in content[name]:
            print(
                f"{name:10s} {row['call']:6s} {row['rtol']:5.0%} {row['operators']:8d} operators, "
                f"{row['operators_fb']:6.1f} fb of them, {row['samples_fb']:6.1f} fb of samples; "
                f"loss {row['loss']:.2g}: {row['value']:.4g} ± {row['stderr'] or 0:.2g} {row['text']}"
            )
            for purpose, part in row["by_purpose"].items():
                runs = ", ".join(f"{n}× {text}" for text, n in sorted(part["runs"].items()))
                print(
                    f"    {purpose:14s} {part['operators']:8d}  {part['operators_fb']:6.1f} "
                    f"{part['samples_fb']:6.1f}  {runs}"
                )
    chosen.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
