"""What must hold whatever the network: invariances, sampling errors, forms of data."""

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.testing import references
from spiritlevel.verbs import reference_problems as problems
from zoo import cases, losses
from zoo.cases import CASES
from zoo.losses import LOSSES

SWEEP = ["curvature.trace", "relative.kappa", "neuron.rho_sum", "neuron.rho_max", "scaled.trace"]


# -- known answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_relative_flatness_of_linear_regression_is_ridge(outputs, generator):
    # Petzka et al.: for squared error, κ = 2 · mean ‖x‖² · ‖w‖², the ridge penalty times the data.
    x = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(9, outputs, generator=generator, dtype=torch.float64)
    model = nn.Linear(4, outputs, bias=False).double().eval()
    found = sl.measure(model, (x, y), loss="mse", measures=["relative.kappa", "head.kappa"])
    ridge = sum(float(v) ** 2 for row in model.weight for v in row)
    mean_square = sum(float(v) ** 2 for row in x for v in row) / 9
    expected = 2 * mean_square * ridge / outputs  # torch's mean also divides by the outputs
    assert found["relative.kappa"].value == pytest.approx(expected, rel=1e-12)
    assert found["head.kappa"].value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("factor", [0.2, 7.0])
@pytest.mark.parametrize("name", ["relu_mlp", "relu_convnet"])
def test_rescaling_a_layer_moves_its_trace_by_the_square_and_leaves_kappa(name, factor):
    problem = problems.ALL[name]()
    producer, consumer = problem.pairs[0]
    moved = symmetries.rescale_layers(problem.model, producer, consumer, factor)
    before = sl.measure(problem.model, problem.data, measures=SWEEP)
    after = sl.measure(moved, problem.data, measures=SWEEP)
    for layer in before.layers["relative.kappa"]:
        for measure in ("relative.kappa", "scaled.trace", "neuron.rho_sum", "neuron.rho_max"):
            expected = before.layers[measure][layer].value
            found = after.layers[measure][layer].value
            assert found == pytest.approx(expected, rel=1e-10), (measure, layer)
    traces = (r.layers["curvature.trace"][producer].value for r in (before, after))
    assert next(traces) == pytest.approx(next(traces) * factor**2, rel=1e-10)
    names = [f"{consumer}.weight"]  # its bias stays: only the weight's part goes the other way
    of = [
        float(references.Truth(m, problem.data, F.cross_entropy).hessian(names).trace())
        for m in (problem.model, moved)
    ]
    assert of[1] == pytest.approx(of[0] * factor**2, rel=1e-10)


# -- how the data is cut ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["conv2d", "tied_convolution", "two_inputs", "attention_batch_first"]
)
def test_batches_and_chunks_do_not_matter(name):
    case = CASES[name]
    model, batches = case.make()
    options = {"loss": LOSSES[case.loss].given, "measures": SWEEP, "method": "exact"}
    x, y = references.concatenated(batches)
    one = sl.measure(model, [(x, y)], **options)
    pick = (lambda p: tuple(t[p] for t in x)) if isinstance(x, tuple) else (lambda p: x[p])
    order = torch.tensor([6, 2, 0, 5, 1, 4, 3])
    singles = [(pick(slice(n, n + 1)), y[n : n + 1]) for n in range(7)]
    others = [
        sl.measure(model, batches, **options),
        sl.measure(model, singles, **options),
        sl.measure(model, [(pick(order), y[order])], **options),
        sl.measure(model, [(x, y)], memory=1, **options),
        sl.measure(model, [(x, y)], memory=10_000, **options),
    ]
    for other in others:
        for measure, found in other.items():
            assert found.value == pytest.approx(one[measure].value, rel=1e-11), measure
            if found.data_stderr is not None:
                # squares of residuals cancel: half the digits are left
                expected = pytest.approx(one[measure].data_stderr, rel=1e-6)
                assert found.data_stderr == expected, measure


@pytest.mark.usefixtures("only_probes")
@pytest.mark.parametrize("method", ["auto", "output_probes"])
def test_estimates_do_not_depend_on_batches_and_chunks_either(method):
    # A probe's signs belong to a sample's number or to a parameter, not to a batch.
    model, batches = CASES["layernorm"].make()
    options = {"measures": SWEEP[:2], "method": method, "max_passes": 16}
    x, y = references.concatenated(batches)
    one = sl.measure(model, [(x, y)], **options)
    for data, memory in ((batches, None), ([(x, y)], 1)):
        other = sl.measure(model, data, memory=memory, **options)
        for measure, found in other.items():
            assert found.stderr > 0
            assert found.value == pytest.approx(one[measure].value, rel=1e-11), measure
            assert found.stderr == pytest.approx(one[measure].stderr, rel=1e-9), measure


