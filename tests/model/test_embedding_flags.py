"""Embeddings with options that belong to training: measured as plain tables, or refused.

The truths are dense Hessians of the same network with a plain table, and finite differences of the
loss itself, which no option of the gradient can reach.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel import SpiritlevelError
from spiritlevel.testing import references
from spiritlevel.training import FlatnessPenalty, KappaPenalty
from zoo.plain import random

pytestmark = pytest.mark.sampled(3)  # the others at night

TOKENS = torch.tensor([[1, 1], [2, 3], [4, 4], [1, 2], [0, 5]] * 2)
Y = torch.arange(10) % 3
MEASURES = ["curvature.trace", "relative.kappa", "neuron.rho_sum", "curvature.lambda_max"]
NAMES = ["table.weight", "head.weight", "head.bias"]


class Words(nn.Module):
    """Two tokens a sample; row 6 of the table is never looked up."""

    def __init__(self, table):
        super().__init__()
        self.table, self.head = table, nn.Linear(6, 3)

    def forward(self, tokens):
        return self.head(torch.relu(self.table(tokens)).flatten(1))


class Bags(nn.Module):
    """The sum of the tokens of a sample."""

    def __init__(self, table):
        super().__init__()
        self.table, self.head = table, nn.Linear(3, 3)

    def forward(self, tokens):
        return self.head(torch.relu(self.table(tokens)))


class OwnForward(nn.Embedding):
    """Calls the function itself, with the module's options."""

    def forward(self, tokens):
        return F.embedding(
            tokens,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )


class Function(nn.Module):
    """A table without a module of its own; `options` go to the function that looks rows up."""

    def __init__(self, look_up, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(7, 3))
        self.look_up, self.options = look_up, options

    def forward(self, tokens):
        return self.look_up(tokens, self.weight, **self.options)


class SumOfRows(nn.Module):
    """What a bag computes, by indexing: torch has no second derivative of bags."""

    def __init__(self, bag):
        super().__init__()
        self.weight, self.padding = bag.weight, bag.padding_idx

    def forward(self, tokens):
        if self.padding is None:
            return self.weight[tokens].sum(dim=1)
        return (self.weight[tokens] * (tokens != self.padding)[:, :, None]).sum(dim=1)


KINDS = {"embedding": (Words, nn.Embedding), "own forward": (Words, OwnForward)}
KINDS["bag"] = (Bags, lambda *sizes, **options: nn.EmbeddingBag(*sizes, mode="sum", **options))


def make(kind="embedding", *, dtype=torch.float64, **options):
    network, table = KINDS[kind]
    return filled(network(table(7, 3, **options)), dtype)


def filled(model, dtype=torch.float64):
    """The same numbers for every kind of table."""
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(random(*p.shape, seed=i))
    return model.to(dtype).eval()


def measured(model, tokens=TOKENS, y=Y, **options):
    before = copy.deepcopy(model.state_dict())
    flags = [
        {name: getattr(m, name) for name in ("max_norm", "scale_grad_by_freq", "sparse")}
        for m in model.modules()
        if isinstance(m, nn.Embedding | nn.EmbeddingBag)
    ]
    try:
        return sl.measure(model, (tokens, y), measures=MEASURES, **options)
    finally:
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        after = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        for module, then in zip(after, flags, strict=True):
            assert all(getattr(module, name) == value for name, value in then.items())
            assert not module._forward_pre_hooks


def dense(model, tokens=TOKENS, y=Y):
    """The truths, for a model whose table has no options."""
    model = copy.deepcopy(model).double()
    if isinstance(model.table, nn.EmbeddingBag):
        model.table = SumOfRows(model.table)
    truth = references.Truth(model, [(tokens, y)], F.cross_entropy)
    kappa = rho = 0.0
    for name, shape in {n: p.shape for n, p in truth.parameters.items() if p.dim() == 2}.items():
        index = torch.arange(shape.numel()).view(shape)
        rows, neurons = (index.T, index) if name == "table.weight" else (index, index.T)
        view = references.MatrixView([list(rows)], list(neurons))
        kappa += references.kappa(truth.hessian([name]), truth.parameters[name], view)
        rho += sum(references.rho(truth.hessian([name]), truth.parameters[name], view))
    H = truth.hessian(NAMES)
    return dict(zip(MEASURES, [H.trace(), kappa, rho, torch.linalg.eigvalsh(H)[-1]], strict=True))


def agree(report, expected, rel=1e-4):
    """Eigenvalues of a bag's network come from differences of gradients; all else is exact."""
    for name, value in expected.items():
        by_products = name == "curvature.lambda_max"
        limit = rel if by_products else min(rel, 1e-9)
        assert report[name].value == pytest.approx(float(value), rel=limit), name


@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"sparse": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_options_of_the_gradient_do_not_matter(kind, options):
    agree(measured(make(kind, **options)), dense(make(kind)))


def test_the_gradient_by_frequency_is_not_that_of_the_loss():
    """What would be measured otherwise, against differences of the loss."""
    model, step = make(scale_grad_by_freq=True), 1e-6
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(TOKENS), Y), model.table.weight)
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            model.table.weight[1, 0] += sign * step
            losses.append(float(F.cross_entropy(model(TOKENS), Y)))
            model.table.weight[1, 0] -= sign * step
    difference = (losses[0] - losses[1]) / (2 * step)
    assert abs(float(gradient[1, 0]) / difference) < 0.5


