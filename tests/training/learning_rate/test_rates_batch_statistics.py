"""Networks that normalize by the batch in training: what is measured is what a step feels.

The truths write the normalization out with plain operations, or train.
"""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.training import FlatnessMonitor
from training.learning_rate.rates_problem import make_step

SHARPNESS, CRITICAL = "rate.sharpness", "rate.critical_sharpness"


def network(seed=0):
    """Its running variances are tiny beside the batch's: eval mode is far sharper."""
    torch.manual_seed(seed)
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 2)]
    model = nn.Sequential(*layers).double()
    model[1].running_var.fill_(0.01)
    return model


def batches(*sizes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    drawn = (
        (torch.randn(n, 3, generator=generator), torch.randn(n, 2, generator=generator))
        for n in sizes
    )
    return [(x.double(), y.double()) for x, y in drawn]


def loss_by_hand(data, eps=1e-5):
    """The squared error of `network` as a function of its weights, each batch by itself."""

    def loss(flat):
        w1, b1, gamma, beta, w2, b2 = (
            part.view(shape)
            for part, shape in zip(
                flat.split([12, 4, 4, 4, 8, 2]), [(4, 3), 4, 4, 4, (2, 4), 2], strict=True
            )
        )
        total = 0.0
        for x, y in data:
            h = x @ w1.T + b1
            centred = h - h.mean(0)
            h = gamma * centred / (centred.square().mean(0) + eps).sqrt() + beta
            total = total + len(x) * (F.gelu(h) @ w2.T + b2 - y).square().mean()
        return total / sum(len(x) for x, _ in data)

    return loss


def flat_weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def true_sharpness(model, data):
    H = torch.func.hessian(loss_by_hand(data))(flat_weights(model))
    return float(torch.linalg.eigvalsh(H)[-1])


def watched(model, optimizer, data, **options):
    options = {"measures": (), "every": 1, "loss": "mse"} | options
    return FlatnessMonitor(model, data, optimizer=optimizer, **options)


@pytest.mark.parametrize("memory", [None, 1])  # with 1 byte samples would go one by one
@pytest.mark.parametrize("sizes", [(12,), (7, 5), (3, 9, 4)])
def test_the_sharpness_is_of_the_batches_as_they_are(sizes, memory):
    model, data = network(), batches(*sizes)
    truth = true_sharpness(model, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.9 / truth)
    monitor = watched(model, optimizer, data, rates="sharpness", memory=memory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # in eval mode it is far above the edge
        row = monitor.measure()
    assert row[SHARPNESS] == pytest.approx(truth, rel=1e-4)
    assert row[SHARPNESS] < row["rate.threshold"]
    by_running = copy.deepcopy(model).eval()
    monitor = watched(
        by_running, torch.optim.SGD(by_running.parameters(), lr=0.1), data, rates="sharpness"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert monitor.measure()[SHARPNESS] > 2 * truth


def test_the_preconditioner_of_adam_is_around_the_same_matrix():
    model, data = network(), batches(12)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.0, 0.9))
    monitor = watched(model, optimizer, data, rates="sharpness")
    make_step(model, optimizer, *data[0])
    row = monitor.step()
    roots = [
        (optimizer.state[p]["exp_avg_sq"] / (1 - 0.9)).sqrt() + 1e-8 for p in model.parameters()
    ]
    S = torch.cat([root.reshape(-1) for root in roots]).rsqrt()
    H = torch.func.hessian(loss_by_hand(data))(flat_weights(model))
    # where a bias before a normalization has no gradient, S is huge and H is rounding
    live = torch.ones(len(S), dtype=torch.bool)
    live[12:16] = False
    H = (S[:, None] * H * S)[live][:, live]
    assert row[SHARPNESS] == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-4)


def at_a_minimum(data):
    """`network` where its gradient is 0 up to rounding, by Newton's method with damping."""
    model = network()
    loss, flat, damping = loss_by_hand(data), flat_weights(model), 1.0
    for _ in range(200):
        gradient = torch.func.grad(loss)(flat)
        if gradient.norm() < 1e-12:
            break
        values, vectors = torch.linalg.eigh(torch.func.hessian(loss)(flat))
        step = vectors @ ((vectors.T @ gradient) / (values.abs() + damping))
        if loss(flat - step) <= loss(flat):
            flat, damping = flat - step, max(damping / 3, 1e-9)
        else:
            damping *= 4
    assert torch.func.grad(loss)(flat).norm() < 1e-11
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    return model, vectors[:, -1]


def test_training_is_stable_just_below_the_edge_and_not_just_above_it():
    (x, noise), teacher = batches(40)[0], network()
    data = [(x, teacher(x).detach() + 0.02 * noise)]  # more targets than weights
    model, sharpest = at_a_minimum(data)
    monitor = watched(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, rates="sharpness", warn_above=None
    )
    edge = 2 / monitor.measure()[SHARPNESS]
    start = flat_weights(model)
    for factor, grows in ((0.98, False), (1.02, True)):
        trained = copy.deepcopy(model).train()
        torch.nn.utils.vector_to_parameters(start + 1e-7 * sharpest, trained.parameters())
        optimizer = torch.optim.SGD(trained.parameters(), lr=factor * edge)
        for _ in range(100):
            make_step(trained, optimizer, *data[0])
        grown = float((flat_weights(trained) - start) @ sharpest) / 1e-7
        assert abs(grown) == pytest.approx(abs(1 - 2 * factor) ** 100, rel=0.05), factor
        assert (abs(grown) > 1) is grows


