"""The decomposition of paper 001 against dense Jacobians, dense GGN and dense Hessians."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev

import spiritlevel as sl
from measures.decomposition.decomposition_by_hand import (
    NAMES,
    check,
    decomposed,
    features,
    measured,
    windows,
)
from spiritlevel.math.positions import Positions
from spiritlevel.measures.decomposition.matrices import softmax_basis
from spiritlevel.measures.setup import Setup
from spiritlevel.model.layers import Layout, rule_for
from spiritlevel.testing import references
from zoo import decimal_softmax
from zoo.plain import convnet, drawn, mlp, normal


def weights_of(model):
    return {n.rpartition(".")[0]: n for n, _ in model.named_parameters() if n.endswith("weight")}


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_fully_connected_networks_against_dense_jacobians(activation, generator):
    model = mlp([5, 7, 6, 4], activation, generator)
    x, y = normal(6, 5, generator=generator), torch.tensor([0, 1, 2, 3, 0, 1])
    report = measured(model, [(x[:4], y[:4]), (x[4:], y[4:])])
    check(report, decomposed(model, x, ["0", "2", "4"], features))
    assert all(report[name].exact for name in NAMES)


def test_convolutions_against_dense_jacobians(generator):
    model = convnet(generator)
    x, y = normal(5, 2, 4, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1])
    check(measured(model, (x, y)), decomposed(model, x, ["0", "2", "5"], windows))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_centered_is_the_ggn_trace_of_fully_connected_networks(activation, generator):
    model = mlp([4, 6, 5, 3], activation, generator)
    x, y = normal(7, 4, generator=generator), torch.arange(7) % 3
    rows = measured(model, (x, y)).layers["decomposition.centered"]
    truth = references.Truth(model, [(x, y)], F.cross_entropy)
    for layer, name in weights_of(model).items():
        assert rows[layer].value == pytest.approx(float(truth.ggn([name]).trace()), rel=1e-12)


def test_centered_bounds_the_ggn_trace_where_weights_are_shared(generator):
    for _ in range(10):
        model = convnet(generator)
        x, y = normal(4, 2, 4, 4, generator=generator), torch.tensor([0, 1, 2, 0])
        rows = measured(model, (x, y)).layers["decomposition.centered"]
        truth = references.Truth(model, [(x, y)], F.cross_entropy)
        for layer, name in weights_of(model).items():
            trace = float(truth.ggn([name]).trace())
            if layer in ("2", "5"):  # one position: nothing is shared
                assert rows[layer].value == pytest.approx(trace, rel=1e-12)
            else:
                assert rows[layer].value > 1.05 * trace or trace == 0.0


@pytest.mark.parametrize("seed", range(40))
def test_upper_bound_holds(seed):
    generator = torch.Generator().manual_seed(seed)
    if seed % 2:
        model, x = convnet(generator), normal(3, 2, 4, 4, generator=generator)
    else:
        sizes = torch.randint(2, 6, (4,), generator=generator).tolist()
        model = mlp([*sizes, 3], nn.ReLU, generator)
        x = normal(3, sizes[0], generator=generator)
    scale = float(torch.rand((), generator=generator) * 4)  # from undecided to confident
    y = torch.randint(3, (3,), generator=generator)
    with torch.no_grad():
        list(model.parameters())[-2].mul_(scale)
    report = measured(model, (scale * x, y))
    truth = references.Truth(model, [(scale * x, y)], F.cross_entropy)
    bounds = report.layers["decomposition.upper_bound"]
    for layer, name in weights_of(model).items():
        for matrix in (truth.ggn([name]), truth.hessian([name])):
            assert bounds[layer].value >= float(matrix.trace()) * (1 - 1e-12)
    centered = report.layers["decomposition.centered"]
    assert all(bounds[layer].value >= centered[layer].value for layer in bounds)


# -- digits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_confident_networks_keep_their_digits(dtype):
    logits = torch.tensor([[40.0, 3.0, -2.0], [5.0, 39.0, 0.5]], dtype=torch.float64)
    model = nn.Linear(2, 3, bias=False).to(dtype).eval()
    model.weight.data.copy_(logits.T)
    x = torch.eye(2, dtype=dtype)
    found = measured(model, (x, torch.tensor([0, 1])))["decomposition.centered"]
    exact = decimal_softmax.mean([decimal_softmax.gini(row) for row in logits.tolist()])
    assert exact < 1e-14  # 1 - Σp² is 0 in floating point
    assert found.value == pytest.approx(exact, rel=1e-12 if dtype is torch.float64 else 1e-5)


def test_a_common_part_of_all_outputs_does_not_cancel(generator):
    model = mlp([4, 6, 3], nn.ReLU, generator)
    x, y = normal(8, 4, generator=generator), torch.arange(8) % 3
    plain = measured(model, (x, y))["decomposition.centered"].value
    with torch.no_grad():
        model[2].weight += 1000.0  # every class alike: the softmax does not see it
    shifted = measured(model, (x, y))["decomposition.centered"].value
    single = measured(model.float(), (x.float(), y))["decomposition.centered"].value
    # the squared norms that would cancel are 1e6 times larger, and their digits lost in float32
    assert shifted == pytest.approx(plain, rel=1e-9)
    assert single == pytest.approx(plain, rel=2e-3)


def test_the_basis_holds_one_constant_vector_a_position():
    positions = Positions((4, 3), 1)  # classes in the first dimension
    basis = softmax_basis(positions)
    torch.testing.assert_close(basis @ basis.T, torch.eye(12).double(), rtol=0, atol=1e-14)
    sums = positions.rows(basis).reshape(12, 3, 4).sum(dim=2)
    assert int((sums.abs() > 1e-12).sum()) == 3


# -- losses -------------------------------------------------------------------------------------


def test_class_weights_smoothing_and_ignored_samples_count_as_in_the_loss(generator):
    model = mlp([4, 6, 5, 3], nn.ReLU, generator)
    x, y = normal(8, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2, 0, -100])
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5]).double(), label_smoothing=0.2)
    report = measured(model, (x, y), loss=loss)
    truth = references.Truth(model, [(x, y)], loss)
    for layer, name in weights_of(model).items():
        trace = float(truth.ggn([name]).trace())
        centered = report.layers["decomposition.centered"][layer].value
        assert centered == pytest.approx(trace, rel=1e-12)
        assert report.layers["decomposition.upper_bound"][layer].value >= trace


def test_ignored_samples_do_not_count_in_the_path_eigenvalue(generator):
    model = mlp([4, 6, 3], nn.Tanh, generator)
    x, y = normal(5, 4, generator=generator), torch.tensor([0, 1, 2, 0, -100])
    part = measured(model, (x[:4], y[:4]))["decomposition.path_lambda_max"].value
    assert measured(model, (x, y))["decomposition.path_lambda_max"].value == pytest.approx(part)


class Positioned(nn.Module):
    """Three positions with four classes each from one feature vector."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 12)

    def forward(self, x):
        return self.last(self.first(x).relu()).reshape(-1, 3, 4)


