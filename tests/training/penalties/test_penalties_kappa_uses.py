"""κ of a layer that sees its samples in any order, several times, or mixed with each other.

Against dense matrices in float64. Estimates are averaged over all vectors of signs, which gives
their expectation without noise.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training import KappaPenalty
from training.penalties import penalty_truths as truths
from training.penalties.test_penalties_kappa import (
    Y,
    batch,
    found,
    make,
    of_gauss_newton,
    of_hessian,
)

pytestmark = pytest.mark.sampled(2)  # the others at night

ALL = 2**9  # vectors of signs for three samples and three classes


class Inner(nn.Module):
    """A layer `inner` on vectors of 2 numbers, and a head on what it gives."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 3)

    def bent(self, x):
        return torch.relu(self.inner(x))


class TimeFirst(Inner):
    """(N, T, d) becomes (T, N, d)."""

    def forward(self, x):
        return self.head(self.bent(x.transpose(0, 1)).mean(dim=0))


class TimeInTheMiddle(Inner):
    """(N, T, S, d) becomes (T, N, S, d): the samples are between other dimensions."""

    def forward(self, x):
        return self.head(self.bent(x.transpose(0, 1)).sum(dim=(0, 2)))


class Flattened(Inner):
    """(N·T, d), all positions of a sample together."""

    def forward(self, x):
        return self.head(self.bent(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(dim=1))


class Siamese(Inner):
    """(2N, d), first all samples, then all of them again in another form."""

    def forward(self, x):
        first, second = self.bent(torch.cat([x, x.flip(1)])).chunk(2)
        return self.head(first + second)


class Loop(Inner):
    """A call for every position, and the weight is the same in all of them."""

    def forward(self, x):
        return self.head(sum(self.bent(x[:, t]) for t in range(x.shape[1])))


class TwoForms(Inner):
    """Two calls whose inputs have different shapes."""

    def forward(self, x):
        return self.head(self.bent(x[:, 0]) + self.bent(x.transpose(0, 1)).mean(dim=0))


class Recurrent(nn.Module):
    """The layer's second input comes from its first output."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = F.pad(x, (0, 1), value=0.5)
        return self.head(torch.relu(self.inner(x + torch.relu(self.inner(x)))))


class Experts(Inner):
    """The layer gets some of the samples, in an order of its own."""

    def forward(self, x):
        index = (x[:, 0] < x[:, 0].max()).nonzero().flatten().flip(0)
        out = x.new_zeros(len(x), 3).index_add(0, index, self.bent(x[index]))
        return self.head(out)


class TwicePerSample(Inner):
    """As many rows as samples, but one sample has two of them and another has none."""

    def forward(self, x):
        index = torch.tensor([1, 1, 2])
        return self.head(x.new_zeros(len(x), 3).index_add(0, index, self.bent(x[index] * x[:1])))


class BatchStatistics(Inner):
    """Normalized by the batch: every output depends on all samples."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.inner(x))))


def blank(x, *samples):
    x[list(samples)] = 0.0
    return x


REGULAR = {
    "time first": (TimeFirst, lambda: batch(5, 4, 2)),
    "time first, as long as the batch": (TimeFirst, lambda: batch(5, 5, 2)),
    "time first, twice as long as the batch": (TimeFirst, lambda: batch(5, 10, 2)),
    "time first, one sample": (TimeFirst, lambda: batch(1, 4, 2)),
    "time first, blank samples": (TimeFirst, lambda: blank(batch(5, 5, 2), 0, 1, 3)),
    "samples in the middle": (TimeInTheMiddle, lambda: batch(5, 3, 5, 2)),
    "flattened": (Flattened, lambda: batch(5, 4, 2)),
    "siamese": (Siamese, lambda: batch(5, 2)),
    "siamese, blank samples": (Siamese, lambda: blank(batch(5, 2), 1, 2)),
    "a call for each position": (Loop, lambda: batch(5, 4, 2)),
    "calls in two forms": (TwoForms, lambda: batch(5, 5, 2)),
}


@pytest.mark.parametrize("name", REGULAR)
def test_every_regular_order_is_found(name):
    kind, data = REGULAR[name]
    model, x = make(kind), data()
    y = Y[: len(x)]
    truth = of_hessian(model, "inner", x, y, F.cross_entropy)
    truths.assert_same(found(model, "inner", x, y, probes=None), truth)


def test_a_layer_behind_itself():
    model, x = make(Recurrent), batch(5, 2)
    truths.assert_same(found(model, "inner", x, Y, probes=None), of_gauss_newton(model, "inner", x))


@pytest.mark.parametrize("kind", [Experts, TwicePerSample, BatchStatistics])
def test_mixed_samples_are_unbiased_by_probes_and_refused_without(kind):
    model, x = make(kind), batch(3, 2)
    truth = of_gauss_newton(model, "inner", x)
    with truths.signs_from("kappa_penalty", truths.all_signs(9)):
        truths.assert_same(found(model, "inner", x, Y[:3], probes=ALL), truth)
    with pytest.raises(
        SpiritlevelError,
        match=r"Every row .* if 'probes' is None\. Got an input of shape \(\d, 2\) whose rows "
        r"depend on several of the 3 samples .* Take probes=1",
    ):
        found(model, "inner", x, Y[:3], probes=None)


def test_one_module_under_two_names():
    model, x = make(Loop), batch(5, 4, 2)
    # before the second name: functional_call, which the truth uses, cannot deal with it
    truth = of_hessian(model, "inner", x, Y, F.cross_entropy)
    model.again = model.inner
    truths.assert_same(found(model, "inner", x, Y, probes=None), truth)


def test_a_weight_that_others_use_too_is_refused():
    model = make()
    model.inner.weight = model.head.weight
    with pytest.raises(
        SpiritlevelError,
        match=r"weight of the layer 'inner' must be used by that layer alone\. Got 2 uses .* of "
        r"which 1 are calls of the layer.*FlatnessPenalty",
    ):
        found(model, "inner", batch(5, 2), Y)


class Doubled(nn.Linear):
    """Not what its base class computes."""

    def forward(self, x):
        return super().forward(x) + x


def test_a_layer_with_its_own_forward_is_refused():
    model = make()
    model.inner = Doubled(3, 3).double()
    with pytest.raises(
        SpiritlevelError, match=r"must compute what nn.Linear computes\. Got a Doubled .* Choose"
    ):
        KappaPenalty(model, layer="inner")
    KappaPenalty(model, layer="first")


def test_calls_on_another_batch_do_not_count():
    model, x = make(), batch(5, 2)
    penalty = KappaPenalty(model, 1.0, layer="inner", probes=None)
    with penalty.shared_forward():
        outputs = model(x)
        model(batch(7, 2, seed=2))
    value = penalty(x, Y, outputs=outputs)
    truth = of_hessian(model, "inner", x, Y, F.cross_entropy)
    truths.assert_same((value, truths.gradients_of(value, model)), truth)
