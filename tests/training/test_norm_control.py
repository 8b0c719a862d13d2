"""Norm control of 001: statistics to round-off, against formulas written by hand."""

import copy

import pytest
import torch
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training.norm_control import (
    MeanVarianceNorm,
    WeightConstraint,
    constrain_weights_,
    replace_norms,
    weight_matrices,
)
from spiritlevel.training.sam.optimizers import SAM


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


# The norm layer


@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 5), (4, 3, 5, 5), (2, 3, 4, 4, 4)])
def test_statistics_of_every_sample(shape):
    out = MeanVarianceNorm()(3 + 7 * random(*shape))
    for sample in out:
        assert float(sample.mean()) == pytest.approx(0, abs=1e-14)
        assert float(sample.square().mean()) == pytest.approx(1, rel=1e-14)


def test_output_is_that_of_the_formula():
    x = 3 + 7 * random(4, 3, 5)
    out = MeanVarianceNorm()(x)
    for sample, found in zip(x, out, strict=True):
        mean = sum(sample.flatten().tolist()) / 15
        variance = sum((value - mean) ** 2 for value in sample.flatten().tolist()) / 15
        torch.testing.assert_close(found, (sample - mean) / variance**0.5, rtol=1e-13, atol=1e-14)


def test_a_sample_does_not_depend_on_the_others():
    x, norm = random(4, 3, 5), MeanVarianceNorm()
    whole = norm(x)
    for i in range(4):
        assert torch.equal(norm(x[i : i + 1])[0], whole[i])
    jacobian = torch.autograd.functional.jacobian(norm, x)  # (4, 3, 5, 4, 3, 5)
    for i in range(4):
        for j in range(4):
            assert bool(jacobian[i, :, :, j].any()) == (i == j)


def test_batch_normalization_does_depend_on_them():
    """Meta: the test above can fail."""
    x, norm = random(4, 3, 5), nn.BatchNorm1d(3).double()
    assert not torch.allclose(norm(x)[:2], norm(x[:2]))


def test_sequence_first():
    x = random(5, 4, 3)
    found = MeanVarianceNorm(batch_dim=1)(x)
    torch.testing.assert_close(found, MeanVarianceNorm()(x.transpose(0, 1)).transpose(0, 1))


def test_first_and_second_derivatives():
    x = random(3, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(MeanVarianceNorm(), x)
    assert torch.autograd.gradgradcheck(MeanVarianceNorm(), x)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_constant_samples_give_zeros_and_no_gradient(value, dtype):
    x = random(2, 1001).to(dtype)
    x[1] = value
    x.requires_grad_()
    out = MeanVarianceNorm()(x)
    (out * torch.arange(1001)).sum().backward()
    assert out.dtype == dtype
    assert not out[1].any()
    assert not x.grad[1].any()
    assert torch.isfinite(x.grad).all()
    assert x.grad[0].any()


def test_half_precision_is_computed_in_float32():
    x = (1000 + 100 * random(2, 500)).to(torch.float16)  # its squares overflow
    expected = MeanVarianceNorm()(x.double())
    torch.testing.assert_close(MeanVarianceNorm()(x).double(), expected, rtol=2e-3, atol=2e-3)


def test_input_without_samples_is_refused():
    with pytest.raises(SpiritlevelError, match=r"Got shape \(3,\)\. Add one: x\.unsqueeze\(0\)"):
        MeanVarianceNorm()(torch.ones(3))


# Replacing


class Block(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), norm

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()


def test_all_norms_are_replaced_in_place():
    shared = nn.BatchNorm2d(4)
    twice = Block(nn.GroupNorm(2, 4))
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        Block(shared),
        Block(shared).eval(),
        twice,
        twice,
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.LayerNorm(8),
        nn.RMSNorm(8),
    ).double()
    shared.train()
    model[8].eval()
    paths = replace_norms(model)
    assert paths == ["1", "2.norm", "3.norm", "4.norm", "5.norm", "8", "9"]
    for path in paths:
        assert type(model.get_submodule(path)) is MeanVarianceNorm
    assert model[2].norm is model[3].norm
    assert model[4] is model[5]
    assert model[2].norm is not model[1]
    assert [model[1].training, model[8].training] == [True, False]
    out = model(random(3, 1, 6, 6))
    assert out.dtype == torch.float64
    assert float(out[1].square().mean()) == pytest.approx(1, rel=1e-14)
    assert not any(isinstance(m, (nn.BatchNorm2d, nn.LayerNorm)) for m in model.modules())


def test_only_the_kinds_asked_for():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3), nn.SyncBatchNorm(3))
    assert replace_norms(copy.deepcopy(model), (nn.LayerNorm,)) == ["1"]
    assert replace_norms(model, (nn.BatchNorm1d, nn.SyncBatchNorm)) == ["0", "2"]


