"""How flat fine-tuned networks are, and what lies between two of them: LoRA against all weights.

A perceptron learns the digits of the package. From there it is fine-tuned on the same images
mirrored along their diagonal, until the training loss is low: with LoRA of several ranks on every
layer, or in all weight matrices. Measured: κ and the trace of the merged weights, also at equal
confidence; and, between two fine-tunes from one base, the barrier in the space of the merged
weights and in that of the adapters. Writes experiments/results/uses/fine_tuning.json.

`python experiments/uses/fine_tuning.py` (needs peft)
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import pathlib
import time
from typing import Any

import peft
import torch
from summaries import compact, machine, mean_and_interval
from torch import Tensor, nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import build, digits
from spiritlevel.pages.figures import COLOURS, GREY, MARKERS, log_scale, new_figure, save
from spiritlevel.verbs.comparison.measuring import equally_confident

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "uses"
RANKS = (1, 2, 4, 8)
KINDS = (*(f"rank {rank}" for rank in RANKS), "all weights")
MEASURES = ["relative.kappa", "curvature.trace", "softmax.gini"]
ENOUGH, EPOCHS = 0.05, 200  # the training loss at which to stop, and when to give up
RATES = {"lora": 5e-3, "all": 1e-3}

Data = tuple[Tensor, Tensor]


def fit(model: nn.Module, data: Data, *, rate: float, seed: int, epochs: int, enough: float) -> int:
    """Train in place with Adam; how many epochs it took."""
    generator = torch.Generator().manual_seed(seed)
    x, y = data
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    taken = 0
    while taken < epochs:
        taken += 1
        for index in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
        with torch.no_grad():
            if float(F.cross_entropy(model(x), y)) <= enough:
                break
    return taken


def accuracy(model: nn.Module, data: Data) -> float:
    """The share of images that are recognized."""
    with torch.no_grad():
        return float((model(data[0]).argmax(dim=1) == data[1]).float().mean())


def mirrored(data: Data) -> Data:
    """The images with rows and columns exchanged."""
    return data[0].transpose(2, 3).contiguous(), data[1]


def fine_tuned(base: nn.Module, kind: str, data: Data, seed: int) -> tuple[nn.Module, int]:
    """A copy of the base, fine-tuned: a network with adapters, or a plain one."""
    model = copy.deepcopy(base)
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    torch.manual_seed(seed)
    if kind == "all weights":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("weight"))  # LoRA leaves biases alone too
        rate = RATES["all"]
    else:
        rank = int(kind.removeprefix("rank "))
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers)
        model = peft.get_peft_model(model, config)
        rate = RATES["lora"]
    epochs = fit(model, data, rate=rate, seed=seed, epochs=EPOCHS, enough=ENOUGH)
    return model.eval(), epochs


def plain(model: nn.Module) -> nn.Module:
    """The network as plain layers."""
    return sl.merged(model) if isinstance(model, peft.PeftModel) else model


def distance(model: nn.Module, base: nn.Module) -> float:
    """Of the weight matrices from those of the base."""
    weights = dict(base.named_parameters())
    moved = [p - weights[n] for n, p in model.named_parameters() if n.endswith("weight")]
    return float(torch.stack([part.detach().norm() for part in moved]).norm())


def one_seed(seed: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Two fine-tunes of every kind from one base, and the lines between them."""
    start = time.perf_counter()
    before = [digits(split) for split in ("train", "test")]
    data, test = map(mirrored, before)
    base = build("mlp", seed=seed, hidden=(64, 64)).train()
    fit(base, before[0], rate=1e-3, seed=seed, epochs=30, enough=0.01)
    base.eval()
    tuned, rows, lines = {}, [], []
    for kind, run in itertools.product(kinds, range(2)):
        model, epochs = fine_tuned(base, kind, data, seed=100 * seed + run)
        tuned[kind, run] = model
        network = plain(model)
        report = sl.measure(network, data, measures=MEASURES)
        rows.append(
            {
                "kind": kind,
                "run": run,
                "epochs": epochs,
                "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
                "accuracy": accuracy(model, data),
                "test_accuracy": accuracy(model, test),
                "distance": distance(network, base),
                **{name: report[name].value for name in MEASURES},
                "exact": all(report[name].exact for name in MEASURES),
                "adapter_trace": sl.measure(model, data, measures="curvature.trace")[
                    "curvature.trace"
                ].value,
            }
        )
    networks = {f"{kind}/{run}": plain(model) for (kind, run), model in tuned.items()}
    equal = equally_confident(networks, data)
    for row in rows:
        report = sl.measure(equal[f"{row['kind']}/{row['run']}"], data, measures="relative.kappa")
        row["equal_kappa"] = report["relative.kappa"].value
    for kind in kinds:
        ends = [tuned[kind, run] for run in range(2)]
        line = {"kind": kind}
        for space, (one, two) in {"weights": map(plain, ends), "adapters": ends}.items():
            found = sl.landscape(one, data, to=two, points=11, reach=0.0)
            line[f"{space}_barrier"] = found.barrier
            line[f"{space}_losses"] = list(found.losses)
            if space == "weights":
                found = sl.landscape(
                    one, data, to=two, points=3, reach=0.0, measures="relative.kappa"
                )
                first, middle, last = found.values("relative.kappa")
                line["kappa"] = [first, middle, last]
        lines.append(line)
    return {
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "base_accuracy": {"digits": accuracy(base, before[1]), "mirrored": accuracy(base, test)},
        "rows": rows,
        "lines": lines,
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over bases (of two runs each) with 95 % intervals."""
    out: dict[str, Any] = {"n": len(found)}
    for kind in dict.fromkeys(row["kind"] for row in found[0]["rows"]):
        keys = ("epochs", "trained", "accuracy", "test_accuracy", "distance", *MEASURES)
        own: dict[str, Any] = {}
        for key in (*keys, "adapter_trace", "equal_kappa"):
            pairs = [[r[key] for r in each["rows"] if r["kind"] == kind] for each in found]
            own[key] = mean_and_interval([sum(pair) / len(pair) for pair in pairs])
        lines = [next(r for r in each["lines"] if r["kind"] == kind) for each in found]
        for key in ("weights_barrier", "adapters_barrier"):
            own[key] = mean_and_interval([line[key] for line in lines])
        middles = [line["kappa"][1] / ((line["kappa"][0] + line["kappa"][2]) / 2) for line in lines]
        own["kappa_in_the_middle_over_ends"] = mean_and_interval(middles)
        out[kind] = own
    return out


def draw(found: list[dict[str, Any]]) -> bytes:
    """Barriers of all bases by rank, and κ of the merged weights."""
    kinds = list(dict.fromkeys(row["kind"] for row in found[0]["rows"]))
    means = summary(found)
    figure = new_figure(7.4, 3.0)
    left, right = figure.subplots(1, 2)
    panels = {
        left: (("weights_barrier", "merged weights"), ("adapters_barrier", "adapters")),
        right: (("relative.kappa", "as trained"), ("equal_kappa", "at equal confidence")),
    }
    for ax, series in panels.items():
        for i, (key, label) in enumerate(series):
            shown = kinds[:-1] if key == "adapters_barrier" else kinds
            values = [means[kind][key] for kind in shown]
            ax.errorbar(
                [kinds.index(kind) + 0.08 * (i - 0.5) for kind in shown],
                [each["mean"] for each in values],
                [each["half_width"] or 0.0 for each in values],
                label=label,
                color=COLOURS[i],
                marker=MARKERS[i],
                markersize=4,
                capsize=2,
                linestyle="",
            )
        ax.set_xticks(range(len(kinds)), [kind.replace(" ", "\n") for kind in kinds], fontsize=7)
        ax.tick_params(axis="y", labelsize=7)
        ax.legend(frameon=False, fontsize=7)
    left.axhline(0.0, color=GREY, linewidth=0.6)
    left.set_title("barrier between two fine-tunes", fontsize=8.5, loc="left")
    right.set_title("κ of the merged weights", fontsize=8.5, loc="left")
    log_scale(right, "y", decades=1.5)
    return save(figure, "png")


def main() -> None:
    """Run the seeds that were asked for, and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--quick", action="store_true", help="one rank only, for a test")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    parser.add_argument("--plot", type=pathlib.Path, help="draw the result, as .png")
    asked = parser.parse_args()
    found = []
    for seed in asked.seeds:
        found.append(one_seed(seed, KINDS[-2:] if asked.quick else KINDS))
        print(f"seed {seed}: {found[-1]['seconds']:.0f} s", flush=True)
        result = {
            "what": (__doc__ or "").splitlines()[0],
            "machine": machine() | {"peft": peft.__version__},
            "summary": summary(found),
            "bases": found,
        }
        path = asked.results / f"{pathlib.Path(__file__).stem}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(compact(result), separators=(",", ":")) + "\n"
        path.write_text(text, encoding="utf-8")
    if asked.plot is not None:
        asked.plot.write_bytes(draw(found))


if __name__ == "__main__":
    main()
