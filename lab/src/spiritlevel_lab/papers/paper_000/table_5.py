"""Paper 000, Table 5: does flatness of the head follow the gap in other networks too?"""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import group_points
from ...claims.findings import above, estimate, verdict
from ...claims.population import (
    CONFOUNDERS,
    FEW,
    GAP,
    REACHED,
    squared,
    why,
)
from ...claims.rows import column
from ...claims.trained import LEARNED_LOSS, Limit, Trained
from ...statistics import partial_correlation, regression
from ..experiment import (
    Cell,
    Experiment,
    Outcome,
    Row,
    Table,
)
from ..scale_text import ScaleTexts

HEAD = "head.kappa"
NETWORKS = {"vgg16": "VGG-16", "densenet121": "DenseNet-121"}  # the paper's
OURS = {"vgg16": "VGG-16", "densenet121": "DenseNet"}  # the scale says how deep
PAPER = {
    "Pearson, VGG-16": 0.076,
    "Spearman, VGG-16": 0.118,
    "R², VGG-16": 0.006,
    "Pearson, DenseNet-121": 0.491,
    "Spearman, DenseNet-121": 0.443,
    "R², DenseNet-121": 0.242,
}


def analyse(rows: Sequence[Row]) -> Outcome:
    """The correlations for each architecture, and what is left with the confounders held fixed."""
    groups = {name: [row for row in rows if row["variant"] == name] for name in NETWORKS}
    lines = {
        name: regression(column(group, HEAD), column(group, GAP)) for name, group in groups.items()
    }
    ranks = {name: line.spearman for name, line in lines.items()}
    table: list[list[Cell]] = [_row(name, group) for name, group in groups.items()]
    findings = [
        above(
            f"in {OURS[name]}, flatness of the head rises with the gap (Spearman correlation)",
            rank,
            paper=PAPER[f"Spearman, {NETWORKS[name]}"],
        )
        for name, rank in ranks.items()
    ]
    return Outcome(
        table=Table(
            (
                *("network", "n", "Pearson", "Pearson, logarithm of flatness", "Spearman"),
                "Spearman, confounders held fixed",
            ),
            table,
        ),
        figure=group_points(
            {OURS[name]: group for name, group in groups.items()},
            HEAD,
            GAP,
            HEAD,
            "generalization gap",
        ),
        beside={
            f"{kind}, {NETWORKS[name]}": each
            for name, line in lines.items()
            for kind, each in {
                "Pearson": estimate(line.pearson),
                "Spearman": estimate(line.spearman),
                "R²": squared(line.pearson),
            }.items()
        },
        why=" ".join(
            f"{OURS[name]}: {why(group, HEAD, 'relative flatness of the head')}"
            for name, group in groups.items()
            if len(group) >= FEW
        ),
        findings=findings,
        agrees=verdict(findings),
        conclusion=(
            "The rank correlation of the head's relative flatness with the gap is "
            + " and ".join(
                f"{rank} for {OURS[name]} (n = {rank.n})" for name, rank in ranks.items()
            )
            + "."
        ),
    )


def _row(name: str, group: Sequence[Row]) -> list[Cell]:
    values, gap = column(group, HEAD), column(group, GAP)
    line, of_logarithm = regression(values, gap), regression(values, gap, log=True)
    confounders = {name: column(group, name) for name in CONFOUNDERS}
    left = partial_correlation(values, gap, confounders, kind="spearman")
    shown = (line.pearson, of_logarithm.pearson, line.spearman, left)
    return [OURS[name], len(group), *(estimate(each) for each in shown)]


EXPERIMENT = Experiment(
    name="000-table-5",
    title="VGG-16 and DenseNet: flatness of the head and the gap",
    source="Table 5",
    claim=(
        "Relative flatness of the convolutional head correlates positively with the "
        "generalization gap in VGG-16 and DenseNet-121 too."
    ),
    analyse=analyse,
    trained=Trained(
        (Limit("train_loss", at_most=LEARNED_LOSS),),
        "The loss of a guess among ten classes is 2.3: a network at that loss is at no minimum.",
        needed=FEW,
        by="variant",
    ),
    columns=(
        *(
            "outcome",
            "variant",
            "optimizer",
            "lr",
            "batch_size",
            "seed",
            *REACHED,
            *CONFOUNDERS,
            HEAD,
        ),
    ),
    rule=(
        "the 95 % interval of Spearman's correlation lies above 0 for both networks. Partly, if it "
        "does for one. By this rule the paper's own 0.118 for VGG-16 would not count for any "
        "number of runs below about 280."
    ),
    set_up=(
        "VGG-16 and DenseNet-121 with a 1×1 convolution and global average pooling as the head, on "
        "CIFAR-10, with SGD and AdamW at learning rates 0.001, 0.005, 0.01 and 0.05 and batches of "
        "32, 64 and 128. BatchNorm in VGG-16 and momentum 0.9 are our choice. The appendix, where "
        "Fig. 8 is, varies the weight decay too and gives no values: here it is 0. That figure has "
        "a page of its own on the same networks, 000-fig-8."
    ),
    scaled_down=ScaleTexts(
        "000-table-5",
        {
            "": (
                "VGG-16 of width {variants[vgg16].model.width} instead of 64. What is called "
                "DenseNet here is a small one, with blocks of "
                "{variants[densenet121].model.blocks} layers and growth "
                "{variants[densenet121].model.growth}, instead of DenseNet-121. {data.samples} "
                "images, {training.epochs} epochs, batches of {grid.batch_size}, measured on "
                "{measure_options.samples} images; random initial weights."
            ),
            "quick": (
                "The same small networks with rates of {grid.lr} and batches of "
                "{grid.batch_size} only: a trial."
            ),
            "small-trained": (
                "The same small networks on {data.samples} images, at most {training.epochs} "
                "epochs, to a training accuracy of {stop.train_accuracy}: minima of few images."
            ),
            "paper": (
                "Random initial weights, {training.epochs} epochs, measured on "
                "{measure_options.samples} of the {data.samples} images. The paper gives the "
                "number neither of epochs nor of runs."
            ),
            "h200": (
                "{data.samples} images, batches of {grid.batch_size}, {training.epochs} epochs, "
                "measured on {measure_options.samples} of the images; random initial weights."
            ),
            "h200-trained": (
                "{data.samples} images, batches of {grid.batch_size}, at most {training.epochs} "
                "epochs, to a training accuracy of {stop.train_accuracy}, "
                "measured on {measure_options.samples} of the images; random initial weights."
            ),
            "h200-narrow": (
                "VGG-16 of width {variants[vgg16].model.width} instead of 64 and DenseNet-121 of "
                "growth {variants[densenet121].model.growth} instead of 32; {data.samples} images, "
                "batches of {grid.batch_size}, at most {training.epochs} epochs, to a training "
                "accuracy of {stop.train_accuracy}, measured on {measure_options.samples} of the "
                "images; random initial weights."
            ),
        },
    ),
    measures=(HEAD,),
    paper_values=PAPER,
)
