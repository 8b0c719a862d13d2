"""Every trace, κ and ρ, whole and per layer, against dense float64 matrices."""

import pytest
import torch

import spiritlevel as sl
from spiritlevel.testing import references
from zoo import wirings
from zoo.cases import CASES
from zoo.losses import LOSSES

MEASURES = ["curvature.trace", "relative.kappa", "neuron.rho_sum", "neuron.rho_max"]


def measured(model, batches, *, loss="cross_entropy", measures=MEASURES, **options):
    """By the sweep alone: what is not certified is then the GGN's."""
    given = LOSSES[loss].given
    return sl.measure(model, batches, loss=given, measures=measures, method="exact", **options)


def truth_of(model, batches, case):
    call = (lambda m, x: m(*x)) if isinstance(batches[0][0], tuple) else None
    return references.Truth(model, batches, LOSSES[case.loss].plain, call)


def expected_label(measurement, bends):
    """What the value claims to be of must be what the case says; returns that matrix's name."""
    if bends:
        assert not measurement.exact
        assert measurement.status is sl.results.Status.GGN
        assert measurement.quantity == "GGN"
        assert "of the GGN, not the Hessian" in measurement.text
        return "GGN"
    assert measurement.exact
    assert measurement.status is sl.results.Status.OK
    assert measurement.quantity == "Hessian"
    return "Hessian"


def check_against_dense(report, truth, case, rel):
    """All four measures by their definitions, from the matrix that each value names."""
    layers = truth.layers()
    assert set(report.layers["curvature.trace"]) == set(layers)
    for layer, names in layers.items():
        found = report.layers["curvature.trace"][layer]
        H = truth.matrix(expected_label(found, layer in case.bends), names)
        assert found.value == pytest.approx(float(H.trace()), rel=rel, abs=0), layer
    kind = expected_label(report["curvature.trace"], bool(case.bends))
    H = truth.matrix(kind, list(truth.parameters))
    assert report["curvature.trace"].value == pytest.approx(float(H.trace()), rel=rel, abs=0)

    kappas, sums, maxima = {}, {}, {}
    for layer, (weight, view) in references.matrices(truth.model).items():
        owner = weight.rpartition(".")[0] or references.ROOT
        found = {m: report.layers[m][layer] for m in MEASURES[1:]}
        kinds = {expected_label(m, owner in case.bends) for m in found.values()}
        H, values = truth.matrix(*kinds, [weight]), truth.parameters[weight]
        kappas[layer] = references.kappa(H, values, view)
        rho = references.rho(H, values, view)
        sums[layer], maxima[layer] = sum(rho), max(rho)
        for m, value in zip(MEASURES[1:], (kappas, sums, maxima), strict=True):
            assert found[m].value == pytest.approx(value[layer], rel=rel, abs=0), (m, layer)
    for m in MEASURES[1:]:
        assert set(report.layers[m]) == set(kappas)
    owners = {name.rpartition(".")[0] for name, _ in references.matrices(truth.model).values()}
    bends = bool(owners & set(case.bends))
    for m, value in (
        ("relative.kappa", sum(kappas.values())),
        ("neuron.rho_sum", sum(sums.values())),
        ("neuron.rho_max", max(maxima.values())),
    ):
        expected_label(report[m], bends)
        if not bends:  # a sum of Hessian and GGN blocks is neither
            assert report[m].value == pytest.approx(value, rel=rel, abs=0), m


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_dense_matrices(name):
    case = CASES[name]
    model, batches = case.make()
    report = measured(model, batches, loss=case.loss)
    check_against_dense(report, truth_of(model, batches, case), case, rel=1e-9)


