"""Measure your own network: any module, any loader, any way of calling it.

Run it with `python examples/measure_your_own.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl


class TwoInputs(nn.Module):
    """A network with two inputs, which a plain loader of (x, y) cannot feed."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 8), nn.Linear(3, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Combine both inputs in one hidden layer."""
        return self.head(torch.relu(self.left(a) + self.right(b)))


def call(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pass a batch through the network; return outputs and targets."""
    a, b, y = batch
    return model(a, b), y


def main() -> None:
    """Measure, find the sharpest layer, and check that the network was not changed."""
    torch.manual_seed(0)
    model = TwoInputs().eval()
    data = TensorDataset(torch.randn(100, 5), torch.randn(100, 3), torch.randint(0, 4, (100,)))
    loader = DataLoader(data, batch_size=32)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    report = sl.measure(model, loader, forward=call, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    print(report)
    kappa = report.layers["relative.kappa"]
    print("the sharpest layer is", max(kappa, key=lambda layer: kappa[layer].value))

    assert report["curvature.trace"].exact  # ReLU: certified to be the Hessian's trace
    parts = sum(m.value for m in report.layers["curvature.trace"].values())
    assert abs(parts - report["curvature.trace"].value) < 1e-6 * parts
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


if __name__ == "__main__":
    main()
