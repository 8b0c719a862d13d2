"""The names of all symmetries and moves, and what each of them does in a few words."""

from __future__ import annotations

# The claims are about the whole of a network, not about a choice of its layers.
SYMMETRIES = {
    "layer_rescale": "multiply a layer by α > 0 and divide the next one by α",
    "neuron_rescale": "multiply a neuron's incoming weights by α > 0, divide the outgoing by α",
    "unit_permute": "renumber the hidden units of a layer",
    "batchnorm_absorb": "multiply each channel before a BatchNorm by α, its statistics to match",
    "attention_rescale": "multiply each value unit of attention inside a network by α > 0, divide "
    "what reads it in the output projection by α",
    "unit_mix": "mix units inside a network by an invertible matrix where only linear maps link "
    "them, as the values of attention and its output projection, and undo it there",
    "batchnorm_fold": "multiply each channel before a BatchNorm by α, its scale and shift to match",
    "logit_shift": "add one vector to all rows of the head, and one number to its biases, where a "
    "softmax takes them away",
    "free_shift": "add to biases or to all rows of a weight what a mean, a softmax or a further "
    "bias takes away",
    "batch_split": "cut the same data into other batches",
}

# What `find_moves` looks for in a network: first what keeps the function, then what keeps it up to
# the size of the outputs.
MOVES = {
    "layer_rescale": "multiply all units of a layer by one α, divide what reads them by α",
    "neuron_rescale": "multiply each unit of a layer by its own α, divide what reads it by that α",
    "unit_permute": "renumber the hidden units of a layer",
    "batchnorm_absorb": "multiply each channel before a BatchNorm by α, its statistics to match",
    "batchnorm_fold": "multiply each channel before a BatchNorm by α, its scale and shift to match",
    "attention_rescale": "multiply the values of attention by α, divide its output projection by α",
    "free_rescale": "multiply parameters, their rows and their columns by factors that cancel",
    "norm_rescale": "multiply what a normalization reads by α: only its ε notices",
    "unit_mix": "mix units by an invertible matrix where only linear maps link them, and undo it",
    "unit_turn": "turn the pairs of query and key units that rotary positions leave free",
    "logit_shift": "add to the head what a softmax over its outputs takes away",
    "free_shift": "add to biases or to all rows of a weight what is taken away further on",
    "logit_temperature": "multiply the logits by a temperature, in the head or in a gain before it",
    "weight_scale": "multiply all weights by one α, biases to match: the logits only grow",
}
CONFIDENCE_ONLY = ("logit_temperature", "weight_scale")
FUNCTION_PRESERVING = tuple(name for name in MOVES if name not in CONFIDENCE_ONLY)
SHIFTS = ("logit_shift", "free_shift")