@pytest.mark.parametrize("norm_type", [2.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_too_long(kind, norm_type):
    """The value is that at the weights which the model makes of them; called twice, it is equal."""
    model = make(kind, max_norm=1.0, norm_type=norm_type)
    shortened = copy.deepcopy(model)
    shortened(TOKENS)
    assert not torch.equal(shortened.table.weight, model.table.weight)
    assert torch.equal(shortened.table.weight[6], model.table.weight[6])  # never looked up
    shortened.table.max_norm = None
    expected = dense(shortened)
    first, second = measured(model), measured(model)
    agree(first, expected)
    assert [m.value for m in first.values()] == [m.value for m in second.values()]


def test_rows_of_the_right_length_are_left_as_they_are():
    model = make(max_norm=100.0)
    agree(measured(model), dense(make()))


def test_perturbed_weights_are_put_back():
    model = make(max_norm=1.0)
    before = model.table.weight.detach().clone()
    names = ["pac_bayes.sigma", "sharpness.average", "sharpness.worst"]
    sl.measure(model, (TOKENS, Y), measures=names)
    assert torch.equal(model.table.weight, before)


def test_an_error_in_between_leaves_nothing_behind():
    model = make(max_norm=1.0, sparse=True)
    before = model.table.weight.detach().clone()
    with pytest.raises(SpiritlevelError, match="NaN"):
        measured(model, forward=lambda m, batch: (m(batch[0]) * torch.nan, batch[1]))
    assert torch.equal(model.table.weight, before)
    assert (model.table.max_norm, model.table.sparse) == (1.0, True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_norm": 1.0}, r"with max_norm=1\.0: it changes the weights in place"),
        ({"scale_grad_by_freq": True}, r"with scale_grad_by_freq=True: its gradient is then not"),
        ({"sparse": True}, r"with sparse=True: its gradient is then sparse"),
    ],
)
@pytest.mark.parametrize("look_up", [F.embedding, F.embedding_bag])
def test_calls_of_the_functions_are_refused(look_up, options, text):
    network = Words if look_up is F.embedding else Bags
    if look_up is F.embedding_bag:
        options = options | {"mode": "sum"}
    model = filled(network(Function(look_up, **options)))
    with pytest.raises(SpiritlevelError, match=text + r".* Call it without .*nn\.Embedding"):
        measured(model)
    assert sl.measure(filled(network(Function(look_up))), (TOKENS, Y), measures=MEASURES[:1])


def test_a_call_below_these_functions_is_refused():
    def look_up(tokens, weight):
        return torch.embedding(weight, tokens, -1, True, False)

    with pytest.raises(SpiritlevelError, match=r"must not call embedding with scale_grad_by_freq"):
        measured(filled(Words(Function(look_up))))


@pytest.mark.parametrize("padding", [1, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_the_row_of_the_padding_is_constant(kind, padding):
    """As in training: autograd gives it no gradient."""
    model = make(kind, padding_idx=padding)
    free = {k: v for k, v in dense(model).items() if k in ("curvature.trace", "relative.kappa")}
    report = measured(model)
    loss = F.cross_entropy(model(TOKENS), Y)
    (gradient,) = torch.autograd.grad(loss, model.table.weight)
    assert not bool(gradient[padding].any())
    if kind != "bag":  # a bag leaves the padding out of its sum as well
        plain = references.Truth(make(kind), [(TOKENS, Y)], F.cross_entropy)
        H = plain.hessian(["table.weight"]).view(7, 3, 7, 3).diagonal(dim1=0, dim2=2)
        constant = float(H[..., padding].diagonal().sum())
        expected = dense(make(kind))["curvature.trace"] - constant
        assert report["curvature.trace"].value == pytest.approx(float(expected), rel=1e-9)
    agree({k: report[k] for k in free}, free)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind, dtype):
    model = make(kind, dtype=dtype)
    report = sl.measure(model, (TOKENS, Y), measures=MEASURES[:3])
    expected = dense(model)
    # two derivatives in the model's own precision
    rel = 20 * torch.finfo(dtype).eps
    for name in MEASURES[:3]:
        assert report[name].value == pytest.approx(float(expected[name]), rel=rel), name


def test_penalties_leave_the_table_alone():
    model = make(max_norm=1.0, scale_grad_by_freq=True)
    before = model.table.weight.detach().clone()
    with pytest.raises(
        SpiritlevelError,
        match=r"rows of the embedding 'table' must be no longer than max_norm=1\.0\. Got a lookup "
        r".* Run the model on the data once",
    ):
        KappaPenalty(model, 1.0, layer="head", probes=None)(TOKENS, Y)
    assert torch.equal(model.table.weight, before)
    model(TOKENS)  # shortens them, as every step of training does
    before = model.table.weight.detach().clone()
    value = KappaPenalty(model, 1.0, layer="head", probes=None)(TOKENS, Y)
    report = measured(model)
    assert float(value.detach()) == pytest.approx(
        report.layers["relative.kappa"]["head"].value, rel=1e-9
    )
    FlatnessPenalty(model, 1.0)(TOKENS, Y)
    assert torch.equal(model.table.weight, before)
    assert (model.table.max_norm, model.table.scale_grad_by_freq) == (1.0, True)
