"""Every loss of torch: its own mean and its output Hessian, and measures against dense Hessians."""

import copy

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.model.losses import resolve
from spiritlevel.testing.references import Truth
from zoo.torch_losses import CASES, CLASSES, NOT_OF_OUTPUTS_AND_TARGETS

N = 13
STEP = 1e-5


def outputs_and_targets(case, count=N):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(count, CLASSES, generator=generator, dtype=torch.float64)
    return case.last(scores), case.targets(count, generator)


def differences(gradient, at):
    """The Jacobian of a gradient by central differences, for losses without double backward."""
    rows = []
    for index in range(at.numel()):
        step = torch.zeros_like(at)
        step.view(-1)[index] = STEP
        rows.append((gradient(at + step) - gradient(at - step)).flatten() / (2 * STEP))
    return torch.stack(rows)


def hessian(case, outputs, targets):
    """Of the module's mean in all outputs, shape (N·C, N·C)."""
    if case.is_smooth:
        H = torch.autograd.functional.hessian(lambda z: case.mean(z, targets), outputs)
        return H.reshape(outputs.numel(), outputs.numel())

    def gradient(z):
        z = z.detach().requires_grad_()
        return torch.autograd.grad(case.mean(z, targets), z)[0]

    return differences(gradient, outputs)


def test_every_loss_of_torch_is_here():
    tried = {type(case.module) for case in CASES.values()}
    tried |= {type(module) for module in NOT_OF_OUTPUTS_AND_TARGETS}
    everything = {
        kind
        for name, kind in vars(nn).items()
        if name.endswith("Loss") and isinstance(kind, type) and "2d" not in name
    }
    # it holds the last layer: only in newer versions of torch
    assert {kind.__name__ for kind in everything - tried} <= {"LinearCrossEntropyLoss"}


@pytest.mark.parametrize("name", CASES)
def test_the_mean_is_the_modules(name):
    case = CASES[name]
    loss = resolve(case.module)
    outputs, targets = outputs_and_targets(case)
    loss.check(outputs, targets, where="batch 7")
    assert not loss.invalid(outputs, targets).any()
    values, weights = loss.values(outputs, targets), loss.weights(outputs, targets)
    assert values.shape == weights.shape == (N,)
    mean = values.sum() / weights.sum()
    torch.testing.assert_close(mean, case.mean(outputs, targets), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_the_curvature_is_the_hessian_of_the_modules_mean(name):
    case = CASES[name]
    loss = resolve(case.module)
    outputs, targets = outputs_and_targets(case)
    loss.check(outputs, targets, where="batch 7")
    curvature = loss.curvature(outputs, targets)
    assert curvature.num_columns == loss.num_columns(outputs, targets)
    # elements of one position, in columns that are tested on their own
    blocks = sum(s[:, None, None] * c[:, :, None] * c[:, None] for c, s in curvature.columns())
    ours = torch.block_diag(*blocks) / loss.weights(outputs, targets).sum()
    expected = hessian(case, outputs, targets)
    atol = 1e-13 if case.is_smooth else 1e-9  # round-off of the differences: 1e-16 / STEP
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=atol)


def network(case, seed=3):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, CLASSES), copy.deepcopy(case.last)]
        return nn.Sequential(*layers).double().eval()


def weight_hessian(case, model, x, targets):
    if case.is_smooth:
        truth = Truth(model, [(x, targets)], case.mean)
        return truth.hessian(list(truth.parameters))
    start = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [p.numel() for p in start.values()]

    def gradient(flat):
        flat = flat.detach().requires_grad_()
        parts = zip(start, flat.split(sizes), strict=True)
        swapped = {name: part.view(start[name].shape) for name, part in parts}
        outputs = torch.func.functional_call(model, swapped, (x,))
        return torch.autograd.grad(case.mean(outputs, targets), flat)[0]

    H = differences(gradient, torch.cat([p.flatten() for p in start.values()]))
    return (H + H.T) / 2


@pytest.mark.parametrize("name", CASES)
def test_measures_agree_with_the_dense_hessian_of_the_modules_mean(name):
    # Batches of different sizes: their means count by what the module divides by.
    case = CASES[name]
    model = network(case)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    targets = case.targets(N, generator)
    batches = list(zip(x.split([3, 9, 1]), targets.split([3, 9, 1]), strict=True))
    ends = ["curvature.lambda_max", "curvature.lambda_min"]
    report = sl.measure(model, batches, loss=case.module, measures=ends, rtol=1e-6)
    spectrum = torch.linalg.eigvalsh(weight_hessian(case, model, x, targets))
    # 1e-6: Lanczos stops there, and differences are no better
    size = float(spectrum.abs().max())
    top, bottom = report["curvature.lambda_max"].value, report["curvature.lambda_min"].value
    assert top == pytest.approx(float(spectrum[-1]), abs=1e-6 * size)
    assert bottom == pytest.approx(float(spectrum[0]), abs=1e-6 * size)


@pytest.mark.parametrize("name", CASES)
def test_a_model_in_float32_has_the_same_mean(name):
    case = CASES[name]
    loss = resolve(case.module)
    outputs, targets = outputs_and_targets(case)
    loss.check(outputs.float(), targets, where="batch 7")
    narrow = targets.float() if targets.is_floating_point() else targets
    weights = loss.weights(outputs.float(), narrow)
    assert weights.dtype == torch.float64
    torch.testing.assert_close(weights, loss.weights(outputs, targets), rtol=1e-12, atol=0)
    mean = loss.values(outputs.float().double(), narrow).sum() / weights.sum()
    expected = case.mean(outputs, targets)
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-6)  # float32 in, float64 out


@pytest.mark.parametrize(
    "module", NOT_OF_OUTPUTS_AND_TARGETS, ids=lambda module: type(module).__name__
)
def test_losses_with_other_arguments_are_refused_with_a_way_out(module):
    outputs = torch.randn(N, CLASSES, generator=torch.Generator().manual_seed(1)).double()
    match = (
        rf"The loss '{type(module).__name__}' (is called as loss\(outputs, targets\).*Pass a "
        r"function|must return one value per sample.*Got _ASMoutput)"
    )
    with pytest.raises(sl.SpiritlevelError, match=match):
        resolve(module).check(outputs, torch.arange(N) % CLASSES, where="batch 7")
