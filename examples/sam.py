"""Train with sharpness-aware minimization: a plain loop with one new line.

Run it with `python examples/sam.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.inputs import digits
from spiritlevel.training import SAM


def train(x: Tensor, y: Tensor, *, rho: float) -> nn.Module:
    """Train from the same start on the same batches, whatever the radius; 0 is plain SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=rho)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for _ in range(40):
        for batch in torch.randperm(len(x)).split(64):
            for _ in optimizer.passes():  # new: at the weights, then at the perturbed ones
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        scheduler.step()
    return model.eval()


def main() -> None:
    """Check that SAM finds a flatter minimum without losing test accuracy."""
    x, y = digits("train", flat=True)
    new_x, new_y = digits("test", flat=True)
    curvature, accuracy = {}, {}
    for rho in (0.0, 0.2):
        model = train(x, y, rho=rho)
        report = sl.measure(model, (x, y), measures=["curvature.lambda_max"])
        curvature[rho] = report["curvature.lambda_max"].value
        accuracy[rho] = float((model(new_x).argmax(1) == new_y).float().mean())
        print(f"rho {rho}: lambda_max {curvature[rho]:.3g}, test accuracy {accuracy[rho]:.1%}")

    assert curvature[0.2] < curvature[0.0] / 2
    assert accuracy[0.2] > accuracy[0.0] - 0.01


if __name__ == "__main__":
    main()
