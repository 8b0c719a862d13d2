"""What users write as a loss: the mean is their own, checked against dense Hessians of it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.model.losses import BinaryCrossEntropy, CrossEntropy, MeanSquaredError, resolve
from spiritlevel.testing.references import Truth
from zoo.torch_losses import WEIGHTS
from zoo.user_losses import LABELS, NUMBERS, USER_LOSSES, Counting, Focal, Halved, Learned, Smoothed

N, C = NUMBERS.shape


def users_mean(loss):
    """The user's loss in float64; the plain mean of what it returns."""
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).double()
    return lambda outputs, targets: loss(outputs, targets).mean()


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, C)).double().eval()


@pytest.fixture
def x():
    return torch.randn(N, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


@pytest.mark.parametrize("name", USER_LOSSES)
def test_mean_and_curvature_are_those_of_the_users_loss(name):
    given, targets = USER_LOSSES[name]
    loss, mean = resolve(given), users_mean(given)
    outputs = torch.randn(N, C, generator=torch.Generator().manual_seed(7)).double()
    loss.check(outputs, targets, where="batch 7")
    assert not loss.invalid(outputs, targets).any()
    total = loss.weights(outputs, targets).sum()
    ours = loss.values(outputs, targets).sum() / total
    torch.testing.assert_close(ours, mean(outputs, targets).detach(), rtol=1e-12, atol=0)
    curvature = loss.curvature(outputs, targets)
    blocks = sum(s[:, None, None] * c[:, :, None] * c[:, None] for c, s in curvature.columns())
    H = torch.autograd.functional.hessian(lambda z: mean(z, targets), outputs)
    H = H.reshape(N * C, N * C)
    torch.testing.assert_close(torch.block_diag(*blocks) / total, H, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", USER_LOSSES)
def test_measures_agree_with_the_dense_hessian_of_the_users_loss(name, model, x):
    given, targets = USER_LOSSES[name]
    batches = list(zip(x.split([4, 8, 1]), targets.split([4, 8, 1]), strict=True))
    report = sl.measure(model, batches, loss=given, measures="curvature.lambda_max", rtol=1e-6)
    truth = Truth(model, [(x, targets)], users_mean(given))
    top = float(torch.linalg.eigvalsh(truth.hessian(list(truth.parameters)))[-1])
    # 1e-6: Lanczos stops there
    assert report["curvature.lambda_max"].value == pytest.approx(top, rel=1e-6)


@pytest.mark.parametrize("given", [Focal(), lambda z, y: F.cross_entropy(3 * z, y)])
def test_an_exact_trace_of_a_users_loss(given, x):
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, C))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1.5, parameter.numel()).view_as(parameter) + number)
    model = model.double().eval()
    trace = sl.measure(model, (x, LABELS), loss=given, measures="curvature.trace")[
        "curvature.trace"
    ]
    truth = Truth(model, [(x, LABELS)], users_mean(given))
    assert trace.exact
    expected = float(truth.hessian(list(truth.parameters)).trace())
    assert trace.value == pytest.approx(expected, rel=1e-9)


def test_closed_forms_are_for_unchanged_losses_of_torch():
    assert type(resolve(Smoothed())) is CrossEntropy  # only __init__ differs
    assert resolve(Smoothed()).label_smoothing == 0.2
    assert type(resolve(nn.MSELoss())) is MeanSquaredError
    assert type(resolve(nn.BCEWithLogitsLoss())) is BinaryCrossEntropy
    assert type(resolve(F.cross_entropy)) is CrossEntropy
    for name in ("focal", "hidden option", "called", "doubled error", "replaced forward", "hooked"):
        closed = (CrossEntropy, MeanSquaredError, BinaryCrossEntropy)
        assert not isinstance(resolve(USER_LOSSES[name][0]), closed), name


def test_a_class_that_was_changed_is_not_torchs_any_more(monkeypatch):
    def forward(self, outputs, targets):
        return F.cross_entropy(2 * outputs, targets)

    monkeypatch.setattr(nn.CrossEntropyLoss, "forward", forward)
    loss = resolve(nn.CrossEntropyLoss())
    outputs = torch.randn(N, C, generator=torch.Generator().manual_seed(7)).double()
    mean = loss.values(outputs, LABELS).sum() / loss.weights(outputs, LABELS).sum()
    torch.testing.assert_close(mean, F.cross_entropy(2 * outputs, LABELS), rtol=1e-12, atol=0)


