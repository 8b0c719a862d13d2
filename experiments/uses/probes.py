"""How well probes choose units together, and predict what that costs, against all columns.

A language model that is small enough for both: the curvature of all units from every output, and
from 4 to 128 random probes with other signs for each seed. Sets of units are chosen by the terms
that the probes see, and judged by the exact ones. Writes experiments/results/uses/probes.json.

`python experiments/uses/probes.py`
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

import language
import torch
from networks import RESULTS
from summaries import compact, machine, mean_and_interval
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.results import Pruning
from spiritlevel.verbs.pruning import measuring

LENGTH, WIDTH, HIDDEN = 4, 24, 96
SAMPLES, EPOCHS = 100, 30
PROBES = (4, 8, 32, 128)
SHARES = (0.3, 0.5)
LAYERS = ["up", "down", "head"]


class NextByte(nn.Module):
    """Each position sees the mean of those before it; scores are (N, 256, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(language.BYTES, WIDTH)
        self.up, self.down = nn.Linear(2 * WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, language.BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next byte at every position."""
        x = self.tokens(tokens)
        before = x.cumsum(dim=1) / torch.arange(1, tokens.shape[1] + 1, device=x.device)[:, None]
        x = x + self.down(F.gelu(self.up(torch.cat([x, before], dim=2))))
        scores: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return scores


def train(x: Tensor, y: Tensor) -> nn.Module:
    """A few epochs of Adam."""
    torch.manual_seed(0)
    model = NextByte()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    return model.eval()


def curvature(exact: Pruning, units: dict[str, list[int]]) -> float:
    """½ Σ w_iᵀ GGN w_j over all pairs of some units, exactly."""
    names = [(name, j) for name, each in exact.second.items() for j in range(len(each))]
    gone = torch.tensor([float(j in units[name]) for name, j in names]).double()
    assert exact.gram is not None
    return 0.5 * float(gone @ exact.gram @ gone)


def main() -> None:
    """Compare, and write what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="sets of probes")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    asked = parser.parse_args()
    x, y = (each[:3000, :LENGTH].contiguous() for each in language.text("train"))
    model, data = train(x, y), (x[:SAMPLES], y[:SAMPLES])
    exact = sl.pruning(model, data, layers=LAYERS, check=False)
    best = {share: curvature(exact, exact.choose(share, by="joint").units) for share in SHARES}
    measuring.MOST_COLUMNS = 0  # the same network by probes
    rows = []
    for num_probes in PROBES:
        for seed in range(asked.seeds):
            found = sl.pruning(
                model, data, layers=LAYERS, check=False, num_probes=num_probes, seed=seed
            )
            for share in SHARES:
                rows.append(compared(found, exact, share, best[share]) | {"seed": seed})
        print(num_probes, "probes", flush=True)
    write(asked.results / "probes.json", rows, sum(map(len, exact.second.values())))


def compared(found: Pruning, exact: Pruning, share: float, best: float) -> dict[str, Any]:
    """A joint choice of one set of probes, and one by ½ρ(j) alone."""
    joint, alone = (found.choose(share, by=rule) for rule in ("joint", "curvature"))
    slope = sum(float(exact.first[name][gone].sum()) for name, gone in joint.units.items())
    truth = curvature(exact, joint.units)
    assert joint.rise is not None
    assert joint.stderr is not None
    return {
        "num_probes": found.settings["num_probes"],
        "share": share,
        "joint_over_best": truth / best,
        "alone_over_best": curvature(exact, alone.units) / best,
        "predicted_over_true": (joint.rise - slope) / truth,
        "gap_over_stderr": (joint.rise - slope - truth) / joint.stderr,
    }


def write(path: pathlib.Path, rows: list[dict[str, Any]], num_units: int) -> None:
    """All rows, and their means by number of probes."""
    summary = {}
    for num_probes in PROBES:
        own = [row for row in rows if row["num_probes"] == num_probes]
        gaps = [abs(row["gap_over_stderr"]) for row in own]
        summary[str(num_probes)] = {
            **{
                key: mean_and_interval([row[key] for row in own])
                for key in ("joint_over_best", "alone_over_best", "predicted_over_true")
            },
            "within_two_errors": sum(gap <= 2 for gap in gaps) / len(gaps),
        }
    result = {
        "what": (__doc__ or "").splitlines()[0],
        "samples": SAMPLES,
        "units": num_units,
        "machine": machine(),
        "summary": summary,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(compact(result), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