def test_outputs_with_positions(generator):
    model = drawn(Positioned(), generator)
    x = normal(5, 5, generator=generator)
    y = torch.randint(4, (5, 3), generator=generator)
    y[0, 1] = -100
    rows = measured(model, (x, y)).layers["decomposition.centered"]
    truth = references.Truth(
        model, [(x, y)], lambda z, t: F.cross_entropy(z.flatten(0, 1), t.flatten())
    )
    for layer, name in weights_of(model).items():
        assert rows[layer].value == pytest.approx(float(truth.ggn([name]).trace()), rel=1e-12)


# -- weights that are used more than once --------------------------------------------------------


class Repeated(nn.Module):
    """One hidden layer applied twice, and a copy of it under another name."""

    def __init__(self, tied):
        super().__init__()
        self.first, self.hidden, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        if tied:
            self.again = nn.Linear(4, 4)
            self.again.weight = self.hidden.weight
        self.tied = tied

    def forward(self, x):
        x = self.hidden(self.first(x).tanh()).tanh()
        return self.last((self.again if self.tied else self.hidden)(x).tanh())


@pytest.mark.parametrize("tied", [False, True])
def test_all_uses_of_a_weight_count(tied, generator):
    model = drawn(Repeated(tied), generator)
    x, y = normal(6, 3, generator=generator), torch.arange(6) % 3
    report = measured(model, (x, y))
    assert list(report.layers["decomposition.centered"]) == ["first", "hidden", "last"]
    twin = model.again if tied else model.hidden
    expected = []
    for sample in x:
        one = model.first(sample).tanh()
        two = model.hidden(one).tanh()

        def outputs(shifts, one=one):
            hidden = (model.hidden(one) + shifts[0]).tanh()
            return model.last((twin(hidden) + shifts[1]).tanh())

        J = jacrev(outputs)(torch.zeros(2, 4).double()).flatten(1).detach()
        s = float((one.square().sum() + two.square().sum()).detach())
        p = outputs(torch.zeros(2, 4).double()).detach().softmax(dim=0)
        A = torch.diag(p) - torch.outer(p, p)
        expected.append(s * float((A @ J @ J.T).trace()))
    value = report.layers["decomposition.centered"]["hidden"].value
    assert value == pytest.approx(sum(expected) / 6, rel=1e-12)
    truth = references.Truth(model, [(x, y)], F.cross_entropy)
    assert value >= float(truth.ggn(["hidden.weight"]).trace())