def test_a_loss_is_left_as_it_was(model, x):
    loss = Counting()
    before = copy.deepcopy(loss.state_dict())
    sl.measure(model, (x, LABELS), loss=loss, measures="curvature.trace", max_passes=4)
    assert loss.calls == 0
    assert all(torch.equal(before[name], value) for name, value in loss.state_dict().items())
    learned = Learned()
    sl.measure(model, (x, LABELS), loss=learned, measures="curvature.trace", max_passes=4)
    assert learned.temperature.grad is None
    assert learned.temperature.dtype == learned.prior.dtype == torch.float32


def test_a_temperature_that_is_trained_is_seen_at_its_present_value():
    learned = Learned()
    loss = resolve(learned)
    outputs = torch.randn(N, C, generator=torch.Generator().manual_seed(7)).double()
    with torch.no_grad():
        learned.temperature.fill_(4.0)
    torch.testing.assert_close(
        loss.values(outputs, LABELS).mean(),
        F.cross_entropy(outputs / 4.0 + learned.prior, LABELS),
    )


@pytest.mark.parametrize(
    "given",
    [nn.HuberLoss(), F.huber_loss, Halved(), lambda z, y: F.huber_loss(z, y, reduction="none")],
    ids=["module", "functional", "subclass", "lambda"],
)
def test_sequences_of_different_lengths_are_averaged_over_their_elements(given):
    generator = torch.Generator().manual_seed(8)
    parts = [torch.randn(2, 5, length, generator=generator).double() for length in (2, 7)]
    loss = resolve(given)
    total = weight = 0.0
    for outputs, targets in parts:
        loss.check(outputs, targets, where="batch 7")
        total += float(loss.values(outputs, targets).sum())
        weight += float(loss.weights(outputs, targets).sum())
    outputs, targets = (torch.cat([part[i].flatten() for part in parts]) for i in (0, 1))
    expected = F.huber_loss(outputs, targets) * (0.5 if isinstance(given, Halved) else 1.0)
    assert total / weight == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_weights_are_counted_in_full_precision(dtype):
    # 1001 is 1000 in bfloat16, 0.3 is 0.3008, and float16 ends at 65,504.
    outputs = torch.zeros(2, 1001, C, dtype=dtype)
    targets = torch.zeros(2, 1001, dtype=torch.long)
    entropy = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 1.0, 1.0]))
    weights = resolve(entropy).weights(outputs, targets)
    torch.testing.assert_close(weights, torch.full((2,), 300.3).double(), rtol=1e-7, atol=0)
    assert resolve("mse").weights(outputs, outputs).tolist() == [3003.0, 3003.0]
    assert resolve(nn.HuberLoss()).weights(outputs, outputs).tolist() == [3003.0, 3003.0]
    assert resolve("cross_entropy").errors(outputs, targets + 1).tolist() == [1001.0, 1001.0]
    long = torch.zeros(1, 70_000, dtype=dtype)
    assert resolve("mse").weights(long, long).tolist() == [70_000.0]


def test_class_weights_of_a_model_in_bfloat16(x):
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, C)).bfloat16().eval()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 0.7, 1.1]))
    wide = copy.deepcopy(model).double()
    narrow = x.bfloat16()
    report = sl.measure(model, (narrow, LABELS), loss=loss, measures="head.trace")
    exact = sl.measure(wide, (narrow.double(), LABELS), loss=loss, measures="head.trace")
    # outputs and features are rounded to 3 digits; weights rounded alike were off by as much again
    assert report["head.trace"].value == pytest.approx(exact["head.trace"].value, rel=5e-3)


def test_masks_hide_elements_of_torchs_other_losses(model, x):
    mask = torch.arange(N * C).view(N, C) % 4 > 0
    batch = {"x": x, "y": torch.where(mask, NUMBERS, torch.nan), "mask": mask}

    def forward(model, batch):
        return model(batch["x"]), batch["y"], batch["mask"]

    def mean(outputs, targets):
        return F.huber_loss(outputs[mask], NUMBERS[mask])

    options = {"loss": nn.HuberLoss(), "forward": forward, "measures": "curvature.lambda_max"}
    measured = sl.measure(model, [batch], rtol=1e-6, **options)["curvature.lambda_max"].value
    truth = Truth(model, [(x, NUMBERS)], mean)
    top = float(torch.linalg.eigvalsh(truth.hessian(list(truth.parameters)))[-1])
    assert measured == pytest.approx(top, rel=1e-6)


def test_soft_targets_may_be_narrower_than_the_outputs():
    outputs, targets = NUMBERS, NUMBERS.flip(0).softmax(dim=1)
    loss = resolve(nn.CrossEntropyLoss(weight=WEIGHTS))
    values = loss.values(outputs, targets.float())
    torch.testing.assert_close(values, loss.values(outputs, targets), rtol=1e-6, atol=0)
