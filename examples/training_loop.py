"""Monitor flatness in a plain training loop and stop when it has settled.

Run it with `python examples/training_loop.py`.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spiritlevel.inputs import build, load
from spiritlevel.training import FlatnessMonitor, FlatnessStopping


def main() -> None:
    """Train on the digits until κ changes by less than 10 % per epoch."""
    torch.manual_seed(0)
    x, y = load("digits", "train")
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    model = build("digits_cnn", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    # always the same 128 samples; max_overhead=0.05 would limit it to 5 % of the training time
    monitor = FlatnessMonitor(model, loader, measures=["head.kappa", "head.trace"], num_samples=128)
    stopping = FlatnessStopping(rule="trend", patience=10, tolerance=0.1)

    for epoch in range(30):
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            monitor.step()
        row = monitor.epoch_end()
        assert row is not None  # it is None if the epoch was not measured
        print(f"epoch {epoch}: head.kappa {row['head.kappa']:.4g} in {row['seconds']:.3f} s")
        if stopping.update(epoch=epoch, flatness=row["head.kappa"]):
            print("stopped:", stopping.reason)
            break

    assert all(row["status"] == "ok" for row in monitor.rows)
    assert len(monitor.rows) >= 10  # the rule never stops before `patience` epochs
    assert model.training  # still in training mode, as the loop left it


if __name__ == "__main__":
    main()
