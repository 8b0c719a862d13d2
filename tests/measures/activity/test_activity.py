"""Activity against plain loops over samples with the network written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from measures.activity.activity_by_hand import RECTIFIED, batches, check, drawn, labels
from spiritlevel.verbs import reference_problems as problems

ALL = [*RECTIFIED, "activity.activation_norm", "activity.gradient_norm"]


# -- rectifiers wherever they are called --------------------------------------------------------


def convnet(inplace):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(inplace=inplace),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 2),
        nn.ReLU(inplace=inplace),
        nn.Flatten(),
        nn.Linear(20, 3),
    ).double()
    with torch.no_grad():
        model[0].bias[1] = -100.0  # a dead channel: 36 outputs
        model[3].bias[2] = -100.0  # and another: 4 outputs
        model[3].weight[4, 1:] = 0.0
    return model


@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_convnet_with_dead_units(inplace, sweep, generator):
    model, x = convnet(inplace), drawn((7, 1, 6, 6), generator)
    one = F.relu(F.conv2d(x, model[0].weight, model[0].bias, padding=1))
    two = F.relu(F.conv2d(F.max_pool2d(one, 2), model[3].weight, model[3].bias))
    names = [*RECTIFIED, *(["curvature.trace"] if sweep else [])]  # with gradients, and without
    report = sl.measure(model, batches(x, labels(7, generator)), measures=names)
    check(report, {"1": one.detach(), "4": two.detach()})
    assert report.layers["activity.death"]["1"].value >= 36 / 144
    cost = report["curvature.trace"].cost if sweep else sl.results.Cost(forwards=7)
    assert report["activity.death"].cost == cost


class Block(nn.Module):
    """Two functional rectifiers, the second in place after a residual sum."""

    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        out = self.two(F.relu(self.one(x)))
        out += x
        return out.relu_()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(Block(5), Block(5))
        self.act = nn.ReLU()
        self.mid, self.fc = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.layer1(x)
        x = self.act(self.mid(self.act(self.mid(x))))  # one module for two calls
        return self.fc(torch.clamp(x - 0.1, min=0))


def test_functional_rectifiers_are_named_by_the_module_that_calls_them(generator):
    torch.manual_seed(0)
    model, x = Residual().double(), drawn((6, 5), generator)
    places, a = {}, x
    for i, block in enumerate(model.layer1):
        places[f"layer1.{i}"] = inner = (block.one(a)).clamp(min=0).detach()
        places[f"layer1.{i} (2)"] = a = (block.two(inner) + a).clamp(min=0).detach()
    for label in ("act", "act (2)"):
        places[label] = a = model.mid(a).clamp(min=0).detach()
    places["(model)"] = (a - 0.1).clamp(min=0).detach()
    report = sl.measure(model, batches(x, labels(6, generator), 4), measures=RECTIFIED)
    check(report, places)


RECTIFIERS = {
    "module": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(0.0, 2.0),
    "threshold": nn.Threshold(0.0, 0.0),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu6": F.relu6,
    "F.relu6 in place": lambda x: F.relu6(x, inplace=True),
    "torch.relu": torch.relu,
    "x.relu": lambda x: x.relu(),
    "x.relu_": lambda x: x.relu_(),
    "clamp": lambda x: x.clamp(min=0),
    "clamp_": lambda x: x.clamp_(0, 3),
    "clamp_min": lambda x: torch.clamp_min(x, 0.0),
    "clip": lambda x: torch.clip(x, min=0),
    "F.hardtanh": lambda x: F.hardtanh(x, 0.0, 1.0),
    "F.threshold": lambda x: F.threshold(x, 0.0, 0.0),
}


class With(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.one, self.two, self.function = nn.Linear(4, 6), nn.Linear(6, 3), function

    def forward(self, x):
        return self.two(self.function(self.one(x)))


@pytest.mark.parametrize("kind", RECTIFIERS)
def test_every_kind_of_rectifier_is_seen_once(kind, generator):
    torch.manual_seed(0)
    model, x = With(RECTIFIERS[kind]).double(), drawn((6, 4), generator)
    rectified = (x @ model.one.weight.T + model.one.bias).clamp(min=0).detach()
    report = sl.measure(model, batches(x, labels(6, generator)), measures=RECTIFIED)
    modules = isinstance(RECTIFIERS[kind], nn.Module)
    check(report, {"function" if modules else "(model)": rectified})


@pytest.mark.parametrize(
    "function",
    [torch.tanh, F.gelu, F.leaky_relu, nn.Hardtanh(), lambda x: x.clamp(min=-1), F.softplus],
)
def test_networks_without_rectifiers_are_refused(function, generator):
    model = With(function).double()
    data = (drawn((6, 4), generator), labels(6, generator))
    text = r"'activity.death' needs a network with rectifiers.*The network has none"
    with pytest.raises(sl.SpiritlevelError, match=text):
        sl.measure(model, data, measures="activity.death")
    report = sl.measure(model, data, measures="activity.*")
    assert set(report) == {"activity.activation_norm", "activity.gradient_norm"}


def test_a_rectified_weight_is_no_activity(generator):
    class Positive(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.weight = nn.Linear(4, 6), nn.Parameter(torch.randn(3, 6))

        def forward(self, x):
            return F.relu(self.one(x)) @ F.relu(self.weight).T

    torch.manual_seed(0)
    model, x = Positive().double(), drawn((6, 4), generator)
    report = sl.measure(model, batches(x, labels(6, generator), 2), measures=RECTIFIED)
    check(report, {"(model)": F.relu(model.one(x)).detach()})


def test_a_layer_that_is_dead_altogether(generator):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        model[2].bias.fill_(-100.0)
    model, x = model.double(), drawn((6, 4), generator)
    report = sl.measure(model, batches(x, labels(6, generator)), measures=RECTIFIED)
    one = F.relu(model[0](x)).detach()
    check(report, {"1": one, "3": torch.zeros(6, 5).double()})
    assert report.layers["activity.frequency"]["3"].text == "all outputs are dead"


# -- norms --------------------------------------------------------------------------------------


def test_activation_norms_of_a_convnet(generator):
    model, x = convnet(inplace=True), drawn((7, 1, 6, 6), generator)
    one = F.relu(F.conv2d(x, model[0].weight, model[0].bias, padding=1))
    two = F.relu(F.conv2d(F.max_pool2d(one, 2), model[3].weight, model[3].bias))
    inputs = {"0": x, "3": F.max_pool2d(one, 2), "6": two}
    report = sl.measure(
        model, batches(x, labels(7, generator)), measures="activity.activation_norm"
    )
    rows = report.layers["activity.activation_norm"]
    squares = {}
    for layer, a in inputs.items():
        squares[layer] = sum(float(sample.square().sum()) for sample in a.detach()) / 7
        assert rows[layer].value == pytest.approx(squares[layer] ** 0.5, rel=1e-13), layer
    assert list(rows) == list(inputs)
    whole = sum(squares.values()) ** 0.5
    assert report["activity.activation_norm"].value == pytest.approx(whole, rel=1e-13)
    assert report["activity.activation_norm"].cost == sl.results.Cost(forwards=7)
    of_samples = torch.tensor([float(sample.square().sum()) for sample in x])
    error = float(of_samples.std()) / 7**0.5 / (2 * squares["0"] ** 0.5)  # of a root: f'(m)·error
    assert rows["0"].data_stderr == pytest.approx(error, rel=1e-6)  # of_samples is float32


def test_a_layer_called_twice_adds_up_and_embeddings_stay_out(generator):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mid, self.fc = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, tokens):
            return self.fc(self.mid(torch.tanh(self.mid(self.embed(tokens)))))

    torch.manual_seed(0)
    model = Twice().double()
    tokens, y = torch.randint(9, (6,), generator=generator), labels(6, generator)
    first = model.embed(tokens).detach()
    second = torch.tanh(model.mid(first)).detach()
    expected = (first.square().sum(1) + second.square().sum(1)).mean().sqrt()
    report = sl.measure(model, batches(tokens, y), measures="activity.activation_norm")
    rows = report.layers["activity.activation_norm"]
    assert list(rows) == ["mid", "fc"]
    assert rows["mid"].value == pytest.approx(float(expected), rel=1e-13)


def test_activation_norm_needs_a_layer(generator):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.scale

    data = (torch.randn(4, 3), labels(4, generator))
    text = r"'activity.activation_norm' needs a trainable linear or convolutional.*\(model\)"
    with pytest.raises(sl.SpiritlevelError, match=text):
        sl.measure(Scale(), data, measures="activity.activation_norm")


@pytest.mark.parametrize("name", ["linear_regression", "relu_convnet"])
def test_gradient_norm_is_that_of_loss_backward(name):
    problem = problems.ALL[name](torch.float64)
    report = sl.measure(
        problem.model, problem.data, loss=problem.loss, measures="activity.gradient_norm"
    )
    outputs = problem.model(problem.inputs())
    loss = F.mse_loss if problem.loss == "mse" else F.cross_entropy
    loss(outputs, problem.targets()).backward()
    gradients = {n: p.grad for n, p in problem.model.named_parameters()}
    everything = torch.cat([g.flatten() for g in gradients.values()]).norm()
    found = report["activity.gradient_norm"]
    assert found.value == pytest.approx(float(everything), rel=1e-12)
    assert found.cost == sl.results.Cost(forwards=16, backwards=8)
    for layer, row in report.layers["activity.gradient_norm"].items():
        prefix = "" if layer == "(model)" else f"{layer}."
        own = [g.flatten() for n, g in gradients.items() if n.startswith(prefix)]
        assert row.value == pytest.approx(float(torch.cat(own).norm()), rel=1e-12)


# -- cost and state -----------------------------------------------------------------------------


def test_one_forward_pass_serves_everything():
    problem = problems.relu_convnet()
    names = [*ALL[:3], "softmax.entropy", "norms.margin", "norms.weight", "head.trace"]
    counted = []
    hook = problem.model.register_forward_hook(lambda m, a, out: counted.append(len(out)))
    report = sl.measure(problem.model, problem.data, measures=names)
    hook.remove()
    assert all(report[name].cost == sl.results.Cost(forwards=8) for name in names)
    assert sum(counted) == report.cost.forwards
    planned = sl.measure(problem.model, problem.data, measures="head.trace").cost
    assert report.cost - planned == sl.results.Cost(
        forwards=1 + 3
    )  # to see the targets and the places
    assert report.cost.products == 0


def test_nothing_is_left_behind_when_the_model_fails(generator):
    class Fails(With):
        def forward(self, x):
            if float(x.detach().abs().max()) > 50:
                raise RuntimeError("no such sample")
            return super().forward(x)

    model, x = Fails(F.relu).double(), drawn((6, 4), generator)
    x[-1] *= 1000
    with pytest.raises(RuntimeError, match="no such sample"):
        sl.measure(model, batches(x, labels(6, generator)), measures=RECTIFIED)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


def test_hooks_of_the_user_keep_their_order_and_their_say(generator):
    model = With(nn.ReLU()).double()
    model.function.register_forward_hook(lambda m, a, out: out + 1)
    x, y = drawn((6, 4), generator), labels(6, generator)
    report = sl.measure(model, batches(x, y), measures=[*RECTIFIED, "activity.activation_norm"])
    rectified = F.relu(model.one(x)).detach()
    check(report, {"function": rectified})
    after = (rectified + 1).square().sum(1).mean().sqrt()
    found = report.layers["activity.activation_norm"]["two"].value
    assert found == pytest.approx(float(after), rel=1e-13)