def test_memory_bounds_how_many_samples_run_together():
    case = CASES["mlp"]
    model, _ = case.make()
    x, y = torch.randn(64, 4).double(), torch.zeros(64).long()
    seen = []
    handle = model.register_forward_hook(lambda m, args, out: seen.append(len(out)))
    sl.measure(model, (x, y), measures="curvature.trace", memory=1)
    assert max(seen) <= 8  # plan and certificate look at a few samples together
    seen.clear()
    sl.measure(model, (x, y), measures="curvature.trace")
    assert max(seen) == 64
    handle.remove()
    whole = sl.preflight(model, (x, y), measures="curvature.trace")
    a_fifth = sl.preflight(model, (x, y), measures="curvature.trace", memory=whole.memory // 5)
    assert (whole.chunk, a_fifth.chunk) == (64, 12)
    assert a_fifth.memory <= whole.memory // 5


def test_a_loader_and_a_pair_of_tensors_are_the_same():
    case = CASES["mlp"]
    model, batches = case.make()
    x, y = references.concatenated(batches)
    loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
    found = sl.measure(model, loader, measures=SWEEP)
    expected = sl.measure(model, (x, y), measures=SWEEP)
    assert found.settings["num_samples"] == 7
    for measure in SWEEP:
        assert found[measure].value == pytest.approx(expected[measure].value, rel=1e-12)


# -- sampling error -----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "class_weights", "ignored", "mse"])
def test_data_stderr_is_that_of_the_samples_own_values(loss):
    case = cases.Case(cases.mlp, cases.normal(4), loss)
    model, batches = case.make()
    x, y = references.concatenated(batches)
    names = ["curvature.trace", "relative.kappa", "scaled.trace", "head.trace"]
    report = sl.measure(model, batches, loss=LOSSES[loss].given, measures=names)
    weights = torch.ones(7, dtype=torch.float64)
    if loss == "class_weights":
        weights = losses.WEIGHTS[y]
    if loss == "ignored":
        weights = (y != -100).double()
    values, heads = [], []
    for n in range(7):  # a sample alone, times its weight: ∇²ℓ_n, which the mean divides by Σ w
        if weights[n] == 0:
            values.append(0.0)
            heads.append(0.0)
            continue
        truth = references.Truth(model, [(x[n : n + 1], y[n : n + 1])], LOSSES[loss].plain)
        share = float(weights[n])
        values.append(share * float(truth.hessian(list(truth.parameters)).trace()))
        heads.append(share * float(truth.hessian(["4.weight"]).trace()))
    for name, per_sample in (("curvature.trace", values), ("head.trace", heads)):
        v = torch.tensor(per_sample, dtype=torch.float64)
        mean = v.sum() / weights.sum()
        residuals = v - mean * weights
        stderr = math.sqrt(float(residuals.square().sum()) * 7 / 6) / float(weights.sum())
        assert report[name].value == pytest.approx(float(mean), rel=1e-10)
        assert report[name].data_stderr == pytest.approx(stderr, rel=1e-6)
        if loss == "cross_entropy":  # equal weights: the textbook standard error of a mean
            assert stderr == pytest.approx(float(v.std()) / math.sqrt(7), rel=1e-12)


def test_one_sample_has_no_sampling_error():
    model, batches = CASES["mlp"].make()
    report = sl.measure(model, [batches[1]], measures=SWEEP)
    assert all(found.data_stderr is None for found in report.values())


def test_a_maximum_claims_no_sampling_error():
    model, batches = CASES["mlp"].make()
    report = sl.measure(model, batches, measures=["*.*_max"])
    assert all(found.data_stderr is None for found in report.values())


# -- forms of data ------------------------------------------------------------------------------


class TakesKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, values, mask):
        return self.fc(values * mask).relu() @ torch.eye(3, dtype=values.dtype)


@pytest.fixture
def keyword_data(generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TakesKeywords().double().eval()
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 4, generator=generator, dtype=torch.float64).round()
    return model, x, mask, torch.tensor([0, 1, 2, 2, 1, 0])


