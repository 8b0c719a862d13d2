"""Cases that were wrong once, as small as they could be made, each under the kind of its cause."""

import dataclasses

import pytest

from fuzz.case import Case, Node
from fuzz.judge import judge

pytestmark = pytest.mark.sampled(3)  # the others at night


def node(kind, *inner, **choices):
    """A part around others, each of them by its kind or as a part."""
    parts = tuple(Node(part) if isinstance(part, str) else part for part in inner)
    return Node(kind, choices, (parts,) if parts else ())


def case(*body, stem="rows", readout="linear", seed=0, **fields):
    parts = tuple(Node(part) if isinstance(part, str) else part for part in body)
    return Case(seed=seed, stem=stem, body=parts, readout=readout, **fields)


EXPERTS = Node("index_experts", {}, ((Node("linear"),), (Node("linear"),)))
SEVERAL = ("curvature.trace", "relative.kappa", "neuron.rho_sum")
LOOP = {"stem": "sequence", "readout": "mean_time"}
TOKENS = {"readout": "mean_time", "measures": SEVERAL}
OUTER = {"stem": "rows_bare", "measures": SEVERAL}  # the part sees the data themselves

# a module under two names
SHARED = {
    "two_names": case(node("two_names", "linear", "tanh")),
    "two_names_state": case(node("two_names", "linear"), measures=("pac_bayes.sigma",)),
}
# routes that the first samples do not take
ROUTED = {
    "experts": case(EXPERTS, "relu", inputs="first_five_left", sizes=(8,), **OUTER),
    "experts_by_batch": case(EXPERTS, "relu", inputs="first_five_right", sizes=(5, 3), **OUTER),
    "early_exit": case(node("early_exit", "linear"), inputs="first_five_left", sizes=(8,), **OUTER),
    # a rule that the first samples cannot refute, since they have no gradient there
    "patched_for_later_samples": case(
        Node("mask_experts", {}, ((Node("patched_forward"),), (Node("linear"),))),
        stem="sequence",
        readout="last_step",
        inputs="first_five_right",
        sizes=(8,),
        measures=SEVERAL,
    ),
    "functional_call_for_later_samples": case(
        Node("empty_experts", {}, ((Node("linear"),), (Node("inner_functional_call"),))),
        "linear",
        stem="rows_bare",
        readout="two_heads",
        inputs="first_three_left",
        sizes=(4, 4),
        measures=("curvature.ggn_trace", "curvature.trace"),
        memory=1,
        seed=3742,
    ),
    "repeated": case(node("repeated_by_row", "linear", "relu"), inputs="first_three_left", **OUTER),
}
# losses with a mean of their own
LOSSES = {
    "loss_subclass": case("relu", loss="focal", measures=SEVERAL),
    "loss_subclass_with_reductions": case("relu", loss="quartic", measures=SEVERAL),
    "weighted_nll": case("relu", loss="nll_weights", measures=("curvature.lambda_max",)),
    "masked_nll": case("relu", loss="nll_ignored", measures=("curvature.lambda_max",)),
    "kl_batchmean": case("relu", loss="kl_batchmean", measures=("curvature.lambda_max",)),
    "multi_margin": case("relu", loss="multi_margin"),
}
# half precision
ROUNDED = {
    "bfloat16": case("silu", "linear", "silu", dtype="bfloat16", sizes=(8,)),
    "float16": case("sigmoid", "linear", "sigmoid", dtype="float16", sizes=(8,)),
    # a layer that bends behind a small gate
    "small_gate": case(node("layer_scale", "linear", "gelu", "linear", gain=1e-6), dtype="float32"),
    # a bend that the last chunk does not have
    "bend_in_one_chunk": case(
        node("branch_per_batch", "linear", "layernorm"), stem="rows_bare", seed=1, memory=1
    ),
}
# second derivatives that torch gets wrong
SECOND_DERIVATIVES = {
    "weight_norm": case("weight_norm", "tanh", stem="rows_bare", measures=("eigenvalues",)),
    "saved_slope": case("saved_slope", measures=("neuron.rho_sum", "curvature.trace")),
    # two samples with the same tokens and opposite targets, whose residuals cancel
    "saved_slope_that_cancels": case(
        "saved_slope",
        stem="embedding",
        readout="mean_time",
        loss="hinge_embedding",
        sizes=(2, 3),
        measures=("relative.kappa",),
        max_passes=8,
        call_seed=77,
        seed=7622,
    ),
}
# a number of uses that varies
USES = {
    "uses": case(
        node("use_per_position", "linear"), "relu", sizes=(4, 1, 2), lengths=(1, 4, 2), **LOOP
    ),
    # a blank sample that makes a check empty
    "blank": case(node("siamese", "linear_without_bias", "relu"), inputs="second_blank", **OUTER),
}
# probes that happen to agree
PROBES = {
    "few_probes_packed": case(
        "packed_recurrence",
        stem="embedding",
        readout="mean_time",
        sizes=(1,),
        measures=("relative.kappa",),
        max_passes=4,
    ),
    "equal_probes_of_the_ggn": case(
        node("fused_attention", causal=False),
        "layernorm",
        stem="sequence",
        readout="last_step",
        sizes=(3, 4),
        lengths=(2, 2),
        measures=("scaled.trace",),
        method="output_probes",
        max_passes=8,
        call_seed=31,
        seed=1974,
    ),
}
# embeddings with flags
EMBEDDINGS = {
    "max_norm": case("relu", stem="embedding_norm", **TOKENS),
    "frequency": case("relu", stem="embedding_frequency", inputs="duplicates", **TOKENS),
    "sparse": case("relu", stem="embedding_sparse", **TOKENS),
    "padding": case("packed_slices", stem="embedding_padding", sizes=(8,), **TOKENS),
}
# checkpoints
GRADIENTS = {
    "reentrant": case(node("checkpoint_reentrant", "linear", "relu"), measures=SEVERAL),
    # a checkpoint on the data themselves, which a saturated sample does not show
    "reentrant_on_the_data": case(
        node("twice", "maximum", node("checkpoint_reentrant", "hooked_linear", "low_rank")),
        "hardtanh",
        stem="sequence_bare",
        readout="last_step",
        dtype="float32",
        sizes=(5,),
        measures=("curvature.ggn_trace",),
        method="hutchinson",
        max_passes=8,
        call_seed=65,
        seed=721,
    ),
    "reentrant_before_saturation": case(
        node("checkpoint_reentrant", "linear"),
        "saved_slope",
        stem="sequence_bare",
        readout="per_token",
        inputs="large",
        sizes=(1,),
        measures=("neuron.rho_sum", "curvature.ggn_trace"),
        seed=4276,
    ),
    # gradients that are not those of the loss
    "stopped_gate": case("stopped_gate", measures=SEVERAL),
    "stopped_branch": case("relu", "stopped_branch", measures=SEVERAL),
    "gradient_hook": case("gradient_hook", measures=("curvature.ggn_trace",)),
    "scaled_gradient_before_a_bend": case(
        "scaled_gradient", "orthogonal", loss="mse", measures=("curvature.ggn_trace",)
    ),
    "read_as_number": case("read_as_number", measures=SEVERAL),
}
# samples that change places
PLACES = {
    "rolled": case(
        node("rolled_by_data", "linear"), "relu", inputs="first_five_left", sizes=(5, 3), **OUTER
    ),
    "cut": case(
        node("cut_by_data", "linear"), "relu", inputs="first_five_left", sizes=(5, 3), **OUTER
    ),
    "swapped": case(node("swapped_pair", "linear", first=2), "relu", sizes=(8,), **OUTER),
}
# exceptions that said nothing
RAISED = {
    "unbatched_conv": case(
        "unbatched_conv", "relu", stem="image_bare", readout="pooled", sizes=(1,)
    ),
    "prelu_behind_a_functional_layer": case("functional_linear", "prelu", seed=5687, sizes=(7,)),
    "functional_call_and_rho": case("inner_functional_call", measures=SEVERAL, **LOOP),
    "nothing_certified": case(
        "batchnorm", stem="rows_bare", readout="bounded", measures=("relative.kappa",)
    ),
    "samples_one_by_one_as_long_as_the_batch": case(
        node("unbatched", "tied_transpose"), stem="rows_bare", sizes=(3, 4), measures=SEVERAL
    ),
    "absolute_value_in_a_checkpoint": case(
        node("checkpoint", "linear", "absolute"), measures=("neuron.rho_sum",), **LOOP
    ),
    # a kernel of torch that crashes
    "group_norm_with_channels_last": case(
        "channels_last", node("groupnorm", groups=2), stem="image_bare", readout="pooled", memory=1
    ),
    "autocast_inside": case(node("inner_autocast", "linear", "relu"), dtype="float32"),
}


