"""Losses with random options, shapes, types and cuts of the data against torch's own mean.

LOSS_SEEDS=5000 pytest tests/model/losses/test_random_losses.py tries more of them.
"""

import copy
import os
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.model.losses import resolve

SEEDS = int(os.environ.get("LOSS_SEEDS", "100"))


class Draw:
    """Random choices from one seed."""

    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.count = self.choose.randint(1, 9)
        self.classes = self.choose.randint(2, 4)

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def shape(self):
        """Of outputs in which every element has its own loss."""
        return (self.count, *(self.choose.randint(1, 3) for _ in range(self.choose.randint(0, 2))))

    def weight(self, size):
        """None, or positive weights in single or double precision."""
        if self.choose.random() < 0.4:
            return None
        return (self.normal(size).abs() + 0.1).to(
            self.choose.choice([torch.float32, torch.float64])
        )

    def class_case(self):
        """Outputs and targets by class, perhaps at several positions, and the options."""
        positions = [] if self.choose.random() < 0.5 else [self.classes + self.choose.randint(1, 2)]
        outputs = self.normal(self.count, self.classes, *positions)
        shape = (self.count, *positions)
        targets = torch.randint(self.classes, shape, generator=self.generator)
        options = {"weight": self.weight(self.classes)}
        if self.choose.random() < 0.3:
            options["ignore_index"] = self.choose.randrange(self.classes)
        elif self.choose.random() < 0.5:
            hidden = torch.rand(shape, generator=self.generator) < 0.3
            targets = targets.masked_fill(hidden, -100)
        return outputs, targets, options

    def cuts(self):
        """Sizes of batches that add up to the number of samples."""
        sizes, rest = [], self.count
        while rest:
            sizes.append(self.choose.randint(1, rest))
            rest -= sizes[-1]
        return sizes


def cross_entropy(draw):
    outputs, targets, options = draw.class_case()
    options["label_smoothing"] = draw.choose.choice([0.0, 0.2])
    if draw.choose.random() < 0.3:
        options.pop("ignore_index", None)
        targets = draw.normal(*outputs.shape).softmax(dim=1)
    return nn.CrossEntropyLoss(**options), outputs, targets


def likelihood(draw):
    outputs, targets, options = draw.class_case()
    return nn.NLLLoss(**options), outputs.log_softmax(dim=1), targets


def divergence(draw):
    outputs, targets = (draw.normal(*draw.shape()[:1], draw.classes).softmax(dim=1) for _ in "ab")
    in_log = draw.choose.random() < 0.5
    reduction = draw.choose.choice(["mean", "batchmean"])
    module = nn.KLDivLoss(reduction=reduction, log_target=in_log)
    return module, outputs.log(), targets.log() if in_log else targets


def regression(draw):
    shape = draw.shape()
    module = draw.choose.choice(
        [
            nn.MSELoss(),
            nn.L1Loss(),
            nn.SmoothL1Loss(beta=0.3),
            nn.HuberLoss(delta=0.6),
            nn.PoissonNLLLoss(full=draw.choose.random() < 0.5),
        ]
    )
    targets = draw.normal(*shape)
    return module, draw.normal(*shape), targets.abs() if "Poisson" in str(module) else targets


def binary(draw):
    shape = draw.shape()
    outputs, targets = draw.normal(*shape), (draw.normal(*shape) > 0).double()
    weight = draw.weight(shape[-1]) if len(shape) > 1 else None
    if draw.choose.random() < 0.5:
        return nn.BCELoss(weight=weight), outputs.sigmoid(), targets
    positive = draw.weight(shape[-1]) if len(shape) > 1 else None
    return nn.BCEWithLogitsLoss(weight=weight, pos_weight=positive), outputs, targets


def signs(draw):
    shape = draw.shape()
    # a large margin: a batch whose losses are all 0 does not tell how a subclass weights them
    module = draw.choose.choice([nn.SoftMarginLoss(), nn.HingeEmbeddingLoss(margin=6.0)])
    return module, draw.normal(*shape), draw.normal(*shape).sign()


def soft_labels(draw):
    shape = (draw.count, draw.classes)
    module = nn.MultiLabelSoftMarginLoss(weight=draw.weight(draw.classes))
    return module, draw.normal(*shape), (draw.normal(*shape) > 0).double()


def scaled(loss):
    """A subclass that applies torch's reduction to other outputs."""
    kind = type(loss)

    def forward(self, outputs, targets):
        return 1.5 * kind.forward(self, 0.7 * outputs, targets)

    changed = copy.copy(loss)
    changed.__class__ = type(f"Scaled{kind.__name__}", (kind,), {"forward": forward})
    return changed


KINDS = [cross_entropy, likelihood, divergence, regression, binary, signs, soft_labels]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_subclass", [False, True], ids=["torch's", "a subclass"])
def test_random_losses(kind, is_subclass):
    for seed in range(SEEDS // (2 * len(KINDS)) + 1):
        module, outputs, targets = kind(Draw(seed))
        check_seed(scaled(module) if is_subclass else module, outputs, targets, seed)


def check_seed(module, outputs, targets, seed):
    mean = copy.deepcopy(module).double()
    expected = mean(outputs, targets)
    if not torch.isfinite(expected):  # no target counts
        return
    loss = resolve(module)
    sums = torch.zeros(3, dtype=torch.float64)
    sizes = Draw(seed).cuts()
    for z, y in zip(outputs.split(sizes), targets.split(sizes), strict=True):
        loss.check(z, y, where="batch 7")
        assert not loss.invalid(z, y).any(), seed
        terms = loss.values(z, y), loss.weights(z, y), loss.curvature(z, y).trace()
        sums += torch.stack([term.sum() for term in terms])
    torch.testing.assert_close(sums[0] / sums[1], expected, rtol=1e-10, atol=1e-14, msg=str(seed))
    H = torch.autograd.functional.hessian(lambda z: mean(z, targets), outputs)
    trace = H.reshape(outputs.numel(), -1).trace()
    torch.testing.assert_close(sums[2] / sums[1], trace, rtol=1e-9, atol=1e-13, msg=str(seed))


def test_the_random_losses_differ():
    drawn = [str(vars(kind(Draw(seed))[0])) for kind in KINDS for seed in range(20)]
    assert len(set(drawn)) > len(drawn) / 3


def test_a_batch_in_which_nothing_counts():
    outputs, nothing = torch.zeros(4, 3).double(), torch.full((4,), -100)
    for loss in (nn.CrossEntropyLoss(), nn.NLLLoss(), scaled(nn.NLLLoss())):
        resolved = resolve(loss)
        resolved.check(outputs, nothing, where="batch 7")
        assert resolved.weights(outputs, torch.arange(4) % 3).sum() == 4
        assert F.nll_loss(outputs, nothing).isnan()
        assert resolved.values(outputs, nothing).sum() == 0