def test_sequences_and_embeddings_bound_the_ggn(generator):
    embed = nn.Embedding(7, 4, padding_idx=0)
    body = nn.Sequential(embed, nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(15, 3))
    model = drawn(body, generator)
    x = torch.randint(7, (6, 3), generator=generator)
    x[0, 0] = 0
    y = torch.arange(6) % 3
    rows = measured(model, (x, y)).layers["decomposition.centered"]
    assert rows.keys() == {"0", "1", "4"}
    truth = references.Truth(model, [(x, y)], F.cross_entropy)
    for layer, row in rows.items():
        assert row.value >= float(truth.ggn([f"{layer}.weight"]).trace()) * (1 - 1e-12)


def test_padding_tokens_are_no_input_of_an_embedding(generator):
    """Their row is not trained: of three tokens the two others are left."""

    def embedding_row(padding):
        embed = nn.Embedding(7, 4, padding_idx=padding)
        model = drawn(nn.Sequential(embed, nn.Flatten(), nn.Linear(12, 3)), torch.Generator())
        return measured(model, (x, torch.arange(6) % 3)).layers["decomposition.centered"]["0"]

    x = torch.randint(1, 7, (6, 3), generator=generator)
    x[:, 1] = 0
    assert embedding_row(0).value == pytest.approx(embedding_row(None).value * 2 / 3, rel=1e-12)


CONVOLUTIONS = [
    nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2),
    nn.Conv2d(4, 6, (2, 3), padding="same", groups=2),
    nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"),
    nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate", stride=2),
    nn.Conv3d(2, 3, 2, padding=1),
    nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    nn.ConvTranspose1d(2, 3, 3, dilation=2),
    nn.Linear(5, 3),
]


@pytest.mark.parametrize("module", CONVOLUTIONS, ids=str)
def test_squared_inputs_are_the_weights_derivative(module, generator):
    """Each output is ⟨row, patch⟩, so its derivative in the row is the patch."""
    module = module.double()
    shape = (5,) if isinstance(module, nn.Linear) else (module.in_channels, 5, 6, 4)
    spatial = module.weight.dim() - 2
    a = normal(3, *shape[: 1 + max(spatial, 0)], generator=generator)
    groups = getattr(module, "groups", 1)
    out = module(a)
    found = rule_for(module).squared_inputs(module, a, out.shape, Layout(num_samples=3))
    for sample, value in zip(a, found, strict=True):
        J = jacrev(lambda w, x=sample: functional_call(module, {"weight": w}, (x[None],)))(
            module.weight.detach()
        )
        assert float(value) == pytest.approx(
            float(J.square().sum()) * groups / out.shape[1], rel=1e-12
        )


