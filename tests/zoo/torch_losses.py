"""Every loss of torch that takes outputs and targets, with each of its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

CLASSES = 3
WEIGHTS = torch.tensor([0.5, 1.0, 4.0])  # float32, as users have them beside float64 outputs


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss module, what makes valid outputs of scores, and targets from a generator."""

    module: nn.Module
    targets: Callable[[int, torch.Generator], Tensor]
    last: nn.Module = dataclasses.field(default_factory=nn.Identity)
    is_smooth: bool = True  # torch has its second derivative

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The module's own mean; the plain mean of what it returns with reduction='none'."""
        module = type(self.module).__new__(type(self.module))
        module.__dict__.update(self.module.__dict__)
        module._buffers = {k: v if v is None else v.to(outputs) for k, v in module._buffers.items()}
        return module(outputs, targets).mean()


def _labels(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(CLASSES, (count,), generator=generator)


def _some_ignored(count: int, generator: torch.Generator) -> Tensor:
    return _labels(count, generator).index_fill(0, torch.arange(0, count, 3), -100)


def _label_lists(count: int, generator: torch.Generator) -> Tensor:
    possible = torch.tensor([[0, 2, -1], [1, -1, 0], [2, -1, -1], [0, 1, 2], [-1, 1, 1]])
    return possible[torch.randint(len(possible), (count,), generator=generator)]


def _normal(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, CLASSES, generator=generator, dtype=torch.float64)


def _binary(count: int, generator: torch.Generator) -> Tensor:
    return (_normal(count, generator) > 0).double()


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return 2 * _binary(count, generator) - 1


def _probabilities(count: int, generator: torch.Generator) -> Tensor:
    return _normal(count, generator).softmax(dim=1)


def _log_probabilities(count: int, generator: torch.Generator) -> Tensor:
    return _normal(count, generator).log_softmax(dim=1)


def _counts(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(5, (count, CLASSES), generator=generator).double()


LOG, SIGMOID = nn.LogSoftmax(dim=1), nn.Sigmoid()

CASES = {
    "cross_entropy": Case(nn.CrossEntropyLoss(), _labels),
    "cross_entropy none": Case(nn.CrossEntropyLoss(reduction="none"), _labels),
    "cross_entropy everything": Case(
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2), _some_ignored
    ),
    "cross_entropy ignores a class": Case(
        nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=1), _labels
    ),
    "cross_entropy soft": Case(
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2), _probabilities
    ),
    "nll": Case(nn.NLLLoss(), _labels, LOG),
    "nll weights": Case(nn.NLLLoss(weight=WEIGHTS), _labels, LOG),
    "nll ignored": Case(nn.NLLLoss(), _some_ignored, LOG),
    "nll weights and ignored": Case(nn.NLLLoss(weight=WEIGHTS), _some_ignored, LOG),
    "nll ignores a class": Case(nn.NLLLoss(weight=WEIGHTS, ignore_index=1), _labels, LOG),
    "kl mean": Case(nn.KLDivLoss(reduction="mean"), _probabilities, LOG),
    "kl batchmean": Case(nn.KLDivLoss(reduction="batchmean"), _probabilities, LOG),
    "kl log targets": Case(
        nn.KLDivLoss(reduction="batchmean", log_target=True), _log_probabilities, LOG
    ),
    "bce": Case(nn.BCELoss(), _binary, SIGMOID),
    "bce weights": Case(nn.BCELoss(weight=WEIGHTS), _binary, SIGMOID),
    "bce logits": Case(nn.BCEWithLogitsLoss(), _binary),
    "bce logits weights": Case(
        nn.BCEWithLogitsLoss(weight=WEIGHTS, pos_weight=WEIGHTS.flip(0)), _binary
    ),
    "mse": Case(nn.MSELoss(), _normal),
    "l1": Case(nn.L1Loss(), _normal),
    "smooth l1": Case(nn.SmoothL1Loss(beta=0.7), _normal),
    "huber": Case(nn.HuberLoss(delta=0.7), _normal),
    "huber none": Case(nn.HuberLoss(reduction="none"), _normal),
    "poisson": Case(nn.PoissonNLLLoss(full=True), _counts),
    "poisson of rates": Case(nn.PoissonNLLLoss(log_input=False), _counts, nn.Softplus()),
    "soft margin": Case(nn.SoftMarginLoss(), _signs),
    "hinge embedding": Case(nn.HingeEmbeddingLoss(margin=0.5), _signs),
    "multi margin": Case(nn.MultiMarginLoss(), _labels, is_smooth=False),
    "multi margin squared": Case(
        nn.MultiMarginLoss(p=2, margin=0.7, weight=WEIGHTS), _labels, is_smooth=False
    ),
    "multi label margin": Case(nn.MultiLabelMarginLoss(), _label_lists, is_smooth=False),
    "multi label soft margin": Case(nn.MultiLabelSoftMarginLoss(weight=WEIGHTS), _binary),
}
# Losses of other arguments than outputs and targets, or of other results.
NOT_OF_OUTPUTS_AND_TARGETS = [
    nn.GaussianNLLLoss(),
    nn.CosineEmbeddingLoss(),
    nn.MarginRankingLoss(),
    nn.TripletMarginLoss(),
    nn.TripletMarginWithDistanceLoss(),
    nn.CTCLoss(),
    nn.AdaptiveLogSoftmaxWithLoss(CLASSES, 6, [2, 4], div_value=1.0),
]
