"""Plain chains of layers, and random numbers and labels for them, the same each time."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn


def random(*shape, seed=0, dtype=torch.float64):
    """Drawn in float64 whatever the type, so that precisions differ by rounding alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def classes(n, num, seed=0):
    return torch.randint(num, (n,), generator=torch.Generator().manual_seed(seed))


def network(activation=nn.Tanh, sizes=(4, 5, 3), *, seed=0, bias=True):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        i, h, o = sizes
        net = nn.Sequential(nn.Linear(i, h, bias=bias), activation(), nn.Linear(h, o, bias=bias))
    return net.double().eval()


def after_training(net, x, y, steps):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    net.zero_grad(set_to_none=True)
    return net


def mlp(sizes, activation, generator):
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return drawn(nn.Sequential(*layers[:-1]), generator)


def drawn(model, generator):
    model = model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
            p.mul_(max(p[0].numel(), 2) ** -0.5)
    return model


def convnet(generator):
    return drawn(
        nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(3, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        generator,
    )


def normal(*shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def linear_head(T, C, d, *, bias=True, dtype=torch.float64, seed=0):
    """Features of T tokens, and weight and bias of C classes on d features."""
    features, weight = random(T, d, seed=seed), random(C, d, seed=seed + 1) + 0.5
    b = random(C, seed=seed + 2).to(dtype) if bias else None
    return features.to(dtype), weight.to(dtype), b
