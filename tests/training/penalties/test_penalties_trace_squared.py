"""Tr(H²)/B against dense float64 Hessians: values, gradients, noise, what stays untouched."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from spiritlevel.training import thrice_differentiable, trace_squared_of, trace_squared_penalty
from training.penalties import penalty_truths as truths
from zoo.losses import LOSSES

pytestmark = pytest.mark.sampled(2)  # the others at night

MODULE = "flatness_penalty"  # whose random signs are replaced


def network(*layers, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = nn.Sequential(*(layer() for layer in layers)).double()
    return made


def smooth(bias=False):
    """Eight parameters without biases: all 256 sign vectors can be tried."""
    return network(lambda: nn.Linear(2, 2, bias), nn.Tanh, lambda: nn.Linear(2, 2, bias))


def convolutional():
    return network(
        lambda: nn.Conv2d(1, 2, 3, stride=2, padding=1),
        nn.Softplus,
        lambda: nn.Conv2d(2, 2, 2, groups=2, dilation=2, bias=False),
        nn.Tanh,
        nn.Flatten,
        lambda: nn.Linear(2, 3),
    )


def batch(*shape, classes=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, shape[:1], generator=generator)


def count(model):
    return sum(p.numel() for p in model.parameters())


def expected(model, x, y, **options):
    """The penalty's expectation over random signs and its gradient: no noise is left."""
    rows = truths.orthogonal_signs(count(model))
    with truths.signs_from(MODULE, rows):
        value = trace_squared_penalty(model, x, y, probes=len(rows), **options)
    return value, truths.gradients_of(value, model)


def test_the_mean_over_all_signs_is_the_trace():
    model, (x, y) = smooth(), batch(5, 2)
    rows = truths.all_signs(count(model))
    assert len(rows) == 256
    with truths.signs_from(MODULE, rows):
        value = trace_squared_penalty(model, x, y, probes=len(rows))
    found = value, truths.gradients_of(value, model)
    truths.assert_same(found, truths.trace_squared(model, x, y, F.cross_entropy))


def test_orthogonal_signs_stand_for_all():
    # Meta-test: the shortcut of the other tests gives what all 256 vectors give.
    model, (x, y) = smooth(), batch(5, 2)
    truths.assert_same(expected(model, x, y), truths.trace_squared(model, x, y, F.cross_entropy))


def test_one_direction_is_the_squared_length_of_its_product():
    model, (x, y) = smooth(bias=True), batch(5, 2)
    signs = truths.all_signs(count(model))[777:778]
    params = {name: p.detach() for name, p in model.named_parameters()}
    H = truths.dense_hessian(model, x, y, F.cross_entropy, params, list(params))
    with truths.signs_from(MODULE, signs):
        value = trace_squared_penalty(model, x, y)
    torch.testing.assert_close(value.detach(), (H @ signs[0]).square().sum() / 5)


@pytest.mark.parametrize("name", ["label_smoothing", "ignored", "mse", "bce", "saddle", "huber"])
def test_every_loss(name):
    loss = LOSSES[name]
    model = network(lambda: nn.Linear(2, 2), nn.Tanh, lambda: nn.Linear(2, 3))
    x, _ = batch(5, 2)
    y = loss.targets((5, 3), torch.Generator().manual_seed(3))
    found = expected(model, x, y, loss=loss.given)
    truths.assert_same(found, truths.trace_squared(model, x, y, loss.plain))


def test_a_convolutional_network():
    model, (x, y) = convolutional(), batch(4, 1, 5, 5, classes=3)
    truths.assert_same(expected(model, x, y), truths.trace_squared(model, x, y, F.cross_entropy))


def test_relu_and_pooling():
    model = network(lambda: nn.Conv2d(1, 2, 2), nn.ReLU, lambda: nn.MaxPool2d(2), nn.Flatten)
    model.append(network(lambda: nn.Linear(8, 2)))
    x, y = batch(4, 1, 5, 5)
    truths.assert_same(expected(model, x, y), truths.trace_squared(model, x, y, F.cross_entropy))


