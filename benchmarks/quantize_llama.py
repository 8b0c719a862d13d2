"""Sensitivity of a Llama-shaped model to rounding: time and peak memory of `sl.quantization`.

A public tool states four days on four A100 for a Hessian sensitivity of a Llama-3-8B. This builds a
model of that shape with random weights in bfloat16 (the time does not depend on their values) and
predicts the rise of the loss for every weight and width. Needs a GPU with about 80 GB for the
defaults, and nothing but torch and spiritlevel:

python benchmarks/quantize_llama.py                       # 32 layers of 4096: 8 billion weights
python benchmarks/quantize_llama.py --layers 2 --width 256 --heads 4 --vocabulary 1000 --device cpu
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time

import torch
from harness import RESULTS
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a model; the defaults are those of Llama-3-8B."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    key_heads: int = 8
    hidden: int = 14336
    vocabulary: int = 128256


class RootMeanSquare(nn.Module):
    """Norm with a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5))


class Attention(nn.Module):
    """Grouped queries, rotary positions, causal."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.width // shape.heads
        self.groups = shape.heads // shape.key_heads
        self.q = nn.Linear(shape.width, shape.heads * self.size, bias=False)
        self.k = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.v = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.o = nn.Linear(shape.heads * self.size, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (
            layer(x).reshape(n, t, -1, self.size).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = self._turned(q), self._turned(k)
        k, v = (part.repeat_interleave(self.groups, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(n, t, -1))

    def _turned(self, x: Tensor) -> Tensor:
        half = self.size // 2
        rates = 500000.0 ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Block(nn.Module):
    """Attention and a gated feed-forward part, each beside a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.first, self.second = RootMeanSquare(shape.width), RootMeanSquare(shape.width)
        self.attention = Attention(shape)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Tokens to logits, one for each position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RootMeanSquare(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)  # (N, classes, positions)


def build(shape: Shape, device: torch.device) -> nn.Module:
    """Random weights in bfloat16, made on the device."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model = Llama(shape)
    finally:
        torch.set_default_dtype(before)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    for name, parameter in model.named_parameters():  # the matrices of the blocks are rounded
        parameter.requires_grad_(parameter.dim() > 1 and name.startswith("blocks"))
    return model.eval()


def main() -> None:
    """Time one call, and write benchmarks/results/quantize_llama-DEVICE.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    for field in dataclasses.fields(Shape):
        name = field.name.replace("_", "-")
        parser.add_argument(f"--{name}", type=int, default=field.default)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--bits", type=int, nargs="+", default=[3, 4, 8])
    parser.add_argument("--probes", type=int, default=2)
    parser.add_argument("--scheme", default="per_channel")
    parser.add_argument("--arithmetic", default="full")
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    shape = Shape(**{field.name: getattr(asked, field.name) for field in dataclasses.fields(Shape)})
    device = torch.device(asked.device)
    model = build(shape, device)
    tokens = torch.randint(shape.vocabulary, (asked.samples, asked.tokens + 1), device=device)
    batches = [(row[None, :-1], row[None, 1:]) for row in tokens]
    count = sum(p.numel() for p in model.parameters())
    rounded = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{count:,} weights, {rounded:,} of them rounded", flush=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    found = sl.quantization(
        model,
        batches,
        bits=tuple(asked.bits),
        scheme=asked.scheme,
        ranges="max",
        num_probes=asked.probes,
        arithmetic=asked.arithmetic,
        check=False,
    )
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    tokens_seen = asked.samples * asked.tokens
    spread = [w.stderr / abs(w.rise) for w in found.widths if w.rise]
    result = {
        "what": (__doc__ or "").splitlines()[0],
        "shape": dataclasses.asdict(shape),
        "parameters": count,
        "rounded": rounded,
        "weights": len(found.sizes),
        "widths": asked.bits,
        "samples": asked.samples,
        "tokens": tokens_seen,
        "probes": asked.probes,
        "arithmetic": asked.arithmetic,
        "seconds": seconds,
        "peak_bytes": peak,
        "cost": found.cost.passes(asked.samples),
        "median_relative_probe_error": sorted(spread)[len(spread) // 2] if spread else None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if asked.out is not None or device.type == "cuda":
        path = asked.out or RESULTS / f"quantize_llama-{device.type}.json"
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
