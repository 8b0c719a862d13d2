"""κ of an inner linear layer: dense Hessians, dense Gauss-Newton matrices, gradients, probes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev

from spiritlevel import SpiritlevelError
from spiritlevel.training import KappaPenalty, kappa_penalty
from training.penalties import penalty_truths as truths
from training.penalties.penalty_refusals import TROUBLES, call, refused, troubled
from zoo.losses import LOSSES

pytestmark = pytest.mark.sampled(3)  # the others at night


class Residual(nn.Module):
    """The layer's input is used beside it as well."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        a = torch.relu(self.first(x))
        return self.head(a + torch.relu(self.inner(a)))


class Tokens(nn.Module):
    """The layer is used at every position."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.relu(self.inner(x)).mean(dim=1))


def make(kind=None, activation=nn.ReLU):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind is not None:
            return kind().double()
        layers = {
            "first": nn.Linear(2, 3),
            "bend": activation(),
            "inner": nn.Linear(3, 3),
            "again": activation(),
            "head": nn.Linear(3, 3),
        }
        model = nn.Sequential()
        for name, layer in layers.items():
            model.add_module(name, layer)
        return model.double()


def batch(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


Y = torch.tensor([0, 2, 1, 1, 0])


def contracted(H, W):
    """Σ ⟨w_s, w_s'⟩ Tr H_(s,s')."""
    blocks = H.view(len(W), W.shape[1], len(W), W.shape[1])
    return (W @ W.T * blocks.diagonal(dim1=1, dim2=3).sum(dim=2)).sum()


def of_hessian(model, layer, x, y, plain):
    name = f"{layer}.weight"
    return truths.value_and_gradient(
        lambda params: contracted(
            truths.dense_hessian(model, x, y, plain, params, [name]), params[name]
        ),
        model,
    )


def of_gauss_newton(model, layer, x):
    """The same with J' A J, A the softmax Hessian from the textbook."""
    name = f"{layer}.weight"

    def quantity(params):
        def outputs(weight):
            return functional_call(model, params | {name: weight}, (x,))

        J = jacrev(outputs)(params[name]).flatten(2)
        p = outputs(params[name]).softmax(dim=1)
        A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        return contracted(torch.einsum("nia,nij,njb->ab", J, A, J) / len(x), params[name])

    return truths.value_and_gradient(quantity, model)


def found(model, layer, x, y, **options):
    penalty = KappaPenalty(model, 1.0, layer=layer, **options)
    value = call(penalty, x, y)
    torch.testing.assert_close(penalty.value, value.detach())
    return value, truths.gradients_of(value, model)


@pytest.mark.parametrize("layer", ["first", "inner", "head"])
def test_all_columns_are_the_hessian_of_a_relu_network(layer):
    model, x = make(), batch(5, 2)
    truth = of_hessian(model, layer, x, Y, F.cross_entropy)
    truths.assert_same(found(model, layer, x, Y, probes=None), truth)


@pytest.mark.parametrize("name", ["weights_and_smoothing", "ignored", "mse", "bce", "bce_weighted"])
@pytest.mark.parametrize("by_probes", [False, True])
def test_every_loss(name, by_probes):
    loss = LOSSES[name]
    model, x = make(), batch(5, 2)
    y = loss.targets((5, 3), torch.Generator().manual_seed(3))
    truth = of_hessian(model, "inner", x, y, loss.plain)
    # the same orthogonal signs for all samples: the expectation over random ones
    rows = truths.orthogonal_signs(3).repeat(1, 5)
    with truths.signs_from("kappa_penalty", rows):
        probes = len(rows) if by_probes else None
        value = found(model, "inner", x, y, loss=loss.given, probes=probes)
    truths.assert_same(value, truth)


@pytest.mark.parametrize("kind", [Residual, Tokens])
def test_wirings(kind):
    model, x = make(kind), batch(5, 2) if kind is Residual else batch(5, 4, 2)
    truth = of_hessian(model, "inner", x, Y, F.cross_entropy)
    truths.assert_same(found(model, "inner", x, Y, probes=None), truth)


def test_smooth_networks_give_the_gauss_newton_matrix():
    model, x = make(activation=nn.GELU), batch(5, 2)
    truth = of_gauss_newton(model, "inner", x)
    truths.assert_same(found(model, "inner", x, Y, probes=None), truth)
    hessian = of_hessian(model, "inner", x, Y, F.cross_entropy)[0]
    assert abs(float(hessian / truth[0]) - 1) > 0.01  # which is another number


@pytest.mark.parametrize("probes", [1, 3])
def test_random_probes_are_unbiased(probes):
    # 300 draws; value and every entry of the gradient within 4 standard errors
    model, x = make(), batch(5, 2)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(300):
        value, gradient = found(model, "inner", x, Y, generator=generator, probes=probes)
        rows.append(torch.cat([value.detach()[None], truths.flat(gradient)]))
    truth, gradient = of_hessian(model, "inner", x, Y, F.cross_entropy)
    expectation = torch.cat([truth[None], truths.flat(gradient)])
    assert truths.within_four_errors(torch.stack(rows), expectation)
    assert not truths.within_four_errors(torch.stack(rows), 1.2 * expectation)