def test_the_modes_are_those_of_the_step():
    data = batches(12)
    for frozen in (False, True):
        model = network()
        model[1].train(not frozen)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        monitor = watched(model, optimizer, data, rates="sharpness", warn_above=None)
        make_step(model, optimizer, *data[0])
        model.train(frozen)  # as after a validation, and the other way round
        value = monitor.step()[SHARPNESS]
        truth = true_sharpness(model, data)
        assert (value == pytest.approx(truth, rel=1e-3)) is not frozen
        assert model[1].training is frozen


def test_critical_sharpness_is_of_the_loss_in_train_mode():
    data = batches(12)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = watched(model, optimizer, data, rates="critical")
    before = flat_weights(model)
    make_step(model, optimizer, *data[0])
    row = monitor.step()
    loss, after = loss_by_hand(data), flat_weights(model)
    low, high = 1.0, 1.0
    while loss(before + high * (after - before)) <= loss(before):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        risen = loss(before + middle * (after - before)) > loss(before)
        low, high = (low, middle) if risen else (middle, high)
    assert row[CRITICAL] == pytest.approx(2 / (0.01 * low), rel=0.01)


def test_an_update_that_rounding_alone_lowers_points_uphill():
    """In float32 a step that is short enough leaves any loss where it was."""
    data = [(x.float(), y.float()) for x, y in batches(64)]
    model = network().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)
    monitor = watched(model, optimizer, data, rates="critical")
    for _ in range(4):
        make_step(model, optimizer, *data[0])
        row = monitor.step()
        assert row[f"{CRITICAL}.status"] == "uphill"
        assert CRITICAL not in row


def test_nothing_is_left_of_it():
    data = batches(7, 5)
    model = network()
    model[2].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = watched(model, optimizer, data, warn_above=None)
    make_step(model, optimizer, *data[0])
    held = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    assert monitor.step()["status"] == "ok"
    assert all(torch.equal(value, held[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert model[1].track_running_stats


class OwnNorm(nn.Module):
    """A normalization that is no class of torch's, known by its buffers."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.full((width,), 0.01))

    def forward(self, x):
        if not self.training:
            return (x - self.running_mean) / self.running_var.sqrt()
        with torch.no_grad():
            self.running_mean.lerp_(x.mean(0), 0.1)
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


NORMS = {
    "batch 1d": lambda: [nn.Linear(8, 4), nn.BatchNorm1d(4)],
    "no weight": lambda: [nn.Linear(8, 4), nn.BatchNorm1d(4, affine=False)],
    "cumulative": lambda: [nn.Linear(8, 4), nn.BatchNorm1d(4, momentum=None)],
    "batch 2d": lambda: [nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4)],
    "instance": lambda: [
        *(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 4, 2)),
        *(nn.InstanceNorm1d(4, affine=True, track_running_stats=True), nn.AvgPool1d(3)),
    ],
    "own": lambda: [nn.Linear(8, 4), OwnNorm(4)],
    "sync": lambda: [nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.SyncBatchNorm(4)],
    "dropout": lambda: [nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)],
    "two, one in eval mode": lambda: [
        *(nn.Linear(8, 4), nn.BatchNorm1d(4).eval(), nn.Tanh(), nn.Linear(4, 4)),
        nn.BatchNorm1d(4),
    ],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", NORMS)
def test_random_networks_against_the_dense_hessian_in_train_mode(kind, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(*NORMS[kind](), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3)).double()
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(int(torch.randint(4, 20, (1,))), 8, generator=generator).double()
    y = torch.randint(0, 3, (len(x),), generator=generator)
    sizes = [len(x) - 3, 3]
    data = list(zip(x.split(sizes), y.split(sizes), strict=True))
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    names, parameters = zip(*twin.named_parameters(), strict=True)

    def loss(*values):
        at = dict(zip(names, values, strict=True))
        parts = [
            F.cross_entropy(torch.func.functional_call(twin, at, (x,)), y, reduction="sum")
            for x, y in data
        ]
        return sum(parts) / len(x)

    blocks = torch.autograd.functional.hessian(loss, tuple(p.detach() for p in parameters))
    sizes = [p.numel() for p in parameters]
    H = torch.cat(
        [
            torch.cat([b.reshape(n, m) for b, m in zip(row, sizes, strict=True)], dim=1)
            for row, n in zip(blocks, sizes, strict=True)
        ]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    monitor = FlatnessMonitor(
        model, data, measures=(), optimizer=optimizer, rates="sharpness", warn_above=None
    )
    row = monitor.measure()
    assert row[SHARPNESS] == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-3)


def test_a_batch_of_one_sample_is_named():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watched(model, optimizer, batches(8, 1), rates="sharpness", strict=True)
    with pytest.raises(sl.SpiritlevelError, match=r"one sample.*drop_last"):
        monitor.measure()


def test_statistics_of_several_processes_are_not_compared(monkeypatch):
    model = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.SyncBatchNorm(3), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e9)
    monitor = watched(model, optimizer, [(x.float(), x.float()) for x, _ in batches(4)])
    monkeypatch.setattr(
        "spiritlevel.training.learning_rate.watch.Processes", lambda: type("Two", (), {"size": 2})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = monitor.measure()
    assert row[f"{SHARPNESS}.status"] == row[f"{CRITICAL}.status"] == "synchronized statistics"
    assert not any(key in row and math.isfinite(row[key]) for key in (SHARPNESS, CRITICAL))
