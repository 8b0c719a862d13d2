"""Which moves are found in which network, and that they are what they claim to be."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.inputs.models import resnet18
from spiritlevel.symmetries import FUNCTION_PRESERVING, MOVES, FoundMoves, Move, find_moves
from spiritlevel.symmetries.search import STRUCTURAL
from zoo import cases
from zoo.moves import NETS

pytestmark = pytest.mark.sampled(3)  # the others at night

TOLERANCE = 1e-9  # of the outputs, relative; what the library promises in float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def found_in(
    model: nn.Module, samples: Tensor, *, head: str | None = None, seed: int = 0
) -> FoundMoves:
    return find_moves(model, lambda m: m(samples), head=head, generator=seeded(seed))


@functools.cache
def found_of(name: str) -> FoundMoves:
    """Of a network just as it is made: the same in every test, so looked for once."""
    model, samples, _ = NETS[name].make()
    return found_in(model, samples)


def functions(found: FoundMoves) -> dict[str, Move]:
    return {name: move for name, move in found.moves.items() if name in FUNCTION_PRESERVING}


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_function(
    model: nn.Module, moved: nn.Module, samples: Tensor, tolerance: float = TOLERANCE
) -> None:
    with torch.no_grad():
        then, now = model(samples), moved(samples)
    assert float((now - then).abs().max() / then.abs().max()) < tolerance


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETS)
def test_the_moves_a_network_has_are_found_and_no_others(name):
    found = found_of(name)
    groups = {move: len(found.moves[move].groups) for move in STRUCTURAL if move in found.moves}
    assert groups == NETS[name].groups
    assert found.tolerance == TOLERANCE
    assert set(found.moves) | set(found.absent) == set(MOVES)
    assert set(found.moves) & set(found.absent) == set()
    assert all(found.absent.values())  # every one comes with a reason


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETS)
def test_a_move_keeps_the_function_on_samples_it_was_not_found_on(name):
    model, _, others = NETS[name].make()
    before = state(model)
    for move in functions(found_of(name)).values():
        moved = move.apply(model, seeded(1))
        assert_same_function(model, moved, others, max(TOLERANCE, move.remainder))
        assert any(not torch.equal(t, before[n]) for n, t in moved.state_dict().items())
    for tensor, value in before.items():
        assert torch.equal(model.state_dict()[tensor], value), tensor


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in NETS if name != "one_linear_layer"])
def test_every_group_moves_the_outputs_when_half_of_it_is_left_out(name):
    """A site that is listed is needed: without it the outputs change."""
    model, samples, _ = NETS[name].make()
    with torch.no_grad():
        outputs = model(samples)
        for kind in set(STRUCTURAL) & set(found_of(name).moves):
            for group in found_of(name).moves[kind].groups:
                half = type(group)(group.width, group.sites[: len(group.sites) // 2])
                moved = Move(kind, (half,)).apply(model, seeded(1))
                assert not torch.allclose(moved(samples), outputs, rtol=1e-6), (kind, group)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", cases.CASES)
def test_moves_of_any_wiring_keep_the_function(name):
    model, batches = cases.CASES[name].make()
    first, *others = (batch[0] for batch in batches)

    def run(network: nn.Module, inputs=first) -> Tensor:
        with torch.no_grad():
            return network(*inputs) if isinstance(inputs, (tuple, list)) else network(inputs)

    found = find_moves(model, run, generator=seeded(0))
    for move in functions(found).values():
        moved = move.apply(model, seeded(1))
        for inputs in others:
            then, now = run(model, inputs), run(moved, inputs)
            apart = float((now - then).abs().max() / then.abs().max())
            assert apart < max(TOLERANCE, move.remainder), move.describe()


# -- what a move does to the parameters ----------------------------------------------------------


def test_neurons_are_multiplied_and_what_reads_them_is_divided():
    model, _, _ = NETS["cnn_with_flatten"].make()
    moved = found_of("cnn_with_flatten").moves["neuron_rescale"].apply(model, seeded(3))
    factors = (moved[0].weight / model[0].weight).flatten(1)
    assert torch.allclose(factors, factors[:, :1].expand_as(factors))
    assert torch.allclose(moved[0].bias / model[0].bias, factors[:, 0])
    assert len(set(factors[:, 0].tolist())) == 3
    assert (factors >= 5).all()
    assert (factors <= 25).all()
    # each channel feeds the 2 × 2 adjacent columns of its positions
    columns = model[3].weight / moved[3].weight
    assert torch.allclose(columns, factors[:, 0].repeat_interleave(4).expand_as(columns))
    assert torch.equal(moved[3].bias, model[3].bias)


def test_channels_side_by_side_are_told_apart():
    model, _, _ = NETS["channels_last"].make()
    moved = found_of("channels_last").moves["neuron_rescale"].apply(model, seeded(3))
    factors = (moved.conv.bias / model.conv.bias).detach()
    columns = (model.fc.weight / moved.fc.weight).detach()
    assert torch.allclose(columns, factors.repeat(4).expand_as(columns))


def test_a_layer_is_multiplied_by_one_factor():
    model, _, _ = NETS["mlp"].make()
    moved = found_of("mlp").moves["layer_rescale"].apply(model, seeded(3))
    first = float((moved[0].bias / model[0].bias)[0].detach())
    last = (model[4].weight / moved[4].weight).detach()
    assert 5 <= first <= 25
    assert torch.allclose(moved[0].weight, first * model[0].weight)
    assert torch.allclose(moved[2].weight, model[2].weight * last[0, 0] / first)
    assert torch.allclose(last, last[0, 0])


def test_units_are_renumbered():
    model, _, _ = NETS["tanh"].make()
    moved = found_of("tanh").moves["unit_permute"].apply(model, seeded(3))
    order = [model[0].bias.tolist().index(value) for value in moved[0].bias.tolist()]
    assert sorted(order) == list(range(6)) != order
    assert torch.equal(moved[0].weight, model[0].weight[order])


def test_batchnorm_takes_up_the_factors_in_its_statistics():
    model, _, _ = NETS["batchnorm"].make()
    moved = found_of("batchnorm").moves["batchnorm_absorb"].apply(model, seeded(3))
    factors = (moved[0].bias / model[0].bias).detach()
    eps = model[1].eps
    assert torch.allclose(moved[0].weight, model[0].weight * factors[:, None])
    assert torch.allclose(moved[1].running_mean, model[1].running_mean * factors)
    expected = factors**2 * (model[1].running_var + eps) - eps
    assert torch.allclose(moved[1].running_var, expected, rtol=1e-14)
    assert torch.equal(moved[1].weight, model[1].weight)


def test_only_the_values_of_attention_are_multiplied():
    model, _, _ = NETS["encoder_layer"].make()
    attention = model.block.self_attn
    moved = found_of("encoder_layer").moves["attention_rescale"].apply(model, seeded(3))
    changed = moved.block.self_attn
    rows = (changed.in_proj_weight / attention.in_proj_weight).detach()
    assert torch.equal(rows[:8], torch.ones(8, 4, dtype=torch.float64))
    assert torch.allclose(
        rows[8:], (attention.out_proj.weight / changed.out_proj.weight)[0][:, None]
    )
    assert (rows[8:] >= 5).all()


@pytest.mark.nightly  # the search in a ResNet takes longest
def test_layers_of_a_residual_stream_share_their_factors():
    model, _, _ = NETS["resnet18"].make()
    moved = found_of("resnet18").moves["neuron_rescale"].apply(model, seeded(3))
    stream = ("bn1", "layer1.0.bn2", "layer1.1.bn2")
    factors = [
        (moved.get_submodule(path).bias / model.get_submodule(path).bias).detach()
        for path in stream
    ]
    assert torch.allclose(factors[0], factors[1])
    assert torch.allclose(factors[0], factors[2])
    inner = moved.get_submodule("layer1.0.bn1").bias / model.get_submodule("layer1.0.bn1").bias
    assert not torch.allclose(factors[0], inner)


# -- seeds, state, cost --------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_move():
    model, samples, _ = NETS["transformer"].make()
    first, second = found_in(model, samples), found_in(model, samples)
    assert first == second
    for move in first.moves.values():
        copies = [state(move.apply(model, seeded(seed))) for seed in (1, 1, 2)]
        same = [all(torch.equal(copies[0][n], c[n]) for n in c) for c in copies[1:]]
        assert same == [True, False], move.name


def test_the_random_state_is_left_as_it_was():
    model, samples, _ = NETS["noisy"].make()
    rng = torch.random.get_rng_state()
    found_in(model, samples)
    assert torch.equal(torch.random.get_rng_state(), rng)


def test_the_model_is_left_as_it_was():
    model, samples, _ = NETS["encoder_layer"].make()
    model.into.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = copy.deepcopy(model)
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    found_in(model, samples)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.is_grad_enabled()
    for (name, now), (_, then) in zip(
        model.named_parameters(), before.named_parameters(), strict=True
    ):
        assert torch.equal(now, then), name
        assert now.requires_grad == then.requires_grad, name
        assert (now.grad is None) == (name != "head.weight")


def test_a_network_in_float32_is_searched_in_float64():
    model, samples, _ = NETS["mlp"].make()
    dtypes = []

    def run(network: nn.Module) -> Tensor:
        dtypes.append(network[0].weight.dtype)
        return network(samples.to(network[0].weight.dtype))

    found = find_moves(model.float(), run, generator=seeded(0))
    assert set(dtypes) == {torch.float64}
    moved = found.moves["neuron_rescale"].apply(model, seeded(1))
    assert moved[0].weight.dtype == torch.float32


def test_a_network_that_runs_only_in_float32_is_searched_as_it_is():
    model, samples, _ = NETS["mlp"].make()
    found = find_moves(model.float(), lambda m: m(samples.float()), generator=seeded(0))
    assert set(functions(found)) == {"layer_rescale", "neuron_rescale", "unit_permute"}
    assert "it does not run in float64" in found.unexplored
    assert 1e-5 < found.tolerance < 1e-3


def test_progress_counts_the_runs():
    model, samples, _ = NETS["mlp"].make()
    seen, runs = [], []
    find_moves(
        model,
        lambda m: runs.append(m) or m(samples),
        generator=seeded(0),
        progress=lambda done, total, what: seen.append((done, total)),
    )
    assert [done for done, _ in seen[:-1]] == list(range(1, len(runs) + 1))
    assert all(done <= total for done, total in seen)
    assert seen[-1] == (len(runs), len(runs))


@pytest.mark.nightly
def test_a_larger_resnet_is_searched_in_seconds():
    small = NETS["resnet18"]
    net = dataclasses.replace(small, build=lambda: resnet18(width=16), shape=(3, 32, 32))
    model, samples, _ = net.make()
    start = time.perf_counter()
    found = found_in(model, samples)
    assert time.perf_counter() - start < 240  # about 20 on an idle core
    assert len(found.moves["neuron_rescale"].groups) == small.rescale