def test_the_function_takes_tensors():
    model, x = make(), batch(5, 2)
    a = model.bend(model.first(x))
    outputs = model.head(model.again(model.inner(a)))
    value = kappa_penalty(a, outputs, Y, probes=None)
    truth = of_hessian(model, "inner", x, Y, F.cross_entropy)
    truths.assert_same((value, truths.gradients_of(value, model)), truth)


@pytest.mark.parametrize("probes", [None, 1])
@pytest.mark.parametrize("scale", [1e2, 1e4])
@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_confident_networks_have_finite_gradients(scale, probes, loss):
    model, x = make().float(), batch(5, 2).float()
    with torch.no_grad():
        model.head.weight.mul_(scale)
    y = Y if loss == "cross_entropy" else F.one_hot(Y, 3).float()
    value, gradient = found(model, "inner", x, y, probes=probes, loss=loss)
    assert torch.isfinite(value)
    assert all(bool(torch.isfinite(g).all()) for g in gradient.values())


def test_confidence_costs_no_digits():
    # 1 - p = 1e-12 and below: float32 against float64, the same weights
    model, x = make(), batch(5, 2)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([30.0, 0.1, -0.3]))
    assert bool((1 - model(x).softmax(dim=1).amax(dim=1) < 1e-12).all())
    precise = found(model, "inner", x, Y, probes=None)
    single = copy.deepcopy(model).float()
    value, gradient = found(single, "inner", x.float(), Y, probes=None)
    torch.testing.assert_close(value.double(), precise[0], rtol=1e-4, atol=0)  # exp of float32 z
    for name, g in precise[1].items():
        torch.testing.assert_close(gradient[name].double(), g, rtol=1e-4, atol=1e-4 * g.abs().max())


def test_the_lazy_schedule_and_resuming():
    model, x = make(), batch(5, 2)
    penalty = KappaPenalty(model, 0.5, layer="inner", probes=None, every=3)
    values = [call(penalty, x, Y) for _ in range(6)]
    assert [v.requires_grad for v in values] == [True, False, False] * 2
    truth = of_hessian(model, "inner", x, Y, F.cross_entropy)[0]
    torch.testing.assert_close(sum(values).detach() / 6, 0.5 * truth)
    call(penalty, x, Y)
    again = KappaPenalty(model, 0.5, layer="inner", probes=None, every=3)
    again.load_state_dict(penalty.state_dict())
    assert not call(again, x, Y).requires_grad


def test_refusals():
    model, x = make(), batch(5, 2)
    for options, text in [
        (
            {"layer": "bend"},
            r"path of a Linear of the model\. Got 'bend'\. There are: first, inner",
        ),
        ({"layer": "inner", "weight": -1}, r"'weight' .* Got -1"),
        ({"layer": "inner", "probes": 0}, r"'probes' .* Got 0"),
        ({"layer": "inner", "every": 0}, r"'every' .* Got 0"),
    ]:
        with pytest.raises(SpiritlevelError, match=text):
            KappaPenalty(model, **options)
    penalty = KappaPenalty(model, layer="inner")
    with torch.no_grad(), penalty.shared_forward():
        outputs = model(x)
    with pytest.raises(SpiritlevelError, match="no forward pass through the layer 'inner'"):
        penalty(x, Y, outputs=outputs)
    outputs = model(x)
    with penalty.shared_forward():
        model(x)
    with pytest.raises(
        SpiritlevelError, match=r"Got outputs that do not depend on its input\. Call"
    ):
        penalty(x, Y, outputs=outputs)
    model.inner.weight.requires_grad_(False)
    with pytest.raises(SpiritlevelError, match=r"layer 'inner' .* Got a frozen one"):
        KappaPenalty(model, layer="inner")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_batch_that_cannot_be_measured_moves_nothing(trouble):
    model, x = make(), batch(5, 2)
    penalty, untroubled = (
        KappaPenalty(model, layer="inner", generator=torch.Generator().manual_seed(0))
        for _ in range(2)
    )
    assert call(penalty, x, Y) == call(untroubled, x, Y)
    before, value = penalty.state_dict(), penalty.value.clone()
    weight = model.head.weight.detach().clone()
    act, text = troubled(trouble, penalty, x, Y, last="head", layer="inner")
    refused(text, act, model)
    after = penalty.state_dict()
    assert after["steps"] == before["steps"] == 1
    assert torch.equal(after["generator"], before["generator"])
    assert torch.equal(penalty.value, value)
    # and the next batch is penalized as if nothing had been
    model.inner.weight.requires_grad_(True)
    with torch.no_grad():
        model.head.weight.copy_(weight)
    assert call(penalty, x, Y) == call(untroubled, x, Y)
