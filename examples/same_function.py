"""One function, written with other weights: which numbers notice?

A trained ReLU network computes the same when one layer is multiplied by α and the next divided by
it. The loss looks steeper around the new weights all the same, and the trace of the Hessian says
so; relative flatness does not change. Run it with `python examples/same_function.py [--plot FILE]`.
"""

from __future__ import annotations

import argparse
import copy
import pathlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import digits, mlp
from spiritlevel.pages.figures import COLOURS, LINES, new_figure, save

FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)
DRAWN = (1.0, 8.0, 16.0)  # of them, in the picture of the loss
MEASURES = {
    "curvature.trace": "trace of the Hessian",
    "relative.kappa": "relative flatness κ",
    "neuron.rho_sum": "neuron-wise flatness ρ",
}
STEPS = torch.linspace(-2, 2, 41)


def trained() -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A network with two hidden layers, and the digits that it has learned."""
    torch.manual_seed(0)
    x, y = digits("train")
    model = mlp(hidden=(32, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(15):
        for index in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    return model.eval(), (x, y)


@torch.no_grad()
def rescaled(model: nn.Sequential, factor: float) -> nn.Sequential:
    """The same function: the first layer times the factor, the weights of the second over it."""
    other = copy.deepcopy(model)
    other.fc1.weight *= factor
    other.fc1.bias *= factor
    other.fc2.weight /= factor
    return other


@torch.no_grad()
def profile(model: nn.Sequential, data: tuple[Tensor, Tensor]) -> list[float]:
    """The loss along one random direction of length 1, the same for all networks."""
    generator = torch.Generator().manual_seed(1)
    walker = copy.deepcopy(model)
    start = nn.utils.parameters_to_vector(model.parameters())
    direction = torch.randn(len(start), generator=generator)
    direction /= direction.norm()
    losses = []
    for step in STEPS:
        nn.utils.vector_to_parameters(start + step * direction, walker.parameters())
        losses.append(float(F.cross_entropy(walker(data[0]), data[1])))
    return losses


def draw(losses: dict[float, list[float]], found: dict[str, list[float]]) -> bytes:
    """The loss around each network, and what the measures say about it."""
    figure = new_figure(6.8, 2.7)
    left, right = figure.subplots(1, 2)
    for i, (factor, values) in enumerate(losses.items()):
        left.plot(STEPS, values, color=COLOURS[i], linewidth=2, label=f"α = {factor:g}")
    left.set_xlabel("distance from the weights, one direction")
    left.set_ylabel("loss")
    left.set_title("one function, three ways to write it", fontsize=10, loc="left")
    left.legend(frameon=False)
    for (name, values), (colour, dashes, width) in zip(found.items(), LINES[1:], strict=True):
        style = {"color": colour, "linestyle": dashes, "linewidth": width, "zorder": 9 - width}
        right.plot(FACTORS, [v / values[0] for v in values], label=MEASURES[name], **style)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    right.set_yticks((1, 10, 100), ("× 1", "× 10", "× 100"))
    right.minorticks_off()
    right.set_xlabel("α: first layer × α, second layer ÷ α")
    right.set_title("what the measures say (1 at α = 1)", fontsize=10, loc="left")
    right.legend(frameon=False)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return save(figure, "png")


def main() -> None:
    """Print what each measure says of the same function, and draw it if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=pathlib.Path)
    asked = parser.parse_args()
    model, data = trained()
    networks = {factor: rescaled(model, factor) for factor in FACTORS}
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    for factor, network in networks.items():
        assert torch.allclose(network(data[0]), model(data[0]), rtol=1e-3, atol=1e-4)
        report = sl.measure(network, data, measures=list(MEASURES))
        for name, values in found.items():
            values.append(report[name].value)
        print(f"α = {factor:4g}: " + ", ".join(f"{n} {v[-1]:.4g}" for n, v in found.items()))
    for name in ("relative.kappa", "neuron.rho_sum"):
        assert max(found[name]) < 1.001 * min(found[name])  # float32
    assert max(found["curvature.trace"]) > 10 * min(found["curvature.trace"])
    if asked.plot is not None:
        losses = {factor: profile(networks[factor], data) for factor in DRAWN}
        asked.plot.write_bytes(draw(losses, found))


if __name__ == "__main__":
    main()
