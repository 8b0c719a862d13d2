"""Losses of which no number would be right: each is refused, with a text that says why."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.model.losses import CrossEntropy, resolve
from zoo.torch_losses import WEIGHTS
from zoo.user_losses import LABELS, NUMBERS, SHARES, some_ignored
from zoo.wrong_gradients import Scaled

N, C = NUMBERS.shape
OUTPUTS = torch.randn(N, C, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def refused(loss, targets, match, outputs=OUTPUTS):
    with pytest.raises(sl.SpiritlevelError, match=match):
        examine(loss, outputs, targets)


def examine(loss, outputs, targets):
    """Shapes first, then values, as for every batch of a measurement."""
    loss = resolve(loss)
    loss.check(outputs, targets, where="batch 7")
    if bool(loss.invalid(outputs, targets).any()):
        loss.refuse_invalid(outputs, targets, where="batch 7")


class Wrapped(nn.Module):
    """A weighted mean whose weights cannot be seen from outside."""

    def __init__(self):
        super().__init__()
        self.inner = nn.CrossEntropyLoss(weight=WEIGHTS)

    def forward(self, outputs, targets):
        return self.inner(outputs, targets)


class Divided(nn.CrossEntropyLoss):
    """The sum over a batch size that is written down."""

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum") / 13


class OtherWeights(nn.NLLLoss):
    """Weights that are not those of the classes."""

    def forward(self, outputs, targets):
        losses = F.nll_loss(outputs.log_softmax(dim=1), targets, reduction="none")
        if self.reduction == "none":
            return losses
        weights = 1.0 + targets
        return (weights * losses).sum() / weights.sum()


class Contrastive(nn.Module):
    """Every sample is compared with all others."""

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


class Noisy(nn.Module):
    """Another value at each call."""

    def forward(self, outputs, targets):
        return F.cross_entropy(F.dropout(outputs, 0.5), targets)


def hardest_half(z, y):
    return F.cross_entropy(z, y, reduction="none").topk((len(z) + 1) // 2).values.mean()


def standardized(z, y):
    return F.cross_entropy((z - z.mean(dim=0)) / z.std(dim=0, correction=0), y, reduction="none")


NOT_THE_MEAN = r"must be the mean over its samples\. In batch 7 it is [\d.]+, and the mean of its"
INTERACT = r"must not let samples interact\. In batch 7"


@pytest.mark.parametrize(
    ("loss", "targets", "match"),
    [
        (Wrapped(), LABELS, NOT_THE_MEAN),
        (lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS.double()), LABELS, NOT_THE_MEAN),
        (Divided(), LABELS, NOT_THE_MEAN),
        (OtherWeights(), LABELS, NOT_THE_MEAN),
        (lambda z, y: fourth(z, y).sum(), NUMBERS, rf"{NOT_THE_MEAN}.*It is the sum, not the mean"),
        (lambda z, y: F.cross_entropy(z, y), some_ignored(LABELS), "a sample that does not count"),
        (Contrastive(), LABELS, NOT_THE_MEAN),
        (hardest_half, LABELS, NOT_THE_MEAN),
        (lambda z, y: fourth(z, y).mean() * len(z), NUMBERS, NOT_THE_MEAN),
        (standardized, LABELS, INTERACT),
        (lambda z, y: (z - z.flip(0)).square().sum(dim=1), NUMBERS, INTERACT),
        (lambda z, y: (z - z.roll(1, 0)).square().sum(dim=1), NUMBERS, INTERACT),
        (lambda z, y: fourth(z, y).sum(dim=1) / len(z), NUMBERS, INTERACT),
        (lambda z, y: fourth(z, y).sum(dim=1) * (y - y.mean(dim=0))[:, 0], NUMBERS, INTERACT),
    ],
)
def test_a_loss_that_is_no_mean_over_separate_samples(loss, targets, match):
    refused(loss, targets, match)


def fourth(z, y):
    return (z - y) ** 4


@pytest.mark.parametrize("partner", [lambda n: n ^ 1, lambda n: n ^ 4, lambda n: n ^ 7])
def test_any_two_samples_that_interact_are_noticed(partner):
    outputs, targets = NUMBERS[:8], NUMBERS[:8].flip(0)

    def loss(z, y):
        others = torch.tensor([min(partner(n), len(z) - 1) for n in range(len(z))])
        return (z - z[others]).square().sum(dim=1)

    refused(loss, targets, INTERACT, outputs)


def test_an_interaction_that_hardly_moves_the_loss_is_noticed():
    """Pairs of tiny outputs change a loss by 1e-12 and its gradient by all that it is."""

    def contrastive(z, y):
        return F.softplus(-(z * z.roll(1, 0)).sum(dim=1))

    tiny = 1e-6 * OUTPUTS
    moved = (contrastive(tiny, LABELS)[:2] - contrastive(tiny[:2], LABELS[:2])).abs().max()
    assert 0 < moved < 1e-10
    refused(contrastive, LABELS, rf"{INTERACT} the loss of a sample changes with the", tiny)


def test_weights_by_sample_are_refused():
    by_sample = torch.rand(N, 1, generator=torch.Generator().manual_seed(1)).double()
    binary = (NUMBERS > 0).double()
    match = r"must be the same for every sample and fit outputs of shape \(3,\) .* Got shape \(13,"
    refused(nn.BCEWithLogitsLoss(weight=by_sample), binary, match)
    refused(nn.BCEWithLogitsLoss(pos_weight=by_sample), binary, match)
    refused(nn.BCELoss(weight=by_sample), binary, match, SHARES)
    refused(nn.BCEWithLogitsLoss(weight=torch.rand(N)), binary[:, 0], "weight", OUTPUTS[:, 0])
    refused(
        lambda z, y: by_sample * F.huber_loss(z, y, reduction="none"),
        NUMBERS,
        r"must take any number of samples\. With outputs of shape \(6, 3\), a part of a batch, it",
    )
    refused(
        lambda z, y: F.cross_entropy(z.squeeze().view(N, C), y),
        LABELS,
        r"any number of samples\. With outputs of shape \(1, 3\), .* it raised RuntimeError",
    )


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.NLLLoss])
def test_class_weights_without_a_reduction_are_ambiguous(kind):
    match = rf"The mean of {kind.__name__} with class weights and reduction='none' may be over"
    refused(kind(weight=WEIGHTS, reduction="none"), LABELS, match)


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(reduction="sum"),
        nn.MSELoss(size_average=False),
        nn.KLDivLoss(reduction="sum"),
        type("Subclass", (nn.HuberLoss,), {"forward": nn.HuberLoss.forward})(reduction="sum"),
    ],
)
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
def test_sums_are_refused(loss):
    refused(loss, NUMBERS, r"must average over samples\. Got .* with reduction='sum'")


def test_a_loss_that_changes_from_call_to_call():
    with torch.random.fork_rng():
        match = r"must be a fixed function .* In batch 7 it gave [\d.]+ and, called again, [\d.]+"
        refused(Noisy(), LABELS, match)
        refused(lambda z, y: (z + torch.rand_like(z)).square().sum(dim=1), LABELS, match)


# -- derivatives ---------------------------------------------------------------------------------


class FixedSlope(torch.autograd.Function):
    """tanh whose backward cannot be differentiated, without saying so."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(1 - y * y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class SaysSo(torch.autograd.Function):
    """A square that declares that it is differentiable once; torch then takes 0 for the second."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


def half_detached(z, y):
    entropy = F.cross_entropy(z, y, reduction="none")
    return (1 - (-entropy).exp()).detach().square() * entropy


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (half_detached, LABELS),
        (lambda z, y: half_detached(z, y).mean(), LABELS),
        (lambda z, y: (FixedSlope.apply(z) - y).square().sum(dim=1), NUMBERS),
        (lambda z, y: (Scaled.apply(z) - y).square().sum(dim=1), NUMBERS),
        (lambda z, y: SaysSo.apply(z).sum(dim=1), NUMBERS),
        (lambda z, y: (z + (z.round() - z).detach() - y).square().sum(dim=1), NUMBERS),
    ],
    ids=[
        "detached",
        "mean of detached",
        "fixed slope",
        "scaled gradient",
        "says so",
        "straight through",
    ],
)
def test_derivatives_that_are_not_those_of_the_values(loss, targets):
    match = r"must have true derivatives\. In batch 7 torch's (first|second) derivative"
    refused(loss, targets, match)


def test_a_loss_without_second_derivatives_has_no_curvature():
    loss = resolve(lambda z, y: F.multi_margin_loss(z, y, p=2, reduction="none"))
    loss.check(OUTPUTS, LABELS, where="batch 7")  # products by differences need no more
    with pytest.raises(sl.SpiritlevelError, match=r"must have second derivatives\. torch says"):
        loss.curvature(OUTPUTS, LABELS)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: torch.from_numpy(z.detach().numpy() ** 2).sum(dim=1),
        lambda z, y: z.detach().square().sum(dim=1),
    ],
)
def test_a_loss_without_a_gradient(loss):
    refused(loss, NUMBERS, r"must be differentiable in the outputs\. In batch 7 torch has no grad")


def test_a_count_is_no_loss():
    refused(lambda z, y: z.argmax(dim=1) == y, LABELS, r"Got torch\.bool in batch 7")
    refused(lambda z, y: (z.argmax(dim=1) == y).sum(), LABELS, r"Got torch\.int64 in batch 7")


# -- what a loss may depend on -------------------------------------------------------------------


def test_a_loss_that_uses_something_trainable():
    scale = nn.Parameter(torch.ones(()).double())
    match = r"through the outputs alone\. In batch 7 it uses another tensor that needs a gradient"
    refused(lambda z, y: F.cross_entropy(scale * z, y, reduction="none"), LABELS, match)
    loss = resolve(lambda z, y: F.cross_entropy(scale.detach() * z, y, reduction="none"))
    loss.check(OUTPUTS, LABELS, where="batch 7")


def test_a_loss_that_holds_weights_of_the_model():
    model = nn.Linear(2, C).double()

    class Decayed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model

        def forward(self, outputs, targets):
            return F.cross_entropy(outputs, targets) + self.layer.weight.square().sum()

    x = torch.zeros(N, 2).double()
    match = r"Got Decayed whose parameter 'layer\.weight' is a trained weight of the model"
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(model, (x, LABELS), loss=Decayed(), measures="curvature.trace")
    model.requires_grad_(False)
    with pytest.raises(sl.SpiritlevelError, match=r"trainable|requires_grad"):
        sl.measure(model, (x, LABELS), loss=Decayed(), measures="curvature.trace")


def test_hooks_that_change_the_gradient():
    loss = nn.CrossEntropyLoss()
    loss.register_full_backward_hook(lambda module, inputs, outputs: (2 * inputs[0], None))
    refused(loss, LABELS, r"must not have backward hooks.*Got CrossEntropyLoss")


def test_a_subclass_of_our_own_loss():
    class Mine(CrossEntropy):
        def values(self, outputs, targets):
            return 2 * super().values(outputs, targets)

    refused(Mine(), LABELS, r"must not be a subclass of a loss of spiritlevel.*Got Mine")


# -- arguments -----------------------------------------------------------------------------------


def test_a_call_that_fails_is_explained():
    match = (
        r"'<lambda>' is called as loss\(outputs, targets\), with float64 outputs of shape \(13, 3\)"
        r" and torch\.int64 targets of shape \(13,\)\. In batch 7 it raised RuntimeError: .*"
        r"constant\.to\(outputs\)"
    )
    refused(lambda z, y: (z @ torch.ones(C, 2)).square().sum(dim=1), LABELS, match)


def test_targets_must_go_with_the_samples():
    match = r"must hold one row per sample, as outputs of shape \(13, 3\) do\. Got \(26,\)"
    refused(lambda z, y: F.cross_entropy(z, y[: len(z)]), LABELS.repeat(2), match)
    for kind in (nn.HuberLoss, nn.L1Loss, nn.SoftMarginLoss):
        refused(kind(), NUMBERS[:, 0], r"needs targets of the outputs' shape \(13, 3\)")


@pytest.mark.parametrize(
    "targets", [{"a": LABELS}, [LABELS, LABELS], 3.0], ids=lambda t: str(type(t))
)
def test_targets_are_one_tensor(targets):
    x = torch.zeros(N, 2).double()
    name = type(targets).__name__
    with pytest.raises(sl.SpiritlevelError, match=rf"targets must be one tensor\. Got {name} in"):
        sl.measure(
            nn.Linear(2, C).double(),
            [x],
            loss=lambda z, y: z.square().sum(dim=1),
            forward=lambda model, batch: (model(batch), targets),
            measures="curvature.trace",
        )


def test_class_numbers_for_likelihoods():
    match = r"The targets of 'NLLLoss' must be class numbers\. Got torch\.float64"
    refused(nn.NLLLoss(), SHARES, match)
    refused(nn.NLLLoss(), LABELS + 3, r"Labels must lie in \[0, 2\]")
    match = r"Got ignore_index=1 and torch\.float64 targets in batch 7"
    refused(nn.CrossEntropyLoss(ignore_index=1), SHARES, match)
    refused(nn.MultiMarginLoss(), LABELS + 3, r"ValueError: labels must lie in \[0, 2\]")
    refused(nn.MultiLabelMarginLoss(), LABELS, "ValueError: needs outputs of shape")


def test_probabilities_lie_between_0_and_1():
    binary = (NUMBERS > 0).double()
    refused(nn.BCELoss(), binary, r"The outputs of the loss 'BCELoss' must lie in \[0, 1\]\. Got")
    refused(nn.BCELoss(), 2 * binary, r"The targets of the loss 'BCELoss' must lie", SHARES)
    rates = nn.PoissonNLLLoss()
    refused(rates, binary, "'PoissonNLLLoss' must be finite. It is NaN or", 1e4 * OUTPUTS.abs())


def test_outputs_that_overflow_are_left_to_the_surface():
    # Perturbed networks may overflow: that is no fault of the loss or of its targets.
    outputs = OUTPUTS.clone()
    outputs[3] = torch.inf
    for loss, targets in ((F.huber_loss, NUMBERS), (hardest_half, LABELS), (nn.L1Loss(), NUMBERS)):
        resolved = resolve(loss)
        resolved.check(outputs, targets, where="batch 7")
        assert not resolved.invalid(outputs, targets).any()
    probabilities = SHARES.clone()
    probabilities[2] = torch.nan
    resolved = resolve(nn.BCELoss())
    resolved.check(probabilities, (NUMBERS > 0).double(), where="batch 7")
    assert not resolved.invalid(probabilities, (NUMBERS > 0).double()).any()


def test_a_loss_of_0_everywhere_does_not_tell_its_weights():
    class Hinge(nn.HingeEmbeddingLoss):
        def forward(self, outputs, targets):
            return super().forward(outputs, targets)

    outputs = torch.full((N, C), 5.0).double()
    match = r"weights its samples cannot be told from batch 7, where the loss of every sample is 0"
    refused(Hinge(), -torch.ones(N, C).double(), match, outputs)