# -- cost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outputs", "shared"), [(3, 3), (40, None)])
def test_counted_work_is_what_autograd_did(outputs, shared, generator, monkeypatch):
    model = mlp([4, 6, 5, outputs], nn.ReLU, generator)
    x, y = normal(8, 4, generator=generator), torch.arange(8) % 3
    workspace = Setup().workspace(model, (x, y))
    with workspace.surface.preserved():
        found = {}
        cards = {name: sl.cards(name)[0] for name in NAMES}
        for card in cards.values():
            card.refuse(workspace)
        workspace.run(workspace.wanted)
        calls, forwards = [], []
        grad = torch.autograd.grad
        monkeypatch.setattr(
            torch.autograd, "grad", lambda *a, **k: calls.append(1) or grad(*a, **k)
        )
        model.register_forward_hook(lambda m, args, out: forwards.append(len(out)))
        for name in NAMES[1:]:
            found[name] = cards[name].function(workspace).whole.cost
        assert found[NAMES[1]] == found[NAMES[2]]  # one piece of work
        assert found[NAMES[1]].backwards == 8 * len(calls)
        planning = 0 if shared is None else 1  # a sample shows how much a chunk will hold
        assert found[NAMES[1]].forwards == sum(forwards) == 8 + planning
        if shared is not None:
            assert len(calls) == shared
            before = workspace.cost
            assert cards[NAMES[0]].function(workspace).whole.cost == found[NAMES[1]]
            assert workspace.cost == before  # the third costs nothing more


def test_small_chunks_give_the_same(generator):
    model = convnet(generator)
    x, y = normal(7, 2, 4, 4, generator=generator), torch.arange(7) % 3
    whole, cut = measured(model, (x, y)), measured(model, (x, y), memory=1)
    for name in NAMES:
        assert cut[name].value == pytest.approx(whole[name].value, rel=1e-12)


def test_data_error_is_that_of_the_samples_means(generator):
    model = mlp([4, 6, 3], nn.ReLU, generator)
    x, y = normal(9, 4, generator=generator), torch.arange(9) % 3
    rows = [measured(model, (x[i : i + 1], y[i : i + 1]))[NAMES[1]].value for i in range(9)]
    spread = torch.tensor(rows, dtype=torch.float64).std() / math.sqrt(9)
    found = measured(model, (x, y))[NAMES[1]]
    assert found.data_stderr == pytest.approx(float(spread), rel=1e-10)


# -- refusals -----------------------------------------------------------------------------------


def test_other_losses_are_refused(generator):
    model = mlp([4, 3], nn.ReLU, generator)
    data = (normal(5, 4, generator=generator), normal(5, 3, generator=generator))
    with pytest.raises(sl.SpiritlevelError, match=r"decomposition.centered.*cross_entropy.*'mse'"):
        sl.measure(model, data, loss="mse", measures="decomposition.centered")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.inner(x, x, x, need_weights=False)[0].mean(dim=1))


def test_weights_that_their_module_does_not_use_are_refused(generator):
    model = Attention().double().eval()
    data = (normal(5, 3, 4, generator=generator), torch.arange(5) % 3)
    with pytest.raises(sl.SpiritlevelError, match=r"inner.out_proj.weight.*Choose other 'layers'"):
        sl.measure(model, data, measures="decomposition.upper_bound")
    report = sl.measure(model, data, measures="decomposition.upper_bound", layers="last")
    assert list(report.layers["decomposition.upper_bound"]) == ["last"]


def test_results_survive_the_trip_to_json(generator):
    model = mlp([4, 5, 40], nn.Tanh, generator)
    report = measured(model, (normal(3, 4, generator=generator), torch.arange(3)))
    again = sl.Report.from_json(report.to_json())
    for name in NAMES:
        assert dataclasses.asdict(again[name]) == dataclasses.asdict(report[name])
