"""`memory` bounds vectors as large as the weights too, and changes no number but by round-off."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from engine.live_vectors import LiveVectors
from spiritlevel.engine.memory import VectorMemory
from spiritlevel.engine.weight_space import long_rows
from spiritlevel.engine.weight_space.eigenvalues import groups_of
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.model.surface import Surface

MEMORY = 4 << 20  # half of it for vectors of 0.1 MiB
SAMPLES = 6


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 180), nn.Tanh(), nn.Linear(180, 12))
    with torch.no_grad():
        model[2].weight.mul_(8.0)  # a few large eigenvalues, which a short basis finds
    return model.double().eval()


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 60, generator=generator, dtype=torch.float64)
    return x, torch.arange(SAMPLES) % 12


def measured(name, **options):
    def run(**more):
        return sl.measure(network(), data(), measures=name, **options | more)

    return run


def eigenvalues(**options):
    return sl.eigenvalues(network(), data(), num=2, which="largest", max_passes=300, **options)


def density(**options):
    return sl.density(network(), data(), num_vectors=12, steps=3, **options)


RUNS = {
    "eigenvalues": (eigenvalues, lambda found: found.values),
    "density": (density, lambda found: found.nodes.flatten().tolist()),
    "largest of network and layers": (
        measured(["curvature.lambda_max", "scaled.lambda_max"]),
        lambda report: [m.value for m in report.values()],
    ),
    "hutchinson": (
        measured("curvature.trace", method="hutchinson", max_passes=32),
        lambda report: [report["curvature.trace"].value, report["curvature.trace"].stderr],
    ),
    "split": (
        measured("relative.kappa", method="split", max_passes=32),
        lambda report: [report["relative.kappa"].value, report["relative.kappa"].stderr],
    ),
    "squares": (
        measured("curvature.trace_squared", max_passes=32),
        lambda report: [report["curvature.trace_squared"].value],
    ),
}


def test_a_density_in_several_groups_is_the_same():
    whole, parts = density(), density(memory=1 << 20)
    for found, expected in ((parts.nodes, whole.nodes), (parts.weights, whole.weights)):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.nightly  # watching every tensor takes long
@pytest.mark.parametrize("name", RUNS)
def test_a_limit_is_kept_and_changes_no_number(name, monkeypatch):
    monkeypatch.setattr(long_rows, "CHUNK", 1 << 14)
    run, numbers = RUNS[name]
    vector = 8 * sum(p.numel() for p in network().parameters())
    with LiveVectors(1, least=vector // 4) as whole:
        expected = run()
    with LiveVectors(1, least=vector // 4) as bounded:
        found = run(memory=MEMORY)
    assert bounded.most <= MEMORY < whole.most
    # eigenvalues from bases of different length are as far off as their residuals allow, squared
    rtol = 1e-9 if name in ("eigenvalues", "largest of network and layers") else 1e-11
    torch.testing.assert_close(numbers(found), numbers(expected), rtol=rtol, atol=1e-11)


@pytest.mark.nightly
def test_hutch_plus_plus_takes_out_fewer_directions(monkeypatch):
    monkeypatch.setattr(long_rows, "CHUNK", 1 << 14)
    run = measured("curvature.trace", method="hutch++", max_passes=40)
    vector = 8 * sum(p.numel() for p in network().parameters())
    whole = run()["curvature.trace"]
    with LiveVectors(1, least=vector // 4) as bounded:
        found = run(memory=MEMORY)["curvature.trace"]
    assert bounded.most <= MEMORY
    assert "after 13 dominant" in whole.text
    assert "after 1 dominant" in found.text
    assert abs(found.value - whole.value) < 4 * (found.stderr + whole.stderr)


def test_too_little_memory_is_refused_before_anything_runs():
    calls = []
    wide = nn.Sequential(nn.Linear(60, 3000), nn.Tanh(), nn.Linear(3000, 12)).double()
    wide.register_forward_hook(lambda *_: calls.append(1))
    size = sum(p.numel() for p in wide.parameters())
    least = size * (9 * 8 + 32)  # a basis of 8 and its rest, and one product
    for run in (
        lambda memory: sl.eigenvalues(wide, data(), memory=memory),
        lambda memory: sl.measure(wide, data(), measures="curvature.lambda_max", memory=memory),
    ):
        with pytest.raises(
            sl.SpiritlevelError,
            match=rf"'memory' .* at least {2 * least} bytes .* 8 Lanczos vectors of {size} "
            r"entries .* Got about 8388608\. Raise it, restrict 'layers'",
        ):
            run(8 << 20)
    assert len(calls) <= 2  # a look at the model's outputs each time
    assert sl.preflight(wide, data(), measures="curvature.lambda_max", memory=2 * least)


def test_preflight_says_what_vectors_take():
    asked = {"measures": "curvature.lambda_max"}
    size = sum(p.numel() for p in network().parameters())
    free = sl.preflight(network(), data(), **asked)
    bound = sl.preflight(network(), data(), memory=MEMORY, **asked)
    assert free.vector_memory == size * (121 * 8 + 32)
    assert bound.vector_memory == MEMORY // 2
    assert "2 MiB for vectors as large as the weights" in str(bound)
    assert sl.preflight(network(), data(), measures="head.trace").vector_memory == 0


def test_blocks_that_do_not_fit_together_run_one_after_another():
    surface = Surface(network(), data())
    spaces = [ParameterSpace(surface, [name]) for name in surface.parameters]
    (together,) = groups_of(spaces, 1, VectorMemory())
    assert together.members == (0, 1, 2, 3)
    groups = groups_of(spaces, 1, VectorMemory(1 << 20))
    assert [group.members for group in groups] == [(0,), (1, 2, 3)]
    assert all(min(group.bases) >= 8 and not group.on_host for group in groups)