@pytest.mark.parametrize("key", ["labels", "label", "targets", "target", "y"])
def test_dict_batches_are_keyword_arguments_and_labels(key, keyword_data):
    model, x, mask, y = keyword_data
    cut = [slice(0, 4), slice(4, 6)]
    data = [{"values": x[c], key: y[c], "mask": mask[c]} for c in cut]
    found = sl.measure(model, data, measures="curvature.trace")["curvature.trace"].value
    truth = references.Truth(model, [((x, mask), y)], F.cross_entropy, lambda m, inputs: m(*inputs))
    expected = float(truth.hessian(["fc.weight", "fc.bias"]).trace())
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("form", ["pair of tuple", "pair of dict", "custom"])
def test_other_forms_of_batches_give_the_same(form, keyword_data):
    model, x, mask, y = keyword_data
    options = {}
    if form == "pair of tuple":
        data = [((x, mask), y)]
    elif form == "pair of dict":
        data = [({"mask": mask, "values": x}, y)]
    else:
        data = [[y, {"deep": [x, mask]}, "a note"]]
        options["forward"] = lambda m, b: (m(*b[1]["deep"]), b[0])
    found = sl.measure(model, data, measures=SWEEP, **options)
    expected = sl.measure(model, [{"values": x, "mask": mask, "y": y}], measures=SWEEP)
    for measure in SWEEP:
        assert found[measure].value == pytest.approx(expected[measure].value, rel=1e-12)


@pytest.fixture
def token_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()


def test_forward_may_choose_what_the_outputs_are(token_model, keyword_data):
    _, x, _, y = keyword_data
    found = sl.measure(
        token_model,
        [{"tokens": x.view(3, 2, 4), "answers": y.view(3, 2)}],
        forward=lambda m, b: (m(b["tokens"])[:, 0], b["answers"][:, 0]),  # the first of two tokens
        measures=SWEEP,
    )
    truth = references.Truth(token_model, [(x[::2], y[::2])], F.cross_entropy)
    expected = float(truth.hessian(list(truth.parameters)).trace())
    assert found["curvature.trace"].value == pytest.approx(expected, rel=1e-9)


def test_one_loss_a_token_is_right_or_refused(token_model, keyword_data):
    # Two rows of outputs a sample: squaring a sample's whole gradient would mix its tokens.
    _, x, _, y = keyword_data
    data = [{"tokens": x.view(3, 2, 4), "answers": y.view(3, 2)}]
    truth = references.Truth(token_model, [(x, y)], F.cross_entropy)
    expected = float(truth.hessian(list(truth.parameters)).trace())
    with contextlib.suppress(sl.SpiritlevelError):
        found = sl.measure(
            token_model,
            data,
            forward=lambda m, b: (m(b["tokens"]).flatten(0, 1), b["answers"].flatten()),
            measures=SWEEP,
        )
        assert found["curvature.trace"].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", ["mse", "bce", "saddle", "huber"])
def test_default_measures_suit_every_loss(loss):
    case = cases.Case(cases.mlp, cases.normal(4), loss)
    model, batches = case.make()
    report = sl.measure(model, batches, loss=LOSSES[loss].given)
    assert "softmax.gini" not in report
    assert {"curvature.trace", "relative.kappa", "neuron.rho_sum", "head.trace"} <= set(report)


def test_default_measures_suit_a_network_without_weight_matrices():
    model = nn.Sequential(nn.Flatten(), nn.PReLU(), nn.BatchNorm1d(3)).double().eval()
    x, y = torch.randn(5, 3).double(), torch.tensor([0, 1, 2, 0, 1])
    report = sl.measure(model, (x, y))
    assert set(report) == {"curvature.trace", "softmax.gini"}


def test_half_precision_travels_and_is_summed_in_more(generator):
    case = CASES["mlp"]
    model, batches = case.make()
    names = [*SWEEP, "curvature.lambda_*", "curvature.trace_squared", "scaled.lambda_max"]
    options = {"measures": names, "max_passes": 40}
    expected = sl.measure(model, batches, **options)
    model, batches = cases.cast(model, batches, torch.bfloat16)
    found = sl.measure(model, batches, **options)
    for measure, single in found.items():
        # bfloat16 has 8 bits: 0.4 % a rounding, and a few of them in a row
        assert single.value == pytest.approx(expected[measure].value, rel=0.1), measure


