"""The trace to 10 % of networks from packages, first and later, beside a longer run of its own.

Each is as its package builds it, in a size that is used, and is trained until it has learned its
data. The reference has other random numbers and a tenth of the tolerance, or as much of it as 60
passes give; how far the first call is from it is told in both standard errors together.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
from harness import Ratio, seconds
from networks import NotTrained, images
from torch import nn

import spiritlevel as sl

FLOORS = 5  # forward-backwards that are timed
LEARNED, STEPS = 0.1, 400  # the loss that is reached, or the network is left out
TRACE = "curvature.trace"
Batch = dict[str, torch.Tensor]


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(num_labels=4, attn_implementation="eager"))


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=2000, decoder_start_token_id=0, pad_token_id=0)
    return T5ForConditionalGeneration(config)


def mamba() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=2000, hidden_size=256, num_hidden_layers=2))


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 4}
    return MixtralForCausalLM(
        MixtralConfig(vocab_size=2000, **shape, **heads, attn_implementation="eager")
    )


def pictured(name: str) -> Callable[[], nn.Module]:
    """A network of torchvision."""

    def build() -> nn.Module:
        import torchvision.models

        return getattr(torchvision.models, name)(num_classes=10)

    return build


def texts(labels: bool) -> Batch:
    """Sixteen of 64 tokens, of four classes or each its own label."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 1000, (16, 64), generator=generator).sort(dim=1).values
    return {"input_ids": tokens, "labels": torch.arange(16) % 4 if labels else tokens}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], bool | None]] = {
    "BERT base, 16 × 64 tokens": (bert, True),
    "T5 small, 16 × 64 tokens": (t5, False),
    "Mamba, 2 layers, 16 × 64 tokens": (mamba, False),
    "Mixtral, 4 layers of 4 experts, 16 × 64 tokens": (mixtral, False),
    "Swin-T, 32 images": (pictured("swin_t"), None),
    "ConvNeXt-T, 32 images": (pictured("convnext_tiny"), None),
    "EfficientNet-B0, 32 images": (pictured("efficientnet_b0"), None),
    "MobileNet V3, 32 images": (pictured("mobilenet_v3_small"), None),
}


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """Every network once, on a GPU; `repeats` is not used."""
    rows: list[Ratio] = []
    for name, (build, of_texts) in NETWORKS.items() if device.type == "cuda" else ():
        try:
            rows.append(tried(name, build, of_texts, device))
            print(rows[-1], rows[-1].details, flush=True)
        except NotTrained as error:
            print(f"{name}: left out, {error}", flush=True)
        except sl.SpiritlevelError as error:  # an answer, too
            print(f"{name}: refused, {error}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def tried(
    name: str, build: Callable[[], nn.Module], of_texts: bool | None, device: torch.device
) -> Ratio:
    torch.manual_seed(0)
    model = build().to(device).eval()
    if of_texts is None:
        data: Any = images(32, 224, 10, device)
        loss_of = lambda: nn.functional.cross_entropy(model(data[0]), data[1])  # noqa: E731
    else:
        batch = {key: value.to(device) for key, value in texts(of_texts).items()}
        data = [batch]
        loss_of = lambda: model(**batch).loss  # noqa: E731
    loss = learned(model, loss_of)
    floor = sorted(seconds(lambda: loss_of().backward(), device) for _ in range(FLOORS))
    model.zero_grad(set_to_none=True)

    def call(which: nn.Module, **options: Any) -> Any:
        return sl.measure(which, data, measures=TRACE, max_passes=60, **options)[TRACE]

    call(copy.deepcopy(model), rtol=0.1)  # loads kernels
    found: list[Any] = []
    fresh = copy.deepcopy(model)
    took, later = (seconds(lambda: found.append(call(fresh, rtol=0.1)), device) for _ in range(2))
    reference = call(fresh, rtol=0.01, seed=1)
    error = ((found[0].stderr or 0.0) ** 2 + (reference.stderr or 0.0) ** 2) ** 0.5
    middle = floor[FLOORS // 2]
    return Ratio(
        name=name,
        ratio=took / middle,
        low=took / floor[-1],
        high=took / floor[0],
        goal=None,
        at_least=False,
        work_seconds=took,
        floor_seconds=middle,
        repeats=1,
        details={
            "loss": loss,
            "weights": sum(p.numel() for p in model.parameters()),
            "value": found[0].value,
            "stderr": found[0].stderr,
            "text": found[0].text,
            "reference": reference.value,
            "reference_stderr": reference.stderr,
            "apart_in_stderr": abs(found[0].value - reference.value) / error if error else 0.0,
            "later_call_ratio": later / middle,
        },
    )


def learned(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> float:
    """Train on all of the data until the loss is small, in eval mode but for batch statistics."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        if step % 10 == 0:
            with torch.no_grad():
                reached = float(loss_of())
            if reached <= LEARNED:
                return reached
        for module in model.modules():
            module.train(isinstance(module, nn.modules.batchnorm._BatchNorm))
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
        model.eval()
    raise NotTrained(f"a loss of {reached:.3g} after {STEPS} steps")
