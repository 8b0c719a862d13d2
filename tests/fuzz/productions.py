"""The grammar: every part a random network may contain, as the text that makes it.

A network is text, so that the network that is measured and the program that is printed for a
failure cannot differ. All parts keep the shape of what passes through them: any of them can be left
out, which is how failures are shrunk.
"""

from __future__ import annotations

import dataclasses

ROWS, SEQUENCE, IMAGE = "rows", "sequence", "image"  # (N, 4), (N, T, 4) and (N, 2, 4, 4)
EVERYWHERE = (ROWS, SEQUENCE, IMAGE)
ON_FEATURES = (ROWS, SEQUENCE)
CHANNELS = {ROWS: "(4,)", SEQUENCE: "(4,)", IMAGE: "(2, 1, 1)"}


@dataclasses.dataclass(frozen=True)
class Production:
    """How a part is written, and where it may stand.

    Attributes:
        text: `{0}` and `{1}` stand for what is inside, other names for a choice.
        pointwise: acts on the last dimension alone, whatever the others mean.
        inner: how many chains of parts stand inside.
        inner_pointwise: these must be pointwise.
        straight: piecewise linear in its input and in each of its parameters.
        odd: why a refusal is a good answer; empty if it is not.
        choices: values of the other names, the simplest first.
    """

    text: str
    streams: tuple[str, ...] = EVERYWHERE
    pointwise: bool = False
    inner: int = 0
    inner_pointwise: bool = False
    straight: bool = False
    odd: str = ""
    choices: dict[str, tuple[object, ...]] = dataclasses.field(default_factory=dict)


def features(text: str, **options: object) -> Production:
    """A part that acts on the last dimension."""
    return Production(text, ON_FEATURES, pointwise=True, **options)  # type: ignore[arg-type]


def activation(text: str, *, straight: bool = False, odd: str = "") -> Production:
    """A function of each number."""
    return Production(text, pointwise=True, straight=straight, odd=odd)


def around(text: str, *, straight: bool = False, odd: str = "", **choices: tuple) -> Production:
    """A part around a chain of others."""
    return Production(text, inner=1, straight=straight, odd=odd, choices=choices)


def image(text: str, *, straight: bool = True, **choices: tuple) -> Production:
    """A part for images."""
    return Production(text, (IMAGE,), straight=straight, choices=choices)


def packed(text: str, *, streams: tuple[str, ...] = (SEQUENCE,), odd: str = "") -> Production:
    """The inside sees the samples in another order or dimension."""
    return Production(text, streams, inner=1, inner_pointwise=True, straight=True, odd=odd)


def experts(text: str, inner: int, *, straight: bool = True) -> Production:
    """Rows take different routes."""
    return Production(text, ON_FEATURES, inner=inner, inner_pointwise=True, straight=straight)


PARAMETRIZATION = "nn.utils.parametrizations"
ONCE = "torch has no second derivative of it, or a wrong one"
LIES = "its gradient is not that of the loss"

