"""A measurement leaves everything as it was, whatever happens in between."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from faults import assert_same, state_of


class Net(nn.Module):
    """Layers with rules, a parameter without one, buffers that forward writes, a mixed mode."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(torch.ones(3))
        self.dropout = nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)
        self.frozen = nn.Linear(3, 3)
        self.fc = nn.Linear(3, 3)
        self.register_buffer("written_in_place", torch.zeros(2))
        self.frozen.requires_grad_(False)
        self.fail_at = None  # the call that raises
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.fail_at is not None and self.calls >= self.fail_at:
            raise RuntimeError("planted in forward")
        self.written_in_place += 1
        h = self.act(self.norm(self.conv(x))).mean(dim=(2, 3))
        return self.fc(self.frozen(self.dropout(h) * self.scale))


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net().double().eval()
    net.act.train()  # harmless modules may be in any mode
    net.fc.train()
    for i, parameter in enumerate(net.parameters()):
        if i % 2 == 0:
            parameter.grad = torch.full_like(parameter, float(i + 1))
    net.conv.register_forward_hook(lambda module, args, output: None)
    net.fc.register_forward_pre_hook(lambda module, args: None)
    net.fc.register_full_backward_hook(lambda module, grads, outputs: None)
    return net


@pytest.fixture
def data(generator):
    x = torch.randn(9, 1, 3, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (9,), generator=generator)
    return [(x[:4], y[:4]), (x[4:], y[4:])]


# Few draws and steps: one of them disturbs what many do.
EVERYTHING = {
    "measures": "*.*",
    "max_passes": 4,
    "options": {"draws": 2, "ascent_steps": 2, "restarts": 1},
}


def test_a_measurement_leaves_no_trace(model, data):
    before = state_of(model, data)
    sl.measure(model, data, **EVERYTHING)
    assert model.calls > 2
    assert_same(before, state_of(model, data))


class Counting(nn.Module):
    """A buffer that forward replaces instead of writing into it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(9, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return self.fc(x.flatten(1))


def test_a_buffer_that_forward_replaces_is_put_back(data):
    model = Counting().double().eval()
    before = state_of(model, data)
    sl.measure(model, data, measures="curvature.trace")
    assert_same(before, state_of(model, data))


def test_default_measures_leave_no_trace(model, data):
    before = state_of(model, data)
    sl.measure(model, data)
    assert_same(before, state_of(model, data))


def test_a_preflight_leaves_no_trace(model, data):
    before = state_of(model, data)
    sl.preflight(model, data)
    assert_same(before, state_of(model, data))


@pytest.mark.parametrize("call", [1, 2, 3, 5])
def test_an_exception_in_forward_leaves_no_trace(model, data, call):
    model.fail_at = call
    before = state_of(model, data)
    with pytest.raises(RuntimeError, match="planted in forward"):
        sl.measure(model, data, **EVERYTHING)
    assert_same(before, state_of(model, data))


class FailsAtTheSecondBatch(Net):
    def forward(self, x):
        out = super().forward(x)
        if len(x) == 5:
            raise RuntimeError("planted in the second batch")
        return out


def test_an_exception_in_the_second_batch_leaves_no_trace(data):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FailsAtTheSecondBatch().double().eval()
    before = state_of(model, data)
    with pytest.raises(RuntimeError, match="planted in the second batch"):
        sl.measure(model, data, **EVERYTHING)
    assert_same(before, state_of(model, data))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_leaves_no_trace(model, data, at):
    calls = []

    def progress(done, total, what):
        calls.append((done, total))
        if len(calls) == at:
            raise KeyboardInterrupt

    before = state_of(model, data)
    with pytest.raises(KeyboardInterrupt):
        sl.measure(model, data, **EVERYTHING, progress=progress)
    assert calls == [(0, 9), (4, 9), (9, 9)][:at]  # first the plan
    assert_same(before, state_of(model, data))


def test_an_exception_in_a_column_leaves_no_trace(model, data):
    # A backward pass that fails halfway, with every hook of the sweep in place.
    count = []

    def explode(module, args, output):
        if output.requires_grad:
            output.register_hook(lambda g: count.append(1) or (1 / 0 if len(count) > 3 else None))

    model.norm.register_forward_hook(explode)
    before = state_of(model, data)
    with pytest.raises(ZeroDivisionError):
        sl.measure(model, data, **EVERYTHING)
    assert_same(before, state_of(model, data))


def test_a_shuffling_loader_leaves_the_global_rng(model, data):
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    before = state_of(model, data)
    sl.measure(model, loader, **EVERYTHING)
    assert_same(before, state_of(model, data))


def test_a_preflight_of_a_shuffling_loader_leaves_the_global_rng(model, data):
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    before = state_of(model, data)
    sl.preflight(model, loader)
    assert_same(before, state_of(model, data))


def test_a_refused_shuffling_loader_leaves_the_global_rng(model, data):
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    loader = DataLoader(TensorDataset(x, y + 9), batch_size=4, shuffle=True)
    before = state_of(model, data)
    with pytest.raises(sl.SpiritlevelError, match="Labels must lie in"):
        sl.measure(model, loader, **EVERYTHING)
    assert_same(before, state_of(model, data))


def test_measuring_does_not_change_the_next_training_step(model, data):
    twin = copy.deepcopy(model)
    sl.measure(model, data, **EVERYTHING)
    for net in (model, twin):
        torch.manual_seed(3)
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data[0][0]), data[0][1]).backward()
        optimizer.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_it_works_under_no_grad_and_inference_data(model, data):
    expected = sl.measure(model, data, measures="curvature.trace")["curvature.trace"].value
    with torch.no_grad():
        found = sl.measure(model, data, measures="curvature.trace")["curvature.trace"].value
        assert not torch.is_grad_enabled()
    assert found == expected


def test_own_forward_hooks_still_run(model, data):
    seen = []
    model.fc.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    sl.measure(model, data, **EVERYTHING)
    assert {4, 5} <= set(seen)
    assert len(model.fc._forward_hooks) == 1


def test_a_disturbed_state_would_be_noticed(model, data):
    # Meta-test: each part of the state is compared.
    before = state_of(model, data)
    disturb = [
        lambda: model.fc.weight.data.add_(1e-12),
        lambda: setattr(model.fc.bias, "grad", torch.ones(3).double()),
        lambda: model.norm.running_mean.add_(1e-12),
        lambda: model.fc.eval(),
        lambda: model.frozen.requires_grad_(True),
        lambda: model.conv.register_forward_hook(lambda *_: None),
        lambda: torch.rand(1),
        lambda: setattr(model, "written_in_place", model.written_in_place.clone()),
        lambda: data[0][0].add_(1e-12),
    ]
    with torch.random.fork_rng():
        for change in disturb:
            change()
            with pytest.raises(AssertionError):
                assert_same(before, state_of(model, data))
            before = state_of(model, data)
