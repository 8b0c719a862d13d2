"""What default measures and an audit cost in passes, with their budgets and without.

Nothing is timed: forwards, backwards and products are counted, and given as forward-backwards (fb)
over the data. A forward is a third of one, a product with the Hessian four thirds. The networks are
narrow ones of the usual kinds, trained for a moment. Values within the budget are compared with
those without, in units of both standard errors together.

`python benchmarks/prices.py [names] [--audit]` prints a row for each network. An audit without a
budget measures every copy on all samples, which takes hours: it is made with --unbounded alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.inputs import build

Problem = tuple[nn.Module, tuple[Tensor, Tensor]]


class Logits(nn.Module):
    """A network of transformers that gives its logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).logits


class Echo(nn.Module):
    """An encoder and decoder that both read the same tokens."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(input_ids=x, decoder_input_ids=x).logits


class Inverted(nn.Module):
    """An inverted residual block; with squeeze and excitation where the activation is smooth."""

    def __init__(self, inside: int, out: int, stride: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        wide, few = 4 * inside, inside // 4
        self.widen = nn.Sequential(
            *(nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), act()),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            *(nn.BatchNorm2d(wide), act()),
        )
        self.gate = None
        if act is nn.SiLU:
            reduce, restore = nn.Conv2d(wide, few, 1), nn.Conv2d(few, wide, 1)
            pool = nn.AdaptiveAvgPool2d(1)
            self.gate = nn.Sequential(pool, reduce, nn.SiLU(), restore, nn.Sigmoid())
        self.narrow = nn.Sequential(nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out))
        self.adds = inside == out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        h = self.widen(x)
        h = self.narrow(h if self.gate is None else h * self.gate(h))
        return x + h if self.adds else h


def efficientnet_like(act: Callable[[], nn.Module], classes: int = 100) -> nn.Module:
    sizes = [(16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1)]
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), act()),
        *(Inverted(inside, out, stride, act) for inside, out, stride in sizes),
        *(nn.Conv2d(40, 160, 1, bias=False), nn.BatchNorm2d(160), act()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, classes)),
    )


def images(count: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, 3, 4, 4, generator=generator)
    noise = torch.randn(count, 3, size, size, generator=generator)
    x = F.interpolate(coarse, size=(size, size), mode="bilinear") + 0.3 * noise
    scores = coarse.flatten(1) @ torch.randn(48, classes, generator=generator)
    return x, (scores + 2 * torch.randn(scores.shape, generator=generator)).argmax(dim=1)


def tokens(count: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(1, 128, (count, length + 1), generator=generator).sort(dim=1).values
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def mlp() -> nn.Module:
    sizes = [(192, 64), (64, 64)]
    hidden = [layer for pair in sizes for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


def cnn() -> nn.Module:
    sizes = [(3, 16, 1), (16, 32, 2), (32, 32, 2)]
    stages = [
        layer
        for inside, out, stride in sizes
        for layer in (nn.Conv2d(inside, out, 3, stride, 1), nn.BatchNorm2d(out), nn.ReLU())
    ]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=10,
        attn_implementation="eager",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Logits(ViTForImageClassification(config))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 32}
    return Logits(GPT2LMHeadModel(GPT2Config(**shape, **dropout, attn_implementation="eager")))


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    config = T5Config(**shape, vocab_size=128, dropout_rate=0.0, attn_implementation="eager")
    return Echo(T5ForConditionalGeneration(config))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], float]] = {
    "MLP": (mlp, images(256, 8, 10), 3e-3),
    "CNN with BatchNorm": (cnn, images(128, 16, 10), 3e-3),
    "ResNet-18, width 8": (lambda: build("resnet18", width=8, seed=0), images(128, 16, 10), 3e-3),
    "EfficientNet-Lite-like": (lambda: efficientnet_like(nn.ReLU6), images(125, 16, 100), 3e-3),
    "EfficientNet-like, smooth": (lambda: efficientnet_like(nn.SiLU), images(125, 16, 100), 3e-3),
    "ViT": (vit, images(64, 32, 10), 1e-3),
    "GPT-2": (gpt2, tokens(16, 32), 2e-3),
    "T5": (t5, tokens(16, 16), 2e-3),
}
STEPS = 40


def problem(name: str) -> Problem:
    make, data, rate = NETWORKS[name]
    torch.manual_seed(0)
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(data[0]).flatten(0, -2), data[1].flatten()).backward()
        optimizer.step()
    return model.eval(), data


def apart(few: sl.Report, many: sl.Report) -> float:
    """The largest difference of two values of the same measure, in their standard errors."""
    found = [0.0]
    for name in few:
        one, other = few[name], many[name]
        errors = math.hypot(one.stderr or 0.0, other.stderr or 0.0)
        if errors and None not in (one.stderr, other.stderr):
            found.append(abs(one.value - other.value) / errors)
    return max(found)


def row(name: str, *, audit: bool, unbounded: bool) -> dict[str, Any]:
    model, data = problem(name)
    count = len(data[0])
    if audit:
        found = sl.audit(model, data, budget=math.inf if unbounded else 60)
        verdicts = {measure: verdict.kind for measure, verdict in found.verdicts.items()}
        passes = found.cost.forward_backwards / count
        return {"network": name, "audit_fb": passes, "left_out": found.left_out} | verdicts
    planned = sl.preflight(model, data, budget=20).forward_backwards
    few = sl.measure(model, data, budget=20)
    shown = {"network": name, "planned": planned, "fb": few.cost.forward_backwards / count}
    shown["left_out"] = list(few.settings.get("left_out", {}))
    if unbounded:
        many = sl.measure(model, data, budget=math.inf)
        shown |= {"unbounded_fb": many.cost.forward_backwards / count, "apart": apart(few, many)}
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--unbounded", action="store_true")
    given = parser.parse_args()
    for name in given.names:
        print(json.dumps(row(name, audit=given.audit, unbounded=given.unbounded)), flush=True)


if __name__ == "__main__":
    main()
