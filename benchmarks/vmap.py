"""64 perceptrons on digits: trained together by vmap, against one after another.

Training with an evaluation of all data each epoch, as in a study; measures are the same work in
both and left out. `work` is one after another, so the ratio is how many times faster vmap is.
"""

from __future__ import annotations

import torch
from harness import Ratio, compare

from spiritlevel.study import RunSettings, Study
from spiritlevel.study.runs.networks import NetworkRun
from spiritlevel.study.runs.running import train
from spiritlevel.study.runs.stacked import train_together

GOAL = 5.0
MEMBERS = 64
EPOCHS = 3


def population(hidden: int, batch_size: int) -> list[RunSettings]:
    return Study(
        "benchmark",
        model={"name": "mlp", "hidden": [hidden, hidden]},
        training={
            "epochs": EPOCHS,
            "batch_size": batch_size,
            "momentum": 0.9,
            "threads": torch.get_num_threads(),
        },
        grid={"lr": [0.01, 0.02, 0.05, 0.1], "weight_decay": [0.0, 1e-4, 5e-4, 1e-3]},
        seeds=MEMBERS // 16,
    ).runs()


def run(device: torch.device, repeats: int) -> list[Ratio]:
    rows = []
    for hidden, batch_size in ((32, 32), (64, 32), (128, 32)):
        members = population(hidden, batch_size)

        def one_after_another(members: list[RunSettings] = members) -> None:
            for settings in members:
                train(NetworkRun.start(settings, device))

        def together(members: list[RunSettings] = members) -> None:
            train_together(members, device)

        rows.append(
            compare(
                f"{MEMBERS} MLPs {hidden}-{hidden}, batch {batch_size}: alone over vmap",
                one_after_another,
                together,
                device=device,
                repeats=repeats,
                # Wider networks spend their time in products that vmap cannot make cheaper.
                goal=GOAL if hidden <= 64 else None,
                at_least=True,
                epochs=EPOCHS,
                members=MEMBERS,
                hidden=hidden,
                batch_size=batch_size,
            )
        )
        print(rows[-1])
    return rows
