"""Networks that people have, with data that they can learn, for the benchmarks of whole calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.inputs import build

Network = tuple[nn.Module, tuple[Tensor, Tensor]]


def mlp(device: torch.device) -> Network:
    x, y = images(512, 8, 10, device)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    return model.to(device).eval(), (x, y)


def images(count: int, size: int, classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Smooth random images with labels that a network can learn."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, 3, 8, 8, generator=generator)
    x = F.interpolate(coarse, size=(size, size), mode="bilinear")
    y = torch.randint(classes, (count,), generator=generator)
    return x.to(device), y.to(device)


def trained(model: nn.Module, data: tuple[Tensor, Tensor], steps: int, rate: float) -> nn.Module:
    """After some steps of AdamW on all of the data."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, data).backward()
        optimizer.step()
    return model.eval()


def mean_loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    scores = model(data[0])
    scores = getattr(scores, "logits", scores)
    return F.cross_entropy(scores.flatten(0, -2), data[1].flatten())


def resnet18(device: torch.device) -> Network:
    data = images(256, 32, 10, device)
    return build("resnet18", seed=0).to(device).eval(), data


def vgg_small(device: torch.device) -> Network:
    data = images(128, 32, 10, device)
    return build("vgg_small", seed=0).to(device).eval(), data


def resnet50(device: torch.device) -> Network:
    from torchvision.models import resnet50

    torch.manual_seed(0)
    return resnet50().to(device).eval(), images(64, 224, 1000, device)


def vit(device: torch.device) -> Network:
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    data = images(32, 224, 10, device)
    return trained(vit_b_16(num_classes=10).to(device).eval(), data, 30, 1e-4), data


def gpt2(device: torch.device) -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    tokens = torch.randint(1000, (8, 513)).sort(dim=1).values.to(device)  # something to learn
    data = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager")).to(device).eval()
    return trained(model, data, 60, 3e-4), data


def language_model_head(device: torch.device) -> Network:
    """The last layer of that network as one of its own, on the features that reach it."""
    model, (tokens, targets) = gpt2(device)
    with torch.no_grad():
        features = model.transformer(tokens).last_hidden_state.flatten(0, 1)
    head = nn.Linear(*reversed(model.lm_head.weight.shape), bias=False, device=device)
    head.weight.data.copy_(model.lm_head.weight)
    return head.eval(), (features, targets.flatten())


def llama(device: torch.device) -> Network:
    """A Llama-shaped network with 1.2 billion weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokens = torch.randint(1000, (4, 513)).sort(dim=1).values.to(device)
    data = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    config = LlamaConfig(**shape, **heads, vocab_size=32000, attn_implementation="eager")
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    return trained(model, data, 30, 1e-4), data


def efficientnet(device: torch.device) -> Network:
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(0)
    model = EfficientNet.from_name("efficientnet-lite0").to(device).eval()
    return model, images(1000, 224, 1000, device)