PRODUCTIONS: dict[str, Production] = {
    # layers
    "linear": features("nn.Linear(4, 4)", straight=True),
    "linear_without_bias": features("nn.Linear(4, 4, bias=False)", straight=True),
    "bottleneck": features("nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))", straight=True),
    "bare_matrix": features("BareMatrix()", straight=True),
    "einsum": features("Einsum()", straight=True),
    "packed_slices": features("PackedSlices()"),
    "functional_linear": features("FunctionalLinear()", straight=True),
    "called_and_borrowed": features("CalledAndBorrowed()", straight=True),
    "inner_functional_call": features("InnerFunctionalCall()", straight=True),
    "scaled_linear": features("ScaledLinear(4, 4)", straight=True),
    "plain_subclass": features("PlainSubclass(4, 4)", straight=True),
    "keyword_linear": features("KeywordLinear()", straight=True),
    "hooked_linear": features("HookedLinear()", straight=True),
    "bending_hook": features("BendingHook()"),
    "squared_weight": features("SquaredWeight()"),
    "low_rank": features("LowRank()", straight=True),
    "bilinear": features("Bilinear()"),
    "patched_forward": features("PatchedForward()", straight=True),
    "learned_query": features("LearnedQuery()"),
    "input_gate": features("InputGate()"),
    "read_as_number": features("ReadAsNumber()", odd=LIES),
    "complex_filter": features("ComplexFilter()"),
    # activations
    "relu": activation("nn.ReLU()", straight=True),
    "leaky_relu": activation("nn.LeakyReLU(0.3)", straight=True),
    "relu_in_place": features(
        "nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))", straight=True
    ),
    "hardtanh": activation("nn.Hardtanh(-0.4, 0.6)", straight=True),
    "absolute": activation("Absolute()", straight=True),
    "clamp_in_place": activation("ClampInPlace()", straight=True),
    "maximum": activation("LastMax()", straight=True),
    "prelu": activation("nn.PReLU()", straight=True),
    "hardshrink": activation("nn.Softshrink(0.2)", straight=True),
    "tanh": activation("nn.Tanh()"),
    "gelu": activation("nn.GELU()"),
    "silu": activation("nn.SiLU()"),
    "softplus": activation("nn.Softplus()"),
    "sigmoid": activation("nn.Sigmoid()"),
    "elu": activation("nn.ELU()"),
    "softsign": activation("nn.Softsign()"),
    "hardswish": activation("nn.Hardswish()"),
    "sine": activation("Sine()"),
    "softmax": activation("SoftmaxMix()"),
    "dropout": activation("nn.Dropout(0.5)", straight=True),
    # normalizations
    "batchnorm": Production("nn.BatchNorm1d(4)", (ROWS,), straight=True),
    "layernorm": features("nn.LayerNorm(4)"),
    "rmsnorm": features("nn.RMSNorm(4)"),
    "layernorm_plain": features("nn.LayerNorm(4, elementwise_affine=False)"),
    "batchnorm2d": image("nn.BatchNorm2d(2)"),
    "groupnorm": image("nn.GroupNorm({groups}, 2)", straight=False, groups=(1, 2)),
    "instancenorm": image("nn.InstanceNorm2d(2, affine=True)", straight=False),
    "local_response": image("nn.LocalResponseNorm(2)", straight=False),
    # convolutions
    "conv": image("nn.Conv2d(2, 2, 3, padding=1)"),
    "conv_without_bias": image("nn.Conv2d(2, 2, 1, bias=False)"),
    "conv_grouped": image("nn.Conv2d(2, 2, 3, padding=1, groups=2)"),
    "conv_dilated": image("nn.Conv2d(2, 2, 2, padding=1, dilation=2)"),
    "conv_circular": image("nn.Conv2d(2, 2, 3, padding=1, padding_mode='circular')"),
    "conv_same": image("nn.Conv2d(2, 2, 2, padding='same')"),
    "conv_transposed": image(
        "nn.Sequential(nn.Conv2d(2, 2, 2, stride=2),"
        " nn.ConvTranspose2d(2, 2, 2, stride=2, groups={groups}))",
        groups=(1, 2),
    ),
    "conv_reflected": image("ReflectedConv(2, 2, 3)"),
    "conv_standardized": image("StandardizedConv(2, 2, 3, padding=1)", straight=False),
    "conv_functional": image("FunctionalConv()"),
    "conv_unfolded": image("UnfoldedConv()"),
    "channels_last": image("ChannelsLast()"),
    "max_pool": image("nn.MaxPool2d(3, stride=1, padding=1)"),
    "average_pool": image("nn.AvgPool2d(3, stride=1, padding=1)"),
    "pixel_shuffle": image(
        "nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(8, 8, 1, groups=8), nn.PixelShuffle(2))"
    ),
    # gates
    "residual": around("Residual({0})", straight=True),
    "residual_in_place": around("ResidualInPlace({0})", straight=True),
    "layer_scale": around(
        "LayerScale({0}, {gain}, {channels})", straight=True, gain=(1.0, 1e-2, 1e-4, 1e-6)
    ),
    "rezero": around("ReZero({0}, {gain})", straight=True, gain=(1.0, 0.1, 1e-5, 0.0)),
    "product": Production("Product({0}, {1})", inner=2),
    "highway": Production("Highway({0})", ON_FEATURES, inner=1),
    "squeeze_excite": image("SqueezeExcite()", straight=False),
    "glu": features("nn.Sequential(nn.Linear(4, 8), nn.GLU())"),
    "temperature": activation("Temperature()"),
    # attention
    "own_attention": Production("OwnAttention()", (SEQUENCE,)),
    "linear_attention": Production("LinearAttention()", (SEQUENCE,)),
    "torch_attention": Production(
        "TorchAttention(batch_first={first})", (SEQUENCE,), choices={"first": (True, False)}
    ),
    "fused_attention": Production(
        "FusedAttention(causal={causal})", (SEQUENCE,), choices={"causal": (False, True)}
    ),
    "transformer_layer": Production("TransformerLayer()", (SEQUENCE,)),
    "time_mixer": Production("TimeMixer()", (SEQUENCE,), straight=True),
    # sharing
    "twice": around("Twice({0})"),
    "two_names": around("TwoNames({0})"),
    "two_names_parallel": around("TwoNamesInParallel({0})", straight=True),
    "tied_weights": features("TiedWeights()"),
    "tied_transpose": features("TiedTranspose()"),
    "tied_bias": features("TiedBias()"),
    "siamese": around("Siamese({0})", straight=True),
    "interleaved": around("Interleaved({0})", straight=True),
    "own_recurrence": Production("OwnRecurrence()", (SEQUENCE,)),
    "torch_recurrence": Production(
        "TorchRecurrence({kind!r})", (SEQUENCE,), choices={"kind": ("RNN", "GRU")}
    ),
    "use_per_position": packed("UsePerPosition({0})"),
    # routing
    "index_experts": experts("IndexExperts({0}, {1})", 2),
    "empty_experts": experts("EmptyExperts({0}, {1})", 2),
    "mask_experts": experts("MaskExperts({0}, {1})", 2),
    "top_experts": experts("TopExperts({0}, {1})", 2, straight=False),
    "early_exit": experts("EarlyExit({0})", 1),
    "repeated_by_row": experts("RepeatedByRow({0})", 1, straight=False),
    "branch_per_batch": experts("BranchPerBatch({0})", 1),
    # packing
    "time_first": packed("TimeFirst({0})"),
    "flat_tokens": packed("FlatTokens({0})"),
    "flat_times": packed("FlatTimes({0})"),
    "sorted_rows": packed("SortedRows({0})", streams=ON_FEATURES),
    "reversed_batch": around("ReversedBatch({0})", straight=True),
    "one_by_one": around("OneByOne({0})", straight=True),
    "half_batches": around("HalfBatches({0})", straight=True),
    "padded_rows": around("PaddedRows({0})", straight=True),
    "nonzero_tokens": packed("NonzeroTokens({0})"),
    "unbatched": Production("Unbatched({0})", ON_FEATURES, inner=1, inner_pointwise=True),
    "unbatched_conv": image("Unbatched(nn.Conv2d(2, 2, 3, padding=1))"),
    "swapped_pair": around("SwappedPair({0}, {first})", straight=True, first=(0, 2, 4)),
    "rolled_by_data": around("RolledByData({0})", straight=True),
    "cut_by_data": around("CutByData({0})", straight=True),
    "packed_recurrence": Production("PackedRecurrence()", (SEQUENCE,)),
    # custom functions
    "saved_slope": activation("SavedSlope()", odd=ONCE),
    "differentiable": activation("Differentiable()"),
    "once": activation("Once()", odd=ONCE),
    "once_rectified": activation("OnceRectified()", straight=True, odd=ONCE),
    "scaled_gradient": activation("ScaledGradient()", odd=LIES),
    "stopped_gate": activation("StoppedGate()", odd=LIES),
    "stopped_branch": features("StoppedBranch()", odd=LIES),
    "gradient_hook": activation("GradientHook()", odd=LIES),
    # parametrizations
    "weight_norm": features(f"{PARAMETRIZATION}.weight_norm(nn.Linear(4, 4))", odd=ONCE),
    "weight_norm_conv": Production(
        f"{PARAMETRIZATION}.weight_norm(nn.Conv2d(2, 2, 3, padding=1))", (IMAGE,), odd=ONCE
    ),
    "spectral_norm": features(f"{PARAMETRIZATION}.spectral_norm(nn.Linear(4, 4))"),
    "orthogonal": features(f"{PARAMETRIZATION}.orthogonal(nn.Linear(4, 4))"),
    "positive": features("positive(nn.Linear(4, 4))"),
    "symmetric": features("symmetric(nn.Linear(4, 4))", straight=True),
    # other
    "frozen": around("Frozen({0})", straight=True),
    "unused": activation("Unused()", straight=True),
    "checkpoint": around("Checkpointed({0}, reentrant=False)", straight=True),
    "checkpoint_reentrant": around("Checkpointed({0}, reentrant=True)", odd=ONCE),
    "inner_autocast": around("InnerAutocast({0})", odd="it runs in bfloat16 inside"),
}

