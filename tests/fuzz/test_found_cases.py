"""Cases that were wrong once, as small as they could be made, each under the kind of its cause."""

import dataclasses

import pytest

from fuzz.case import Case, Node
from fuzz.judge import judge


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

CASES = {
    # a module under two names
    "two_names": case(node("two_names", "linear", "tanh")),
    "two_names_state": case(node("two_names", "linear"), measures=("pac_bayes.sigma",)),
    # routes that the first samples do not take
    "experts": case(EXPERTS, "relu", inputs="first_five_left", sizes=(8,), **OUTER),
    "experts_by_batch": case(EXPERTS, "relu", inputs="first_five_right", sizes=(5, 3), **OUTER),
    "early_exit": case(node("early_exit", "linear"), inputs="first_five_left", sizes=(8,), **OUTER),
    "repeated": case(node("repeated_by_row", "linear", "relu"), inputs="first_three_left", **OUTER),
    # losses with a mean of their own
    "loss_subclass": case("relu", loss="focal", measures=SEVERAL),
    "loss_subclass_with_reductions": case("relu", loss="quartic", measures=SEVERAL),
    "weighted_nll": case("relu", loss="nll_weights", measures=("curvature.lambda_max",)),
    "masked_nll": case("relu", loss="nll_ignored", measures=("curvature.lambda_max",)),
    "kl_batchmean": case("relu", loss="kl_batchmean", measures=("curvature.lambda_max",)),
    "multi_margin": case("relu", loss="multi_margin"),
    # half precision
    "bfloat16": case("silu", "linear", "silu", dtype="bfloat16", sizes=(8,)),
    "float16": case("sigmoid", "linear", "sigmoid", dtype="float16", sizes=(8,)),
    # a layer that bends behind a small gate, and a GGN that vanishes
    "small_gate": case(node("layer_scale", "linear", "gelu", "linear", gain=1e-6), dtype="float32"),
    "closed_gate": case(node("rezero", "linear", "gelu", "linear", gain=0.0)),
    "confident": case("softplus", inputs="large", dtype="float32"),
    # Lanczos from a vector that is an eigenvector already
    "eigenvalues": case(
        stem="rows_bare", readout="linear_without_bias", loss="mse", measures=("eigenvalues",)
    ),
    "head_lambda_max": case(stem="rows_bare", measures=("head.lambda_max",)),
    # second derivatives of torch that are wrong, or missing
    "weight_norm": case("weight_norm", "tanh", measures=(*SEVERAL, "curvature.lambda_max")),
    "saved_slope": case("saved_slope", measures=("neuron.rho_sum", "curvature.trace")),
    "once": case("once", measures=("neuron.rho_sum", "curvature.trace")),
    # a number of uses that varies
    "uses": case(
        node("use_per_position", "linear"), "relu", sizes=(4, 1, 2), lengths=(1, 4, 2), **LOOP
    ),
    # a blank sample that makes a check empty
    "blank": case(node("siamese", "linear_without_bias", "relu"), inputs="second_blank", **OUTER),
    # probes that happen to agree
    "few_probes": case("tanh", measures=("neuron.rho_sum", "relative.kappa"), max_passes=4),
    "few_probes_packed": case(
        "packed_recurrence",
        stem="embedding",
        readout="mean_time",
        sizes=(1,),
        measures=("relative.kappa",),
        max_passes=4,
    ),
    # embeddings with flags
    "max_norm": case("relu", stem="embedding_norm", **TOKENS),
    "frequency": case("relu", stem="embedding_frequency", inputs="duplicates", **TOKENS),
    "sparse": case("relu", stem="embedding_sparse", **TOKENS),
    "padding": case("packed_slices", stem="embedding_padding", sizes=(8,), **TOKENS),
    # checkpoints
    "reentrant": case(node("checkpoint_reentrant", "linear", "relu"), measures=SEVERAL),
    "checkpoint": case(node("checkpoint", "linear", "relu"), measures=SEVERAL),
    # gradients that are not those of the loss
    "stopped_gate": case("stopped_gate", measures=SEVERAL),
    "stopped_branch": case("relu", "stopped_branch", measures=SEVERAL),
    "gradient_hook": case("gradient_hook", measures=("curvature.ggn_trace",)),
    "scaled_gradient_before_a_bend": case(
        "scaled_gradient", "orthogonal", loss="mse", measures=("curvature.ggn_trace",)
    ),
    "read_as_number": case("read_as_number", measures=SEVERAL),
    # samples that change places
    "rolled": case(
        node("rolled_by_data", "linear"), "relu", inputs="first_five_left", sizes=(5, 3), **OUTER
    ),
    "cut": case(
        node("cut_by_data", "linear"), "relu", inputs="first_five_left", sizes=(5, 3), **OUTER
    ),
    "swapped": case(node("swapped_pair", "linear", reach=5), "relu", sizes=(8,), **OUTER),
    "sorted": case(node("sorted_rows", "linear"), "relu", sizes=(4, 4), **OUTER),
    # exceptions that said nothing
    "unbatched_conv": case("unbatched_conv", "relu", stem="image_bare", readout="pooled"),
    "prelu_behind_a_functional_layer": case("functional_linear", "prelu", seed=5687, sizes=(7,)),
    "functional_call_and_rho": case("inner_functional_call", measures=SEVERAL, **LOOP),
    "autocast_inside": case(node("inner_autocast", "linear", "relu")),
}
SEEDS = {"eigenvalues": 6, "head_lambda_max": 6, "few_probes": 6, "swapped": 3}


@pytest.mark.parametrize("name", CASES)
def test_cases_that_were_wrong_once(name):
    for seed in range(SEEDS.get(name, 1)):
        tried = dataclasses.replace(CASES[name], call_seed=seed)
        verdict = judge(tried)
        good = {"right", "refused"} if tried.odd() else {"right"}
        assert verdict.failures == []
        assert verdict.outcome in good, verdict.refusal
