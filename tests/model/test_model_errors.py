"""Errors about the model say which parameter, layer or output, and what to do."""

import math
import re
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from verbs.refusals import INF, NAN, batches, mlp, refused

# -- model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF], ids=str)
def test_nan_in_the_weights_says_which_parameter(bad):
    model = mlp()
    with torch.no_grad():
        model[2].weight[1, 2] = bad
        model[2].weight[0, 0] = bad
    refused(r"The parameter '2\.weight' has 2 NaN or infinite values of 15", model)


def test_nan_in_a_frozen_weight_is_refused_too():
    model = mlp()
    with torch.no_grad():
        model[0].bias[3] = NAN
    model[0].requires_grad_(False)
    refused(r"The parameter '0\.bias' has 1 NaN or infinite values of 5", model)


def test_batchnorm_in_train_mode():
    model = mlp(nn.BatchNorm1d(5))
    model[1].train()
    text = refused(r"The module '1' \(BatchNorm1d\) is in train mode", model)
    assert "model.eval()" in text


def test_batchnorm_without_running_statistics():
    model = mlp(nn.BatchNorm1d(5, track_running_stats=False))
    text = refused(r"The module '1' \(BatchNorm1d\) keeps no running statistics", model)
    assert "GroupNorm" in text


@pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout, nn.Dropout1d], ids=str)
def test_dropout_in_train_mode(kind):
    model = mlp(kind(0.25))
    model[1].train()
    refused(rf"The module '1' \({kind.__name__}, p=0\.25\) is in train mode", model)


def test_dropout_of_nothing_in_train_mode_is_no_error():
    model = mlp(nn.Dropout(0.0))
    model.train()
    assert sl.measure(model, batches(4))["curvature.trace"].value > 0


class Functional(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 3), function

    def forward(self, x):
        return self.fc(self.function(x))


def test_dropout_as_a_function_is_noticed_by_its_numbers():
    model = Functional(lambda x: F.dropout(x, 0.5)).double().eval()
    text = refused("must not depend on the rest of its batch or on chance", model)
    # chance may spare the sample that is run alone; then the batch run again gives it away
    assert re.search(r"(A sample alone differs .* of 3|3 samples run again differ) by \d", text)


def test_samples_that_interact_are_noticed_by_their_numbers():
    model = Functional(lambda x: x - x.mean(dim=0)).double().eval()
    text = refused("A sample alone differs from the same sample in a batch of 3 by", model)
    assert "batch statistics" in text


def test_samples_that_interact_are_noticed_also_when_the_first_batch_is_one_sample():
    # Three copies of one sample have that sample as their mean: they hide what the function does.
    model = Functional(lambda x: x - x.mean(dim=0)).double().eval()
    refused("must not depend on the rest of its batch", model, batches(1, 4))


def test_randomness_that_comes_with_later_batches_is_not_asked_for():
    # Meta-test of the two above: a function of the sample alone is accepted.
    model = Functional(lambda x: x - x.mean(dim=1, keepdim=True)).double().eval()
    assert sl.measure(model, batches(4, 2))["curvature.trace"].value > 0


class Cancelling(nn.Module):
    """A million comes and goes, and one sample alone is summed the other way round."""

    def __init__(self, mixed):
        super().__init__()
        self.fc, self.mixed = nn.Linear(4, 3).double(), mixed
        self.far = nn.Parameter(torch.tensor([1e6, -1e6, 1 / 3]).double())
        self.codes = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)  # have no last digit

    def forward(self, x):
        terms = [self.fc(x)] + [each.expand(len(x), 3) for each in self.far]
        total = 0.0
        for term in terms if len(x) > 1 else terms[::-1]:
            total = total + term
        return total + self.mixed * x.mean()


def test_round_off_where_large_numbers_cancel_is_no_interaction():
    torch.manual_seed(0)
    model, x = Cancelling(0.0), batches(4)[0][0]
    gap = torch.cat([model(row[None]) for row in x[:3]]) - model(x[:3])
    assert float(gap.abs().max()) > 1e4 * torch.finfo(torch.float64).eps
    assert sl.measure(model, batches(4), measures="curvature.trace")["curvature.trace"].value > 0
    refused("A sample alone differs from the same sample in a batch of 3", Cancelling(1e-6))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU], ids=lambda kind: kind.__name__)
def test_values_that_overflow_say_so(activation):
    """Gradients of 1e20 have squares beyond float32; float64 holds them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight.mul_(1e20)
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    names = ["curvature.trace", "curvature.ggn_trace", "relative.kappa", "relative.kappa_std"]
    names += ["neuron.rho_sum"]
    report = sl.measure(model, (x, y), measures=names)
    found = report["curvature.trace"]
    assert found.status is sl.results.Status.NONFINITE
    assert "Measure in float64" in found.text
    wide = sl.measure(model.double(), (x.double(), y), measures=names)
    assert all(math.isfinite(each.value) for each in wide.values())


def test_a_model_without_trainable_parameters():
    model = mlp().requires_grad_(False)
    refused("at least one parameter with requires_grad=True. Got none", model)
    refused("at least one parameter with requires_grad=True. Got none", nn.Flatten())


class Returning(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.fc, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x):
        return self.wrap(self.fc(x))


@pytest.mark.parametrize(
    ("wrap", "got"),
    [
        (lambda z: {"scores": z}, "dict"),
        (lambda z: z.tolist(), "list"),
        (lambda z: None, "NoneType"),
        (lambda z: types.SimpleNamespace(scores=z), "SimpleNamespace"),
    ],
    ids=["dict", "list", "None", "object"],
)
def test_an_output_that_is_no_tensor(wrap, got):
    model = Returning(wrap).double().eval()
    refused(rf"must return a tensor of outputs, or an object with \.logits\. Got {got}", model)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: {"logits": z, "loss": None},
        lambda z: types.SimpleNamespace(logits=z),
        lambda z: (z, "hidden states"),
    ],
    ids=["dict", "object", "tuple"],
)
def test_outputs_as_transformers_has_them_are_understood(wrap):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Returning(wrap).double().eval()
    found = sl.measure(model, batches(4, 2), measures="curvature.trace")
    expected = sl.measure(model.fc, batches(4, 2), measures="curvature.trace")
    assert found["curvature.trace"].value == expected["curvature.trace"].value


def test_outputs_without_a_graph():
    model = Returning(lambda z: z.detach()).double().eval()
    refused("outputs do not depend on any trainable parameter", model)


class SingleInside(nn.Module):
    """Computes in float32 whatever its own type, with a sum that is long enough to round."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 400), nn.Linear(400, 3)

    def forward(self, x):
        h = self.first(x).tanh().float()
        return F.linear(h, self.last.weight.float(), self.last.bias.float()).double()


def test_rounding_of_float32_inside_is_no_interaction():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = SingleInside().double(), torch.randn(5, 3).double()
    batch, alone = model(x[:3]), torch.cat([model(x[i : i + 1]) for i in range(3)])
    assert not torch.equal(batch, alone)  # else nothing is tried
    sl.measure(model, (x, torch.arange(5) % 3), measures="curvature.ggn_trace")