STEMS: dict[str, tuple[str, str, str]] = {  # stream, what comes in, text
    "rows": (ROWS, "numbers", "nn.Linear(4, 4)"),
    "rows_bare": (ROWS, "numbers", "nn.Identity()"),
    "sequence": (SEQUENCE, "numbers", "nn.Linear(4, 4)"),
    "sequence_bare": (SEQUENCE, "numbers", "nn.Identity()"),
    "image": (IMAGE, "numbers", "nn.Conv2d(2, 2, 1)"),
    "image_bare": (IMAGE, "numbers", "nn.Identity()"),
    "embedding": (SEQUENCE, "tokens", "nn.Embedding(5, 4)"),
    "embedding_padding": (SEQUENCE, "tokens", "nn.Embedding(5, 4, padding_idx=1)"),
    "embedding_norm": (SEQUENCE, "tokens", "nn.Embedding(5, 4, max_norm=1.0)"),
    "embedding_wide_norm": (SEQUENCE, "tokens", "nn.Embedding(5, 4, max_norm=100.0)"),
    "embedding_frequency": (SEQUENCE, "tokens", "nn.Embedding(5, 4, scale_grad_by_freq=True)"),
    "embedding_sparse": (SEQUENCE, "tokens", "nn.Embedding(5, 4, sparse=True)"),
    "positions": (SEQUENCE, "tokens", "Positions()"),
    "bag_sum": (ROWS, "tokens", "nn.EmbeddingBag(5, 4, mode='sum')"),
    "bag_mean": (ROWS, "tokens", "nn.EmbeddingBag(5, 4)"),
    "bag_max": (ROWS, "tokens", "nn.EmbeddingBag(5, 4, mode='max')"),
    "bag_padding": (ROWS, "tokens", "nn.EmbeddingBag(5, 4, padding_idx=0)"),
}
ODD_STEMS = {
    "embedding_norm": "its forward changes the weights",
    "embedding_frequency": LIES,
    "embedding_sparse": "sparse gradients",
}
BENT_STEMS: tuple[str, ...] = ()