def test_models_without_norms_are_refused():
    with pytest.raises(SpiritlevelError, match=r"GroupNorm, RMSNorm\. Got Sequential without any"):
        replace_norms(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(SpiritlevelError, match=r"is one itself \(LayerNorm\)"):
        replace_norms(nn.LayerNorm(3))


def test_sequence_first_attention_needs_the_dimension():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    before = [type(module) for module in layer.modules()]
    with pytest.raises(SpiritlevelError, match=r"layer 'self_attn' .* batch_dim=1"):
        replace_norms(layer)
    assert [type(module) for module in layer.modules()] == before
    assert replace_norms(layer, batch_dim=1) == ["norm1", "norm2"]
    x = torch.randn(5, 3, 8)
    torch.testing.assert_close(layer(x)[:, :1], layer(x[:, :1]))


def test_torch_encoders_run_in_eval_mode_too():
    """Their fused path would read the scales of norms that are no longer there."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    replace_norms(model)
    x, mask = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 4] = True
    trained = model(x, src_key_padding_mask=mask)
    model.eval()
    with torch.no_grad():
        evaluated = model(x, src_key_padding_mask=mask)
    torch.testing.assert_close(evaluated, trained)
    assert float(evaluated[1].square().mean()) == pytest.approx(1, rel=1e-5)


# The weight constraint


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.conv = nn.Conv2d(4, 6, 3, groups=2)
        self.up = nn.ConvTranspose2d(4, 6, 3, groups=2)
        self.bilinear = nn.Bilinear(3, 4, 5)
        self.attention = nn.MultiheadAttention(8, 2)
        self.mixed = nn.MultiheadAttention(8, 2, kdim=4)
        self.recurrent = nn.LSTM(3, 5)
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.token = nn.Parameter(torch.zeros(1, 1, 4))


FAN_IN = {
    "linear.weight": 6,
    "conv.weight": 2 * 9,
    "up.weight": 2 * 9,
    "bilinear.weight": 12,
    "attention.in_proj_weight[q]": 8,
    "attention.in_proj_weight[k]": 8,
    "attention.in_proj_weight[v]": 8,
    "attention.out_proj.weight": 8,
    "mixed.q_proj_weight": 8,
    "mixed.k_proj_weight": 4,
    "mixed.v_proj_weight": 8,
    "mixed.out_proj.weight": 8,
    "recurrent.weight_ih_l0": 3,
    "recurrent.weight_hh_l0": 5,
}


def test_every_weight_matrix_gets_mean_0_and_variance_2_over_fan_in():
    torch.manual_seed(0)
    model = Everything().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert sorted(constrain_weights_(model)) == sorted(FAN_IN)
    matrices = {matrix.name: matrix for matrix in weight_matrices(model)}
    for name, num_in in FAN_IN.items():
        weight = matrices[name].weight
        assert matrices[name].num_in == num_in
        assert float(weight.mean()) == pytest.approx(0, abs=1e-15)
        assert float(weight.square().mean()) == pytest.approx(2 / num_in, rel=1e-13)
    for name, value in model.state_dict().items():
        kept = "bias" in name or name.split(".")[0] in ("embedding", "norm", "token")
        assert torch.equal(value, before[name]) == kept, name


def test_weights_are_those_of_the_formula_and_stay():
    torch.manual_seed(0)
    layer = nn.Linear(6, 5).double()
    w = layer.weight.detach().clone()
    constrain_weights_(layer)
    expected = (w - w.mean()) / w.var(correction=0).sqrt() * (2 / 6) ** 0.5
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=1e-13, atol=1e-15)
    assert float(layer.weight.detach().square().sum()) == pytest.approx(2 * 5, rel=1e-13)
    constrain_weights_(layer)
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_norm_is_2_n_out_in_other_precisions(dtype, tolerance):
    layer = nn.Linear(300, 20).to(dtype)
    constrain_weights_(layer)
    assert layer.weight.dtype == dtype
    square = float(layer.weight.detach().double().square().sum())
    assert square == pytest.approx(2 * 20, rel=tolerance)


def test_a_shared_weight_counts_once():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight
    assert constrain_weights_(nn.Sequential(one, two, one)) == ["0.weight"]


@pytest.mark.parametrize("value", [0.0, 0.1, float("nan")])
def test_constant_weights_are_refused_and_nothing_changes(value):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    nn.init.constant_(model[1].weight, value)
    before = model[0].weight.detach().clone()
    with pytest.raises(SpiritlevelError, match=r"weight '1\.weight' of shape \(2, 3\) cannot have"):
        constrain_weights_(model)
    assert torch.equal(model[0].weight, before)


def test_models_without_a_weight_to_set_are_refused():
    with pytest.raises(SpiritlevelError, match=r"Got ReLU without any"):
        WeightConstraint(nn.ReLU())
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    with pytest.raises(SpiritlevelError, match=r"layer '0' computes its weight from others"):
        WeightConstraint(nn.Sequential(layer))


@pytest.mark.parametrize("sam", [False, True])
def test_attached_to_an_optimizer(sam):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = SAM(optimizer) if sam else optimizer
    handle = WeightConstraint(model).attach(optimizer)
    x = random(8, 5)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def norms():
        return [float(model[i].weight.detach().square().sum()) for i in (0, 2)]

    assert norms() == pytest.approx([14, 6], rel=1e-13)
    start = model[0].weight.detach().clone()
    for _ in range(3):
        optimizer.step(closure)
        assert norms() == pytest.approx([14, 6], rel=1e-13)
    assert not torch.allclose(model[0].weight, start)
    handle.remove()
    optimizer.step(closure)
    assert norms() != pytest.approx([14, 6], rel=1e-6)