def test_attention_has_its_third_derivative():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.head = nn.Linear(2, 6), nn.Linear(2, 2)

        def forward(self, x):
            q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
            return self.head(F.scaled_dot_product_attention(q, k, v)[:, 0].mean(dim=1))

    model, (x, y) = network(Attention), batch(3, 4, 2)
    found = expected(model, x, y)
    with sdpa_kernel(SDPBackend.MATH):
        truths.assert_same(found, truths.trace_squared(model, x, y, F.cross_entropy))


@pytest.mark.parametrize("given", ["layers", "parameters"])
def test_a_block_sends_gradients_everywhere(given):
    model, (x, y) = smooth(bias=True), batch(5, 2)
    chosen = {"layers": "2", "parameters": [model[2].weight, model[2].bias]}[given]
    rows = truths.orthogonal_signs(6)
    with truths.signs_from(MODULE, rows):
        value = trace_squared_penalty(model, x, y, probes=len(rows), **{given: chosen})
    names = ["2.weight", "2.bias"]
    truth = truths.trace_squared(model, x, y, F.cross_entropy, names)
    truths.assert_same((value, truths.gradients_of(value, model)), truth)
    assert float(truth[1]["0.weight"].abs().max()) > 1e-4


class ByHand(nn.Module):
    """Batch or layer normalization of (N, 3), written out; its parameters have the same names."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        deviation = (x.var(self.dim, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return (x - x.mean(self.dim, keepdim=True)) / deviation * self.weight + self.bias


@pytest.mark.parametrize(("kind", "dim"), [(nn.BatchNorm1d, 0), (nn.LayerNorm, 1)])
def test_normalizations_are_part_of_the_function(kind, dim):
    def build(norm):
        return network(lambda: nn.Linear(2, 3), norm, nn.Tanh, lambda: nn.Linear(3, 2)).train()

    model, by_hand, (x, y) = build(lambda: kind(3)), build(lambda: ByHand(dim)), batch(6, 2)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
        by_hand[1].weight.copy_(model[1].weight)
    before = copy.deepcopy(model.state_dict())
    found = expected(model, x, y)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    truths.assert_same(found, truths.trace_squared(by_hand, x, y, F.cross_entropy))


def test_running_statistics_move_once_a_step():
    layers = [lambda: nn.Linear(2, 3), lambda: nn.BatchNorm1d(3), nn.Tanh, lambda: nn.Linear(3, 2)]
    x, y = batch(6, 2)
    alone, model = network(*layers).train(), network(*layers).train()
    alone(x)
    loss = F.cross_entropy(model(x), y) + trace_squared_penalty(model, x, y)
    loss.backward()  # and the graph still has what it needs
    assert all(map(torch.equal, alone.state_dict().values(), model.state_dict().values()))
    assert int(model[1].num_batches_tracked) == 1


def test_sharing_the_forward_changes_nothing_but_the_cost():
    model, (x, y) = convolutional(), batch(4, 1, 5, 5, classes=3)
    with thrice_differentiable():
        loss = F.cross_entropy(model(x), y)
    plain = F.cross_entropy(model(x), y)  # torch's convolutions: dearer, and the same numbers
    for value in (loss, plain):
        own = trace_squared_penalty(model, x, y, generator=torch.Generator().manual_seed(5))
        generator = torch.Generator().manual_seed(5)
        shared = trace_squared_of(value, model.parameters(), 4, generator=generator)
        truth = own.detach(), truths.gradients_of(own, model)
        truths.assert_same((shared, truths.gradients_of(shared, model)), truth)


def test_a_shared_forward_shares_the_dropout_mask():
    class Masked(nn.Module):
        def forward(self, x):
            return x * self.mask

    layers = [lambda: nn.Linear(2, 4), nn.Tanh, nn.Dropout, lambda: nn.Linear(4, 2)]
    model, (x, y) = network(*layers).train(), batch(5, 2)
    fixed = network(*layers[:2], Masked, layers[3])
    model[2].register_forward_hook(lambda m, args, out: setattr(fixed[2], "mask", out / args[0]))
    torch.manual_seed(0)
    loss = F.cross_entropy(model(x), y)
    fixed[2].mask = fixed[2].mask.detach()
    assert set(fixed[2].mask.unique().tolist()) == {0.0, 2.0}
    rows = truths.orthogonal_signs(count(model))
    with truths.signs_from(MODULE, rows):
        value = trace_squared_of(loss, model.parameters(), 5, probes=len(rows))
    truth = truths.trace_squared(fixed, x, y, F.cross_entropy)
    truths.assert_same((value, truths.gradients_of(value, model)), truth)


def test_random_probes_are_unbiased():
    # 400 draws; value and every entry of the gradient within 4 standard errors
    model, (x, y) = smooth(bias=True), batch(5, 2)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(400):
        loss = F.cross_entropy(model(x), y)
        value = trace_squared_of(loss, model.parameters(), 5, generator=generator)
        rows.append(
            torch.cat([value.detach()[None], truths.flat(truths.gradients_of(value, model))])
        )
    truth, gradient = truths.trace_squared(model, x, y, F.cross_entropy)
    expectation = torch.cat([truth[None], truths.flat(gradient)])
    assert truths.within_four_errors(torch.stack(rows), expectation)
    assert not truths.within_four_errors(torch.stack(rows), 1.2 * expectation)


def test_several_probes_are_the_mean_of_single_ones():
    model, (x, y) = smooth(), batch(5, 2)
    together = trace_squared_penalty(
        model, x, y, probes=3, generator=torch.Generator().manual_seed(2)
    )
    generator = torch.Generator().manual_seed(2)
    alone = [float(trace_squared_penalty(model, x, y, generator=generator).detach()) for _ in "abc"]
    assert len(set(alone)) > 1
    torch.testing.assert_close(float(together.detach()), sum(alone) / 3)


def test_a_loss_without_curvature_has_none():
    model, (x, _) = network(lambda: nn.Linear(2, 2)), batch(5, 2)
    value = trace_squared_of(model(x).sum(), model.parameters(), 5)
    assert value.item() == 0.0
    (model(x).sum() + value).backward()


def test_the_number_alone_keeps_the_loss_differentiable():
    model, (x, y) = smooth(), batch(5, 2)
    loss = F.cross_entropy(model(x), y)
    rows = truths.orthogonal_signs(8)
    with truths.signs_from(MODULE, rows):
        value = trace_squared_of(loss, model.parameters(), 5, probes=8, create_graph=False)
    assert not value.requires_grad
    torch.testing.assert_close(value, truths.trace_squared(model, x, y, F.cross_entropy)[0])
    loss.backward()


def test_dict_and_tuple_inputs():
    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, left, right):
            return self.b(torch.tanh(self.a(left) + right))

    model, (x, y) = network(TwoInputs)[0], batch(5, 2)
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    by_name = trace_squared_penalty(model, {"left": x, "right": 2 * x}, y, generator=seeds[0])
    by_place = trace_squared_penalty(model, (x, 2 * x), y, generator=seeds[1])
    assert by_name.item() == by_place.item() > 0


def test_float32_is_close_to_float64():
    model, (x, y) = convolutional(), batch(4, 1, 5, 5, classes=3)
    exact = trace_squared_penalty(model, x, y, generator=torch.Generator().manual_seed(1))
    model.float()
    single = trace_squared_penalty(model, x.float(), y, generator=torch.Generator().manual_seed(1))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-4, atol=0)  # float32 sums


def test_nothing_moves_but_the_graph():
    layers = [
        lambda: nn.Linear(2, 4),
        lambda: nn.BatchNorm1d(4),
        nn.Dropout,
        lambda: nn.Linear(4, 2),
    ]
    model, (x, y) = network(*layers).train(), batch(6, 2)
    F.cross_entropy(model(x), y).backward()
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    grads = [p.grad.clone() for p in model.parameters()]
    trace_squared_penalty(model, x, y, generator=torch.Generator())
    assert torch.equal(rng, torch.get_rng_state())
    assert all(map(torch.equal, state.values(), model.state_dict().values()))
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters(), strict=True))
    assert all(module.training for module in model.modules())
    trace_squared_penalty(model, x, y)
    assert not torch.equal(rng, torch.get_rng_state())  # without a generator the global one moves