# Parameters that no layer rule covers; everything else must take the way that costs no second pass.
WITHOUT_A_RULE = {
    "bare_parameters": ("token", "position", "scale"),
    "weight_norm": ("0.parametrizations.",),
    "attention_batch_first": ("attention.",),
    "attention_sequence_first": ("attention.",),
    "transformer_block": ("block.self_attn.",),
    "transformer_block_sequence_first": ("block.self_attn.",),
    "gru": ("gru.",),
    "bilinear": ("bilinear.",),
    "borrowed_weight": ("a.weight",),
    "branching_on_the_data": ("scale", "low.", "high.", "head."),
    "called_by_keyword": ("first.",),
    "subclass_that_changes_forward": ("0.",),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_layers_with_a_rule_take_it(name):
    # A wrong rule would not give wrong numbers: it is noticed on three samples and goes unused.
    case = CASES[name]
    model, batches = case.make()
    options = {"loss": LOSSES[case.loss].given, "measures": MEASURES}
    slow = sl.preflight(model, batches, **options).slow_parameters
    assert [p for p in slow if not p.startswith(WITHOUT_A_RULE.get(name, ()))] == []


SEVERAL_POSITIONS = [
    "conv1d",
    "conv2d",
    "conv2d_wide",
    "conv3d",
    "grouped_conv",
    "depthwise_conv",
    "conv_transpose2d",
    "padding_same",
    "linear_on_tokens",
    "linear_sequence_first",
    "images_folded_into_the_batch",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SEVERAL_POSITIONS)
@pytest.mark.parametrize("form", ["direct", "gram"])  # below, so that a day has both
def test_every_form_of_a_contraction_gives_the_same(name, form, monkeypatch):
    # The sizes of a layer decide which form is used; here both have to do, whatever the sizes.
    chosen = []

    def choose(shape, **_):
        chosen.append("vector" if shape.positions == 1 else form)
        return chosen[-1]

    monkeypatch.setattr("spiritlevel.math.contractions.choose_form", choose)
    case = CASES[name]
    model, batches = case.make()
    report = measured(model, batches, loss=case.loss)
    assert form in chosen
    check_against_dense(report, truth_of(model, batches, case), case, rel=1e-9)


IN_FLOAT32 = [
    "mlp",
    "conv2d",
    "conv2d_wide",
    "depthwise_conv",
    "conv_transpose2d",
    "residual_sums_in_place",
    "embedding_with_padding",
    "linear_sequence_first",
    "tied_in_parallel",
    "transformer_block",
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_float32_agrees_with_the_float64_truth(name):
    case = CASES[name]
    truth = truth_of(*case.make(), case)
    model, batches = case.make(torch.float32)
    report = measured(model, batches, loss=case.loss)
    assert report.settings["dtype"] == "float32"
    # float32 carries 7 digits; sums of a few hundred products through a few layers keep 4 of them
    check_against_dense(report, truth, case, rel=1e-4)


def test_float32_is_not_silently_computed_in_float64():
    # Meta-test of the one above: at 1e-9 it would fail, so the network did run in float32.
    case = CASES["mlp"]
    truth = truth_of(*case.make(), case)
    model, batches = case.make(torch.float32)
    report = measured(model, batches)
    with pytest.raises(AssertionError):
        check_against_dense(report, truth, case, rel=1e-9)


def test_a_wrong_value_is_noticed():
    # Meta-test: the comparison fails for a network that differs by one part in a million.
    case = CASES["mlp"]
    model, batches = case.make()
    report = measured(model, batches)
    with torch.no_grad():
        model[4].weight *= 1 + 1e-6
    with pytest.raises(AssertionError):
        check_against_dense(report, truth_of(model, batches, case), case, rel=1e-9)


# The trace alone as well: without ρ a wrong layout can have shapes that fit, and no error.
@pytest.mark.parametrize("wanted", [MEASURES[:1], MEASURES[:3]], ids=["trace", "all"])
@pytest.mark.parametrize("layout", ["plain", "reshaped", "tokens_major", "sequence_first"])
def test_sequences_may_be_of_another_length_in_each_batch(layout, wanted):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = wirings.TokenLinear(layout).double().eval()
    generator = torch.Generator().manual_seed(2)
    batches = [
        (
            torch.randn(size, length, 3, generator=generator, dtype=torch.float64),
            torch.randint(wirings.CLASSES, (size,), generator=generator),
        )
        for size, length in [(4, 4), (2, 2), (3, 4)]
    ]
    report = measured(model, batches, measures=wanted)
    expected = dict.fromkeys(MEASURES[:3], 0.0)
    for x, y in batches:
        truth = references.Truth(model, [(x, y)], torch.nn.functional.cross_entropy)
        share = len(x) / sum(len(x) for x, _ in batches)
        H = truth.hessian(list(truth.parameters))
        expected["curvature.trace"] += share * float(H.trace())
        for name, module in model.named_children():
            H, view = truth.hessian([f"{name}.weight"]), references.matrix_view(module)
            kappa = references.kappa(H, module.weight, view)
            expected["relative.kappa"] += share * kappa
            expected["neuron.rho_sum"] += share * sum(references.rho(H, module.weight, view))
    for m in wanted:
        assert report[m].value == pytest.approx(expected[m], rel=1e-9), m


def test_layers_restricts_what_is_measured():
    case = CASES["mlp"]
    model, batches = case.make()
    truth = truth_of(model, batches, case)
    report = measured(model, batches, layers=["0", "4"])
    names = ["0.weight", "0.bias", "4.weight", "4.bias"]
    H = truth.hessian(names)
    assert report["curvature.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)
    assert list(report.layers["relative.kappa"]) == ["0", "4"]
    assert report.settings["layers"] == ["0", "4"]


def test_a_users_own_forward_hooks_are_part_of_the_function():
    case = CASES["mlp"]
    model, batches = case.make()
    plain = measured(model, batches)["curvature.trace"].value
    seen = []
    model[0].register_forward_hook(lambda module, args, output: 2.0 * output)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1.0,))
    model[4].register_forward_hook(lambda module, args, output: seen.append(len(output)))
    report = measured(model, batches)
    assert {4, 1, 2} <= set(seen)
    assert report["curvature.trace"].value != pytest.approx(plain, rel=1e-2)
    check_against_dense(report, truth_of(model, batches, case), case, rel=1e-9)
