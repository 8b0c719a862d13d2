"""Head penalties: values and gradients against dense Hessians, and in 80 digits when confident."""

import copy
from decimal import Context, Decimal, localcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training import HeadPenalty, head_penalty
from spiritlevel.training.penalties.differentiable_curvature import softmax_head
from training.penalties import penalty_truths as truths
from training.penalties.penalty_refusals import TROUBLES, call, refused, troubled
from zoo import decimal_softmax as decimals
from zoo.losses import LOSSES

KINDS = ["trace", "kappa", "trace_squared"]


class Pooled(nn.Module):
    """A last convolution under global average pooling."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 2, 2), nn.Conv2d(2, 3, 2, padding=1, stride=2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))).flatten(2).mean(dim=2)


def make(kind=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind is not None:
            return kind().double()
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()


def batch(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def dense(kind, name, weight_of_row, model, x, y, plain):
    """The measure by its definition from the dense block, as a function of all parameters."""

    def quantity(params):
        H = truths.dense_hessian(model, x, y, plain, params, [name])
        if kind == "trace":
            return H.trace()
        if kind == "trace_squared":
            return H.square().sum()
        W = weight_of_row(params[name])  # (rows, columns)
        blocks = H.view(len(W), W.shape[1], len(W), W.shape[1])
        traces = blocks.diagonal(dim1=1, dim2=3).sum(dim=2)
        return (W @ W.T * traces).sum()

    return truths.value_and_gradient(quantity, model)


def found(kind, model, x, y, **options):
    penalty = HeadPenalty(model, 1.0, kind=kind, **options)
    value = call(penalty, x, y)
    torch.testing.assert_close(penalty.value, value.detach())
    return value, truths.gradients_of(value, model)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["cross_entropy", "weights_and_smoothing", "ignored", "soft_targets", "mse", "bce"]
)
def test_every_kind_and_loss(kind, name):
    loss = LOSSES[name]
    model, x = make(), batch(5, 2)
    y = loss.targets((5, 3), torch.Generator().manual_seed(3))
    truth = dense(kind, "2.weight", lambda w: w, model, x, y, loss.plain)
    truths.assert_same(found(kind, model, x, y, loss=loss.given), truth)
    below = max(float(truth[1][name].abs().max()) for name in ("0.weight", "0.bias"))
    assert below > 1e-4  # the features carry gradients into everything below


@pytest.mark.parametrize("kind", KINDS)
def test_a_convolution_under_average_pooling(kind):
    model, x, y = make(Pooled), batch(4, 1, 4, 4), torch.tensor([0, 2, 1, 1])
    truth = dense(kind, "head.weight", lambda w: w.flatten(1), model, x, y, F.cross_entropy)
    truths.assert_same(found(kind, model, x, y), truth)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_have_a_row_each(kind):
    model, x = make(), batch(3, 4, 2)
    y = torch.tensor([[0, 2, 1, -100], [1, 1, -100, 0], [2, 2, 2, 2]])

    def plain(z, y):
        return F.cross_entropy(z.movedim(-1, 1), y)

    truth = dense(kind, "2.weight", lambda w: w, model, x, y, plain)
    truths.assert_same(found(kind, model, x, y), truth)


@pytest.mark.parametrize(
    "options",
    [{"weight": [0.5, 2.0, 1.0]}, {"ignore_index": 1}, {"label_smoothing": 0.2}],
    ids=["class weights", "ignored class", "label smoothing"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_count_as_the_loss_says(kind, options):
    model, x, y = make(), batch(5, 2), torch.tensor([0, 2, 1, 1, 0])
    if "weight" in options:
        options = {"weight": x.new_tensor(options["weight"])}
    loss = torch.nn.CrossEntropyLoss(**options)
    truth = dense(kind, "2.weight", lambda w: w, model, x, y, loss)
    truths.assert_same(found(kind, model, x, y, loss=loss), truth)


@pytest.mark.parametrize("kind", KINDS)
def test_the_function_takes_tensors(kind):
    model, x, y = make(), batch(5, 2), torch.tensor([0, 2, 1, 1, 0])
    features = model[1](model[0](x))
    value = head_penalty(kind, features, model[2].weight, y, bias=model[2].bias)
    truth = dense(kind, "2.weight", lambda w: w, model, x, y, F.cross_entropy)
    truths.assert_same((value, truths.gradients_of(value, model)), truth)


# -- confident networks ---------------------------------------------------------------------------

# Margins of 28 leave 1 - p = 1e-12; those of 120 leave e^-120, which float32 cannot hold.
LOGITS = {
    "undecided": [[0.3, -0.2, 0.1], [1.0, 0.9, -0.4]],
    "1e-12": [[28.3, 0.1, -0.7], [0.4, 27.9, 0.2]],
    "same class": [[28.3, 0.1, -0.7], [27.5, -0.3, 0.9]],
    "one of two": [[28.3, 0.1, -0.7], [0.2, 0.5, -0.4]],
    "1e-17": [[40.0, 0.1, -0.7], [39.0, -0.3, 0.9]],
}
WEIGHT = [[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]]


def form(kind):
    """Of two rows with features of length 1, alike, so that the curvature alone is left."""

    def value(z):
        features, ones = torch.tensor([[0.6, 0.8]] * 2, dtype=z.dtype), z.new_ones(2)
        return softmax_head(kind, z, features, z.new_tensor(WEIGHT), ones, ones[0])

    return value


QUANTITIES = {
    "trace": (form("trace"), lambda rows: sum(decimals.gini(row) for row in rows)),
    "kappa": (form("kappa"), lambda rows: sum(decimals.quadratic(row, WEIGHT) for row in rows)),
    "trace_squared": (
        form("trace_squared"),
        lambda rows: sum(decimals.pair(a, b) for a in rows for b in rows),
    ),
}


def decimal_gradient(function, rows):
    """Central differences in 80 digits: a step of 1e-20 leaves an error of 1e-40."""
    with localcontext(Context(prec=80)):
        step, gradient = Decimal("1e-20"), []
        rows = [[Decimal(z) for z in row] for row in rows]
        for i, row in enumerate(rows):
            gradient.append([])
            for j in range(len(row)):
                ends = []
                for sign in (1, -1):
                    moved = [list(r) for r in rows]
                    moved[i][j] += sign * step
                    ends.append(function(moved))
                gradient[-1].append(float((ends[0] - ends[1]) / (2 * step)))
        return torch.tensor(gradient, dtype=torch.float64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", QUANTITIES)
@pytest.mark.parametrize("case", LOGITS)
def test_confidence_costs_no_digits(case, name, dtype):
    z = torch.tensor(LOGITS[case], dtype=dtype, requires_grad=True)
    function, precise = QUANTITIES[name]
    value = function(z)
    (gradient,) = torch.autograd.grad(value, z)
    rows = z.detach().double().tolist()
    rtol = 2e-13 if dtype == torch.float64 else 2e-5
    with localcontext(Context(prec=80)):
        torch.testing.assert_close(float(value.detach()), float(precise(rows)), rtol=rtol, atol=0.0)
    truth = decimal_gradient(precise, rows)
    size = truth.abs().amax(dim=1, keepdim=True)  # every sample by itself
    torch.testing.assert_close(gradient.double() / size, truth / size, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_at_one_minus_1e_12(kind):
    model, y = make(), torch.tensor([0, 2, 1, 1, 0])
    features = model[1](model[0](batch(5, 2))).detach()
    inputs = [features, 200 * model[2].weight.detach()]
    probabilities = (inputs[0] @ inputs[1].T).softmax(dim=1).amax(dim=1)
    assert bool((1 - probabilities < 1e-12).any())
    scale = 1 / float(head_penalty(kind, inputs[0], inputs[1].requires_grad_(), y).detach())
    inputs = [t.detach().requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(
        lambda a, w: scale * head_penalty(kind, a, w, y), inputs, eps=1e-7, rtol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stay_finite_beyond_float32(kind):
    weight = torch.tensor([[300.0, 0.0], [-300.0, 1.0]], requires_grad=True)  # margins of 600
    features = torch.tensor([[1.0, 0.5], [-1.0, 0.5]], requires_grad=True)
    value = head_penalty(kind, features, weight, torch.tensor([0, 0]))
    gradients = torch.autograd.grad(value, [features, weight])
    assert value.item() == 0.0
    assert all(bool(torch.isfinite(g).all()) for g in gradients)


def by_definition(kind, z, features, weight):
    """The sums over rows, as they are written, for autograd in float64."""
    p = z.softmax(dim=1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    if kind == "trace_squared":
        return ((features @ features.T).square() * torch.einsum("nij,mij->nm", A, A)).sum()
    of_row = A.diagonal(dim1=1, dim2=2).sum(dim=1)
    if kind == "kappa":
        of_row = torch.einsum("nij,id,jd->n", A, weight, weight)
    return (features.square().sum(dim=1) * of_row).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_many_classes_alike_cost_no_digits(kind):
    generator = torch.Generator().manual_seed(4)
    shapes = [(20, 50), (20, 10), (50, 10)]
    z, features, weight = (torch.randn(shape, generator=generator) for shape in shapes)
    inputs = [0.1 * z, features, weight + 50.0]  # rows of W with much in common
    precise = [t.double().requires_grad_() for t in inputs]
    truth = by_definition(kind, *precise)
    expected = torch.autograd.grad(truth, precise, materialize_grads=True)
    inputs = [t.requires_grad_() for t in inputs]
    value = softmax_head(kind, *inputs, None, 1.0)
    gradients = torch.autograd.grad(value, inputs, materialize_grads=True)
    for got, wanted in zip((value, *gradients), (truth, *expected), strict=True):
        size = wanted.abs().amax().clamp_min(1e-30)
        torch.testing.assert_close(got.double() / size, wanted / size, rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_the_penalty_in_float32(kind):
    model, x, y = make().float(), batch(5, 2).float(), torch.tensor([0, 2, 1, 1, 0])
    plain = found(kind, model, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        value, gradients = found(kind, model, x, y)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, plain[0], rtol=0.02, atol=0.0)
    for name, gradient in gradients.items():  # 8 bits in the features and logits
        size = plain[1][name].abs().max()
        torch.testing.assert_close(gradient / size, plain[1][name] / size, rtol=0.0, atol=0.03)


# -- the hook -------------------------------------------------------------------------------------


def test_the_task_gradient_is_untouched_and_the_hook_goes():
    model, x, y = make(), batch(5, 2), torch.tensor([0, 2, 1, 1, 0])
    plain = truths.gradients_of(F.cross_entropy(model(x), y), model)
    penalty = HeadPenalty(model, 0.0, kind="kappa")
    with penalty.shared_forward():
        outputs = model(x)
    loss = F.cross_entropy(outputs, y) + penalty(x, y, outputs=outputs)
    both = truths.gradients_of(loss, model)
    assert all(torch.equal(plain[name], both[name]) for name in plain)
    for module in (model, model[2]):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    outputs = model(x)
    with pytest.raises(SpiritlevelError, match="no forward pass through the layer '2'"):
        penalty(x, y, outputs=outputs)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_the_value_is_without_the_weight_and_the_gradient_with_it(loss):
    model, x = make(), batch(5, 2)
    y = torch.tensor([0, 2, 1, 1, 0]) if loss == "cross_entropy" else batch(5, 3, seed=2)
    whole, gradients = found("kappa", model, x, y, loss=loss)
    penalty = HeadPenalty(model, 0.25, kind="kappa", loss=loss)
    part = call(penalty, x, y)
    torch.testing.assert_close(penalty.value, whole.detach())
    assert not penalty.value.requires_grad
    quarter = {name: gradient / 4 for name, gradient in gradients.items()}
    truths.assert_same((part, truths.gradients_of(part, model)), (whole / 4, quarter))


def test_a_model_with_a_hook_can_be_copied_and_evaluated():
    model, x, y = make(), batch(5, 2), torch.tensor([0, 2, 1, 1, 0])
    penalty = HeadPenalty(model)
    with penalty.shared_forward():
        outputs = model(x)
        copied = copy.deepcopy(model)
        with torch.no_grad():
            model(2 * x)  # does not replace the features of the forward with gradients
    assert penalty(x, y, outputs=outputs).item() > 0
    torch.testing.assert_close(copied(x), outputs)


def test_outputs_of_another_forward_are_refused():
    model, x, y = make(), batch(5, 2), torch.tensor([0, 2, 1, 1, 0])
    penalty = HeadPenalty(model)
    with penalty.shared_forward():
        outputs = model(x)
        model(2 * x)
    with pytest.raises(SpiritlevelError, match="its pooled output differs from the network's by"):
        penalty(x, y, outputs=outputs)


def test_refusals():
    model, x, y = make(), batch(5, 2), torch.tensor([0, 2, 1, 1, 0])
    with pytest.raises(SpiritlevelError, match=r"'trace', 'kappa' or 'trace_squared'\. Got 'max'"):
        HeadPenalty(model, kind="max")
    with pytest.raises(SpiritlevelError, match=r"'weight' .* at least 0\. Got -1"):
        HeadPenalty(model, weight=-1)
    with pytest.raises(SpiritlevelError, match=r"Got 'nope'\. There are: 0, 2"):
        HeadPenalty(model, head="nope")
    with pytest.raises(SpiritlevelError, match=r"must have a linear or convolutional layer"):
        HeadPenalty(nn.Tanh())
    own_loss = HeadPenalty(model, loss=lambda z, y: (z.exp()).sum(dim=1))
    refused("its curvature is differentiated", lambda: call(own_loss, x, y), model)
    penalty = HeadPenalty(model)
    with torch.no_grad():
        refused("saw no forward pass", lambda: call(penalty, x, y), model)
    refused("cannot be", lambda: call(HeadPenalty(model, head="0"), x, y), model)
    with pytest.raises(SpiritlevelError, match=r"at least one sample\. Got outputs of shape"):
        head_penalty("trace", model[1](model[0](x[:0])), model[2].weight, y[:0])
    model[2].requires_grad_(False)
    with pytest.raises(SpiritlevelError, match=r"layer '2' .* Got a frozen one\. Unfreeze it"):
        HeadPenalty(model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_batch_that_cannot_be_measured_moves_nothing(kind, trouble):
    model, x, y = make(), batch(5, 2), torch.tensor([0, 2, 1, 1, 0])
    penalty = HeadPenalty(model, kind=kind)
    expected = call(penalty, x, y)
    value, weight = penalty.value.clone(), model[2].weight.detach().clone()
    act, text = troubled(trouble, penalty, x, y, last="2", layer="2")
    refused(text, act, model)
    assert torch.equal(penalty.value, value)
    # and the next batch is penalized as if nothing had been
    model[2].requires_grad_(True)
    with torch.no_grad():
        model[2].weight.copy_(weight)
    assert torch.equal(call(penalty, x, y), expected)
