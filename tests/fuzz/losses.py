"""The losses of the fuzzer: what a user passes, and the same over all data by plain torch."""

from __future__ import annotations

import dataclasses

CLASSES = 3
WEIGHTS = "torch.tensor([0.5, 1.0, 4.0], dtype=dtype)"

LABELS = "torch.randint({C}, {rows}, generator=g)"
SOME_IGNORED = "torch.randint({C}, {rows}, generator=g).index_fill(0, torch.tensor([0]), -100)"
PROBABILITIES = "torch.randn({cells}, generator=g, dtype=torch.float64).softmax(dim=-1)"
NUMBERS = "torch.randn({cells}, generator=g, dtype=torch.float64)"
POSITIVE = "torch.rand({cells}, generator=g, dtype=torch.float64) * 3"
BITS = "torch.randint(2, {cells}, generator=g).double()"
SIGNS = "torch.randint(2, {cells}, generator=g).double() * 2 - 1"

LOG = "nn.LogSoftmax(dim=-1)"
FLAT = "(z.flatten(0, -2), y.flatten())"
UNUSUAL = "it reduces in its own way"


@dataclasses.dataclass(frozen=True)
class Loss:
    """`truth` is a function of all outputs `z` and targets `y`; `last` ends the network.

    `tokens`: it also takes outputs of shape (N, T, C).
    """

    given: str
    truth: str
    targets: str
    last: str = ""
    tokens: bool = False
    odd: str = ""


def module(name: str, arguments: str, targets: str, last: str = "", odd: str = "") -> Loss:
    """A loss module of torch, which is its own truth."""
    given = f"nn.{name}({arguments})"
    return Loss(given, f"nn.{name}({arguments})(z, y)", targets, last, odd=odd)


def tokens(given: str, arguments: str, targets: str) -> Loss:
    """A cross-entropy, the classes last."""
    return Loss(given, f"F.cross_entropy(*{FLAT}{arguments})", targets, tokens=True)


LOSSES: dict[str, Loss] = {
    "cross_entropy": tokens("'cross_entropy'", "", LABELS),
    "mse": Loss("'mse'", "F.mse_loss(z, y)", NUMBERS, tokens=True),
    "bce": Loss("'bce'", "F.binary_cross_entropy_with_logits(z, y)", BITS, tokens=True),
    "cross_entropy_module": tokens("nn.CrossEntropyLoss()", "", LABELS),
    "class_weights": tokens(
        f"nn.CrossEntropyLoss(weight={WEIGHTS})", f", weight={WEIGHTS}.to(z)", LABELS
    ),
    "smoothing": tokens(
        "nn.CrossEntropyLoss(label_smoothing=0.2)", ", label_smoothing=0.2", LABELS
    ),
    "ignored": tokens("'cross_entropy'", "", SOME_IGNORED),
    "ignore_index": tokens(
        f"nn.CrossEntropyLoss(weight={WEIGHTS}, ignore_index=1)",
        f", weight={WEIGHTS}.to(z), ignore_index=1",
        LABELS,
    ),
    "soft_targets": module("CrossEntropyLoss", "", PROBABILITIES),
    "unreduced": Loss("nn.CrossEntropyLoss(reduction='none')", "F.cross_entropy(z, y)", LABELS),
    "summed": Loss(
        "nn.MSELoss(reduction='sum')",
        "F.mse_loss(z, y, reduction='sum')",
        NUMBERS,
        odd="a sum over samples is not a mean",
    ),
    "mse_module": module("MSELoss", "", NUMBERS),
    "bce_weights": Loss(
        f"nn.BCEWithLogitsLoss(pos_weight={WEIGHTS})",
        f"F.binary_cross_entropy_with_logits(z, y, pos_weight={WEIGHTS}.to(z))",
        BITS,
    ),
    "bce_probabilities": module("BCELoss", "", BITS, "nn.Sigmoid()"),
    "nll": module("NLLLoss", "", LABELS, LOG),
    "nll_weights": Loss(
        f"nn.NLLLoss(weight={WEIGHTS})",
        f"F.nll_loss(z, y, weight={WEIGHTS}.to(z))",
        LABELS,
        LOG,
        odd=UNUSUAL,
    ),
    "nll_ignored": module("NLLLoss", "", SOME_IGNORED, LOG, UNUSUAL),
    "nll_ignore_index": module("NLLLoss", "ignore_index=1", LABELS, LOG, UNUSUAL),
    "kl": module("KLDivLoss", "", PROBABILITIES, LOG, UNUSUAL),
    "kl_batchmean": module("KLDivLoss", "reduction='batchmean'", PROBABILITIES, LOG, UNUSUAL),
    "poisson": module("PoissonNLLLoss", "", POSITIVE),
    "huber": module("HuberLoss", "delta=0.7", NUMBERS),
    "smooth_l1": module("SmoothL1Loss", "beta=0.5", NUMBERS),
    "l1": module("L1Loss", "", NUMBERS),
    "soft_margin": module("SoftMarginLoss", "", SIGNS),
    "multi_margin": module("MultiMarginLoss", "p=2", LABELS, odd=UNUSUAL),
    "multi_label_soft_margin": module("MultiLabelSoftMarginLoss", "", BITS),
    "hinge_embedding": module("HingeEmbeddingLoss", "", SIGNS),
    "focal": Loss("Focal()", "Focal()(z, y)", LABELS, odd=UNUSUAL),
    "plain_subclass_loss": Loss("PlainCrossEntropy()", "F.cross_entropy(z, y)", LABELS),
    "quartic": Loss("QuarticError()", "QuarticError()(z, y)", NUMBERS, odd=UNUSUAL),
    "own_module": Loss("OwnModule()", "OwnModule()(z, y).mean()", NUMBERS),
    "own_mean": Loss("OwnMean()", "OwnMean()(z, y)", NUMBERS, odd=UNUSUAL),
    "saddle": Loss("saddle", "saddle(z, y).mean()", NUMBERS),
    "elementwise": Loss("elementwise", "elementwise(z, y).mean()", NUMBERS),
    "linear_loss": Loss("linear", "linear(z, y).mean()", NUMBERS),
    "scalar": Loss("scalar", "scalar(z, y)", NUMBERS, odd="one value where each sample has one"),
    "contrastive": Loss(
        "contrastive", "contrastive(z, y).mean()", NUMBERS, odd="samples interact in it"
    ),
    "weighted_function": Loss("weighted", "weighted(z, y).mean()", LABELS),
}
MASKED = ("cross_entropy", "mse", "bce")  # those that take a mask
LEADABLE = ("cross_entropy", "cross_entropy_module")  # those that confident networks are drawn for
LED = "led(z)"  # their mean where every label is 0