READOUTS: dict[str, tuple[str, str, str]] = {  # stream, shape of the outputs, text
    "linear": (ROWS, "classes", "nn.Linear(4, {C})"),
    "linear_without_bias": (ROWS, "classes", "nn.Linear(4, {C}, bias=False)"),
    "two_layers": (ROWS, "classes", "nn.Sequential(nn.Tanh(), nn.Linear(4, {C}))"),
    "cosine": (ROWS, "classes", "nn.Sequential(Standardized(), nn.Linear(4, {C}))"),
    "two_heads": (ROWS, "classes", "SumOfHeads({C})"),
    "bounded": (ROWS, "classes", "nn.Sequential(nn.Linear(4, {C}), nn.Tanh())"),
    "mean_time": (SEQUENCE, "classes", "nn.Sequential(MeanOverTime(), nn.Linear(4, {C}))"),
    "last_step": (SEQUENCE, "classes", "nn.Sequential(LastStep(), nn.Linear(4, {C}))"),
    "per_token": (SEQUENCE, "tokens", "nn.Linear(4, {C})"),
    "pooled": (IMAGE, "classes", "nn.Sequential(MeanOverImage(), nn.Linear(2, {C}))"),
    "pooled_conv": (IMAGE, "classes", "nn.Sequential(nn.Conv2d(2, {C}, 2), MeanOverImage())"),
    "flattened": (
        IMAGE,
        "classes",
        "nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, {C}))",
    ),
}
WITHOUT_HEAD = ("two_heads", "bounded")
