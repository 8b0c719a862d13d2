"""Losses against torch's own with reduction="mean", and output Hessians against autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.model.losses import CrossEntropy, resolve
from zoo.losses import LOSSES, WEIGHTS

N, C = 6, 3


def outputs_and_targets(name, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(N, C, generator=generator, dtype=torch.float64)
    return outputs, LOSSES[name].targets((N, C), generator)


def dense(curvature):
    """A_n from the columns, which are tested on their own."""
    return sum(s[:, None, None] * c[:, :, None] * c[:, None, :] for c, s in curvature.columns())


@pytest.mark.parametrize("name", LOSSES)
def test_values_over_weights_are_torchs_mean(name):
    loss = resolve(LOSSES[name].given)
    outputs, targets = outputs_and_targets(name)
    values, weights = loss.values(outputs, targets), loss.weights(outputs, targets)
    assert values.shape == weights.shape == (N,)
    expected = LOSSES[name].plain(outputs, targets)
    torch.testing.assert_close(values.sum() / weights.sum(), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_curvature_is_the_hessian_of_torchs_mean(name):
    loss = resolve(LOSSES[name].given)
    outputs, targets = outputs_and_targets(name)
    H = torch.func.hessian(lambda z: LOSSES[name].plain(z, targets))(outputs)
    total = loss.weights(outputs, targets).sum()
    found = dense(loss.curvature(outputs, targets)) / total
    for n in range(N):
        torch.testing.assert_close(found[n], H[n, :, n], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", ["mse", "bce", "huber"])
@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, 2, 2)], ids=str)
def test_regression_outputs_may_have_any_shape(name, shape):
    loss, plain = resolve(LOSSES[name].given), LOSSES[name].plain
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    targets = LOSSES[name].targets(shape, generator)
    mean = loss.values(outputs, targets).sum() / loss.weights(outputs, targets).sum()
    torch.testing.assert_close(mean, plain(outputs, targets), rtol=1e-13, atol=0)
    H = torch.func.hessian(lambda z: plain(z.view(shape), targets))(outputs.flatten())
    total = loss.weights(outputs, targets).sum()
    found = torch.block_diag(*dense(loss.curvature(outputs, targets))) / total
    torch.testing.assert_close(found, H, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("name", "shape"), [("tokens", (N, 4, C)), ("pixels", (N, C, 2, 2))])
def test_every_position_may_have_a_target(name, shape):
    loss, plain = resolve(LOSSES[name].given), LOSSES[name].plain
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    targets = LOSSES[name].targets(shape, generator)
    examine(loss, outputs, targets)
    values, weights = loss.values(outputs, targets), loss.weights(outputs, targets)
    assert values.shape == weights.shape == (N,)
    mean = values.sum() / weights.sum()
    torch.testing.assert_close(mean, plain(outputs, targets), rtol=1e-13, atol=0)
    H = torch.func.hessian(lambda z: plain(z.view(shape), targets))(outputs.flatten())
    found = torch.block_diag(*dense(loss.curvature(outputs, targets))) / weights.sum()
    torch.testing.assert_close(found, H, rtol=1e-11, atol=1e-14)


def test_where_the_classes_are_may_be_said():
    z, y = torch.randn(N, C, C, dtype=torch.float64), torch.arange(N * C).view(N, C) % C
    refused("cross_entropy", z, y, r"\(6, 3, 3\) with targets \(6, 3\) in batch 7 are ambiguous")
    for place in (1, -1):
        loss = CrossEntropy(class_dim=place)
        examine(loss, z, y)
        mean = loss.values(z, y).sum() / loss.weights(z, y).sum()
        expected = F.cross_entropy(z.movedim(place, 1), y)
        torch.testing.assert_close(mean, expected, rtol=1e-13, atol=0)


def test_a_mask_hides_targets():
    z, y = torch.randn(N, 4, C, dtype=torch.float64), torch.zeros(N, 4, dtype=torch.long)
    loss = resolve("cross_entropy")
    mask = torch.arange(N * 4).view(N, 4) % 3 > 0
    shown = loss.apply_mask(y, mask, where="batch 7")
    mean = loss.values(z, shown).sum() / loss.weights(z, shown).sum()
    torch.testing.assert_close(mean, F.cross_entropy(z[mask], y[mask]), rtol=1e-13, atol=0)
    with pytest.raises(SpiritlevelError, match=r"\(6, 4\), or one entry per sample\. Got \(4,\)"):
        loss.apply_mask(y, mask[0], where="batch 7")


def test_whole_numbers_serve_as_binary_targets():
    loss = resolve("bce")
    outputs, targets = outputs_and_targets("bce")
    expected = F.binary_cross_entropy_with_logits(outputs, targets)
    for given in (targets.long(), targets.bool()):
        examine(loss, outputs, given)
        found = loss.values(outputs, given).sum() / loss.weights(outputs, given).sum()
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_a_confident_sigmoid_keeps_its_digits():
    # σ(z)(1 - σ(z)) at z = 60 is e^-60 to all digits, and 0 if it is computed like that.
    z = torch.tensor([[60.0], [-60.0]], dtype=torch.float64)
    found = resolve("bce").curvature(z, torch.zeros_like(z)).trace()
    expected = torch.tensor([-60.0, -60.0], dtype=torch.float64).exp()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    naive = z.sigmoid() * (1 - z.sigmoid())
    assert float(naive[0]) == 0.0


def test_the_curvature_of_a_callable_may_be_negative():
    outputs, targets = outputs_and_targets("saddle")
    signs = torch.stack(
        [sign for _, sign in resolve(LOSSES["saddle"].given).curvature(outputs, targets).columns()]
    )
    assert (signs > 0).any()
    assert (signs < 0).any()


# -- what may be passed ------------------------------------------------------------------------


def test_torch_modules_bring_their_options():
    loss = resolve(nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1, ignore_index=7))
    assert loss.name == "cross_entropy (label_smoothing=0.1, class weights)"
    assert loss.ignore_index == 7
    assert resolve(nn.MSELoss()).name == "mse"
    assert torch.equal(resolve(nn.BCEWithLogitsLoss(pos_weight=WEIGHTS)).pos_weight, WEIGHTS)
    assert resolve(nn.HuberLoss()).name == "HuberLoss"


def test_resolving_a_module_does_not_change_it():
    module = nn.HuberLoss()
    resolve(module)
    assert module.reduction == "mean"


def test_a_resolved_loss_resolves_to_itself():
    loss = resolve("mse")
    assert resolve(loss) is loss


def test_an_unknown_name_lists_the_known_ones():
    match = "must be one of 'cross_entropy', 'mse', 'bce', a torch loss module, .* Got 'hinge'"
    with pytest.raises(SpiritlevelError, match=match):
        resolve("hinge")


def test_a_sum_is_refused():
    with pytest.raises(SpiritlevelError, match=r"Got MSELoss\(\) with reduction='sum'"):
        resolve(nn.MSELoss(reduction="sum"))


def test_what_is_no_loss_is_refused():
    with pytest.raises(SpiritlevelError, match=r"one loss per sample\. Got int"):
        resolve(3)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda z, y: [1.0] * len(z), "Got list in batch 4"),
        (lambda z, y: (z - y).square().mean(dim=0), r"Got \(3,\) in batch 4"),
    ],
)
def test_a_callable_must_return_one_value_a_sample(function, got):
    outputs, targets = outputs_and_targets("mse")
    loss = resolve(function)
    match = rf"shape \(6,\), or the mean of the batch\. {got}\. Use reduction='none'"
    with pytest.raises(SpiritlevelError, match=match):
        loss.check(outputs, targets, where="batch 4")


# -- shapes and ranges -------------------------------------------------------------------------


def examine(loss, outputs, targets, where="batch 7"):
    """Shapes first, then values, as for every batch of a measurement."""
    loss = resolve(loss)
    loss.check(outputs, targets, where=where)
    if bool(loss.invalid(outputs, targets).any()):
        loss.refuse_invalid(outputs, targets, where=where)


def refused(loss, outputs, targets, match):
    with pytest.raises(SpiritlevelError, match=match):
        examine(loss, outputs, targets)


def test_cross_entropy_refuses_what_does_not_fit():
    z, y = torch.zeros(N, C), torch.zeros(N, dtype=torch.long)
    refused("cross_entropy", torch.zeros(N, 1), y, r"at least 2 classes. Got \(6, 1\) in batch 7")
    refused("cross_entropy", torch.zeros(N), y, r"Got \(6,\) in batch 7")
    refused("cross_entropy", z, y[:4], r"need shape \(6,\).*Got \(4,\) in batch 7")
    refused("cross_entropy", z, torch.zeros(N), r"shape \(6, 3\)\. Got \(6,\) in batch 7")
    tokens = torch.zeros(N, 4, C)
    refused("cross_entropy", tokens, y, r"shape \(6, 3\) or \(6, 4\) .*Got \(6,\) in batch 7")
    refused("cross_entropy", z, y + 3, r"must lie in \[0, 2\].*3 outputs. Got 3 in batch 7")
    refused("cross_entropy", z, y - 1, r"must lie in \[0, 2\].*3 outputs. Got -1 in batch 7")
    module = nn.CrossEntropyLoss(weight=torch.ones(5))
    refused(module, z, y, r"one class weight per class \(3\)\. Got 5")


def test_the_value_to_ignore_is_no_label_out_of_range():
    examine("cross_entropy", torch.zeros(2, 3), torch.tensor([-100, 1]))
    refused("cross_entropy", torch.zeros(2, 3), torch.tensor([-1, 1]), "Got -1 in batch 7")
    module = nn.CrossEntropyLoss(ignore_index=-1)
    examine(module, torch.zeros(2, 3), torch.tensor([-1, 1]))


@pytest.mark.parametrize("name", ["mse", "bce"])
def test_regression_targets_need_the_outputs_shape(name):
    match = rf"The loss '{name}' needs .* shape \(6, 1\)\. Got \(6,\) in batch 7"
    refused(name, torch.zeros(N, 1), torch.zeros(N), match)


def test_binary_targets_lie_between_0_and_1():
    targets = torch.linspace(-0.5, 2, N)
    refused("bce", torch.zeros(N), targets, r"Got values from -0.5 to 2 in batch 7")


def test_targets_that_are_no_numbers_are_refused():
    z = torch.zeros(N, C)
    bad = torch.full((N, C), 0.3)
    bad[2, 1] = float("nan")
    refused("mse", z, bad, r"'mse' must be finite\. Got NaN or infinity in batch 7")
    refused("bce", z, bad, "in batch 7")
    refused("cross_entropy", z, bad, "in batch 7")
    refused(
        nn.HuberLoss(), z, bad, r"of the loss 'HuberLoss' must be finite\. Got NaN .* in batch 7"
    )
    refused(
        lambda z, y: F.huber_loss(z, y, reduction="none"),
        *(z, bad),
        r"'<lambda>' must be finite\. It is NaN .* in batch 7",
    )