# -- preflight ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "bare_parameters", "tied_in_series", "gru", "conv3d"])
@pytest.mark.parametrize("wanted", [SWEEP, ["head.trace"]], ids=["sweep", "head"])
def test_preflight_names_the_cost_of_the_pass(name, wanted):
    case = CASES[name]
    model, batches = case.make()
    options = {"loss": LOSSES[case.loss].given, "measures": wanted, "method": "exact"}
    plan = sl.preflight(model, batches, **options)
    cost = sl.measure(model, batches, **options)[wanted[0]].cost
    assert cost.forwards == 7 * plan.cost_per_sample.forwards
    # two more for a run in which the samples may have changed places, as in the GRU's time steps
    tests = 2 * 6 if name == "gru" and wanted is SWEEP else 0
    assert cost.backwards == 7 * plan.cost_per_sample.backwards + tests
    assert plan.measures == tuple(wanted)


def test_preflight_names_the_cost_of_the_first_probes():
    # Of 39 columns a sample not all are worth their backward: some probes stand for them.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 40)).double().eval()
    # It depends on the data whether two probes tell how far they are off.
    for seed, interval in ((0, False), (1, True), (4, True)):
        draw = torch.Generator().manual_seed(seed)
        x, y = torch.randn(50, 4, generator=draw).double(), torch.arange(50) % 40
        plan = sl.preflight(model, (x, y), measures="curvature.trace")
        assert plan.num_columns == 39
        assert f"{plan.num_probes} output probes instead of 39 columns" in str(plan)
        assert plan.cost_per_sample == sl.results.Cost(forwards=1, backwards=plan.num_probes)
        few = {"measures": "curvature.trace", "max_passes": plan.num_probes}
        found = sl.measure(model, (x, y), **few)["curvature.trace"]
        assert found.cost == sl.results.Cost(forwards=50, backwards=50 * plan.num_probes)
        if not interval:
            assert found.stderr is None
            assert "so few probes give no interval" in found.text
            continue
        exact = sl.measure(model, (x, y), measures="curvature.trace", method="exact")
        # 5 standard errors are exceeded once in a million by chance
        assert abs(found.value - exact["curvature.trace"].value) < 5 * found.stderr


def test_preflight_runs_few_samples():
    model, _ = CASES["mlp"].make()
    x, y = torch.randn(500, 4).double(), torch.zeros(500).long()
    seen = []
    model.register_forward_hook(lambda m, args, out: seen.append(len(out)))
    plan = sl.preflight(model, (x, y))
    assert sum(seen) < 20
    assert plan.num_columns == 2
    assert plan.chunk == 500


def test_preflight_names_what_is_slow():
    model, batches = CASES["weight_norm"].make()
    plan = sl.preflight(model, batches)
    assert plan.slow_parameters == tuple(f"0.parametrizations.weight.original{i}" for i in (0, 1))
    assert "twice the work, because they need per-sample gradients: 0.param" in str(plan)
    assert "2 forwards, 4 backwards per sample, 4 samples at a time" in str(plan)


def test_the_cost_counts_what_goes_through_the_model():
    model, batches = CASES["mlp"].make()
    seen = []
    model.register_forward_hook(lambda m, args, out: seen.append(len(out)))
    report = sl.measure(model, batches, measures=["softmax.gini"])
    assert report.cost.forwards == sum(seen)
    assert report["softmax.gini"].cost == sl.results.Cost(forwards=7)


def test_only_the_weight_itself_makes_a_layer_a_matrix():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3, dtype=torch.float64)
            self.linear.weight.requires_grad_(False)
            self.linear.gate_weight = nn.Parameter(torch.rand(3, dtype=torch.float64))

        def forward(self, x):
            return self.linear(x) * self.linear.gate_weight

    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = Gated().eval()
    report = sl.measure(model, (x, torch.arange(6) % 3))
    assert "relative.kappa" not in report
    outputs = model(x).detach()
    p, gate = outputs.softmax(dim=1), model.linear.gate_weight.detach()
    # z = gate ∘ (W x + b): Σ_i p_i(1−p_i) times (z_i/gate_i)² for the gate and gate_i² for b
    terms = p * (1 - p) * ((outputs / gate).square() + gate.square())
    assert report["curvature.trace"].value == pytest.approx(
        float(terms.sum(dim=1).mean()), rel=1e-12
    )
