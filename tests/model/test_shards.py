"""A model that FSDP2 divides has the products of a whole one, and no process holds it whole."""

import json
import pathlib

import pytest
import torch
import torch.nn.functional as F

from forked import needs_gloo, run_in_two_processes
from model import shards_worker
from spiritlevel.testing import references

pytestmark = needs_gloo
TYPES = ["torch.float64", "torch.float32"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes finds."""
    out = tmp_path_factory.mktemp("two") / "found"
    run_in_two_processes(shards_worker.__file__, out)
    return [json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def hessian():
    """Of the whole network on all data, dense and in float64."""
    model = shards_worker.network(torch.float32).double()
    batches = shards_worker.data(slice(None), torch.float64)
    truth = references.Truth(model, batches, F.cross_entropy)
    return truth.hessian(list(truth.parameters))


def of_type(dtype, hessian):
    """float32 weights are the same numbers in float64; the others are those of a float64 draw."""
    if dtype == "torch.float32":
        return hessian
    model = shards_worker.network(torch.float64)
    batches = shards_worker.data(slice(None), torch.float64)
    truth = references.Truth(model, batches, F.cross_entropy)
    return truth.hessian(list(truth.parameters))


@pytest.mark.parametrize("dtype", TYPES)
def test_eigenvalues(found, hessian, dtype):
    truth = torch.linalg.eigvalsh(of_type(dtype, hessian))[-1:].tolist()
    for each in found:
        part = each[dtype]
        assert part["values"] == pytest.approx(truth, rel=1e-7 if "64" in dtype else 1e-3)
        off = [abs(a - b) for a, b in zip(part["values"], truth, strict=True)]
        assert all(a <= r for a, r in zip(off, part["residuals"], strict=True))
        assert part["converged"] == [True]
        assert part["samples"] == 23
        assert "differences of gradients" in part["by"]
        assert part["values"] == found[0][dtype]["values"]


@pytest.mark.parametrize("dtype", TYPES)
def test_products(found, hessian, dtype):
    H = of_type(dtype, hessian)
    v = shards_worker.direction(len(H))
    for each in found:
        product = torch.tensor(each[dtype]["product"], dtype=torch.float64)
        off = float((product - H @ v).norm())
        assert off <= each[dtype]["error"][0] < 2e-3 * float((H @ v).norm())
    if "64" in dtype:
        solved = torch.tensor(found[0][dtype]["solved"], dtype=torch.float64)
        exact = torch.linalg.solve(H + torch.eye(len(H)), v)
        torch.testing.assert_close(solved, exact, rtol=0, atol=1e-3 * float(exact.abs().max()))


def test_the_trace_by_weight_probes(found, hessian):
    """Twelve normal vectors, whose numbers differ between processes."""
    H = of_type("torch.float64", hessian)
    value, stderr = found[0]["torch.float64"]["trace"]
    # the variance of vᵀHv is 2‖H‖²; four times the standard error is exceeded once in 16,000
    assert abs(value - float(H.trace())) <= 4 * (2 * float(H.square().sum()) / 12) ** 0.5
    assert found[1]["torch.float64"]["trace"] == [value, stderr]


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_put_back_bit_for_bit(found, dtype):
    for each in found:
        assert all(each[dtype]["same"])
        assert each[dtype]["kinds"] == ["DTensor"]


def test_an_error_leaves_weights_and_gradients_as_they_were(found):
    for each in found:
        assert each["error"]["raised"] == "mine"
        assert all(each["error"]["same"])
        assert each["error"]["outputs"]


def test_no_process_holds_the_model_whole(found):
    for each in found:
        assert each["share"] < 0.6 * each["whole"]
        assert each["largest"] <= each["share"] + 100  # a share, or a layer that FSDP gathers


def test_what_cannot_be_done_in_parts_says_so(found):
    for each in found:
        assert "Pass products='reverse', for which the model is gathered" in each["refused"]


def test_what_is_gathered_as_before(found):
    for each in found:
        assert each["stay"] == {
            "plain": False,
            "divided": True,
            "half inside": False,
            "half": False,
        }
