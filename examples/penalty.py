"""Train with a flatness penalty: the same network ends in a flatter minimum.

Run it with `python examples/penalty.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.inputs import build, digits

EPOCHS, BATCH = 15, 64


def train(weight: float) -> tuple[float, float]:
    """Train with this weight; return Tr(H²) on the training data and the test accuracy."""
    model = build("mlp", seed=0, hidden=(32,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    directions = torch.Generator().manual_seed(0)
    penalty = sl.FlatnessPenalty(model, weight, every=4, generator=directions)  # one step in four
    x, y = digits("train", flat=True)
    shuffle = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(x), generator=shuffle).split(BATCH):
            inputs, targets = x[index], y[index]
            with penalty.shared_forward():  # simpler but slower: + penalty(inputs, targets)
                loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            (loss + penalty(inputs, targets, loss=loss)).backward()
            optimizer.step()
    model.eval()
    report = sl.measure(model, (x, y), measures="curvature.trace_squared", rtol=0.1)
    x, y = digits("test", flat=True)
    accuracy = (model(x).argmax(dim=1) == y).float().mean().item()
    return report["curvature.trace_squared"].value, accuracy


def main() -> None:
    """Compare training with and without the penalty."""
    plain, plain_accuracy = train(0.0)
    flat, flat_accuracy = train(0.1)
    print(f"without the penalty: Tr(H²) = {plain:8.2f}, test accuracy {plain_accuracy:.1%}")
    print(f"with the penalty:    Tr(H²) = {flat:8.2f}, test accuracy {flat_accuracy:.1%}")
    assert flat < 0.5 * plain
    assert flat_accuracy > plain_accuracy - 0.03


if __name__ == "__main__":
    main()