def check(case, *, seeds=1):
    for seed in range(seeds):
        tried = dataclasses.replace(case, call_seed=seed)
        verdict = judge(tried)
        assert verdict.failures == []
        if not tried.odd():
            assert verdict.outcome == "right", verdict.refusal
            assert verdict.unconfirmed == 0


def by_name(cases):
    return pytest.mark.parametrize("case", cases.values(), ids=cases)


@by_name(SHARED)
def test_one_module_under_two_names(case):
    check(case)


@by_name(ROUTED)
def test_routes_that_the_first_samples_do_not_take(case):
    check(case)


@by_name(LOSSES)
def test_losses_with_a_mean_of_their_own(case):
    check(case)


@by_name(ROUNDED)
def test_bends_that_rounding_or_a_gate_hides(case):
    check(case)


@by_name(SECOND_DERIVATIVES)
def test_second_derivatives_that_torch_gets_wrong(case):
    check(case)


@by_name(USES)
def test_uses_of_a_layer(case):
    check(case)


@by_name(PROBES)
def test_probes_that_happen_to_agree(case):
    check(case, seeds=3)


@by_name(EMBEDDINGS)
def test_embeddings_with_options(case):
    check(case)


@by_name(GRADIENTS)
def test_gradients_that_are_not_those_of_the_loss(case):
    check(case)


@by_name(PLACES)
def test_samples_that_change_places(case):
    check(case, seeds=3)


@by_name(RAISED)
def test_exceptions_that_said_nothing(case):
    check(case)
