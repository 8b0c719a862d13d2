"""What the measures of one call share, counted: one call for all against one call for each."""

import copy
import math

import pytest

import spiritlevel as sl
from spiritlevel.measures import names
from spiritlevel.verbs import reference_problems as problems

KINDS = ("forwards", "backwards", "products")
ENDS = ("curvature.lambda_max", "curvature.lambda_min")
EIGENVALUES = (*ENDS, "scaled.lambda_max")
SWEPT = ("curvature.trace", "curvature.ggn_trace", "scaled.trace*", "relative.kappa", "neuron.*")
# Of the passes of single calls. On so few samples searches and draws of single measures are most of
# them, and nobody else needs those; what the sweep and the Lanczos runs save is still there.
SHARE = 0.8


@pytest.fixture(scope="module")
def problem():
    """Without biases, so that the measures of homogeneous networks apply as well."""
    found = problems.relu_convnet()
    for module in found.model:
        if hasattr(module, "bias"):
            module.bias = None
    return found


@pytest.fixture(scope="module")
def measured(problem):
    """One call by names or patterns, with settings under which all measures apply."""
    options = {
        "initial": {k: 2 * v for k, v in copy.deepcopy(problem.model.state_dict()).items()},
        "weight_decay": 0.1,
        "region": (1, 1, 2, 2),
        "m": 3,
        "draws": 4,
        "target": "loss",
        "bandwidth": 1.0,
        "splits": 4,
        "ascent_steps": 5,
        "restarts": 1,
    }

    def measure(asked):
        model = copy.deepcopy(problem.model)  # a later call on the same one costs less
        return sl.measure(model, problem.data, measures=asked, options=options)

    return measure


@pytest.fixture(scope="module")
def together(measured):
    return measured("*")


class Singles(dict):
    """By name, the report of a call for this measure alone, made when it is first asked for."""

    def __init__(self, measured):
        super().__init__()
        self.measured = measured

    def __missing__(self, name):
        self[name] = self.measured(name)
        return self[name]


@pytest.fixture(scope="module")
def alone(measured):
    return Singles(measured)


@pytest.mark.nightly  # a call for each measure; what each kind of work shares is tested below
def test_the_whole_catalogue_in_one_call_takes_fewer_passes_of_every_kind(together, alone):
    assert set(together) == set(names())
    total = sum((alone[name].cost for name in names()), sl.results.Cost())
    for kind in KINDS:
        one_call, separate = getattr(together.cost, kind), getattr(total, kind)
        print(f"{kind}: {one_call} in one call, {separate} in {len(names())}")
        assert 0 < one_call <= SHARE * separate, kind


@pytest.mark.parametrize("name", names())
def test_what_is_shared_has_the_same_value(together, alone, name):
    found, single = together[name], alone[name][name]
    apart = (found.residual or 0.0) + (single.residual or 0.0)  # an eigenvalue lies within it
    if name == "curvature.trace_squared":  # it takes dominant directions from Lanczos if there are
        apart = 5 * math.hypot(found.stderr or 0.0, single.stderr or 0.0)  # once in a million
    assert found.value == pytest.approx(single.value, rel=1e-9, abs=apart)


def test_eigenvalues_of_network_and_layers_share_their_passes(problem, measured, alone):
    """λ_max and λ_min are ends of one Lanczos run, and the runs of the layers go beside it."""
    seen = []
    handle = problem.model.register_forward_hook(lambda m, x, outputs: seen.append(len(outputs)))
    cost = measured(list(EIGENVALUES)).cost
    handle.remove()
    assert cost.forwards == sum(seen)  # counted, not planned

    products = {name: alone[name].cost.products for name in EIGENVALUES}
    assert cost.products == max(products[name] for name in ENDS) + products["scaled.lambda_max"]
    for kind in ("forwards", "backwards"):
        separate = [getattr(alone[name].cost, kind) for name in EIGENVALUES]
        assert getattr(cost, kind) == max(separate), kind  # no more than the longest run alone


def test_both_sums_over_layers_take_the_eigenvalues_of_one(measured, alone):
    cost = measured(["scaled.lambda_max", "scaled.lambda_max_max"]).cost
    assert cost == alone["scaled.lambda_max"].cost


def test_traces_and_flatness_of_all_kinds_come_from_one_sweep(measured, alone):
    report = measured(list(SWEPT))
    assert len(report) == 7
    assert report.cost == alone["relative.kappa"].cost
    assert report.cost == alone["curvature.trace"].cost
