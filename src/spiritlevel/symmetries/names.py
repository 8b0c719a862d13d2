"""The names of moves: those on a measure's card, and those looked for in a user's network."""

from __future__ import annotations

# The claims are about the whole of a network, not about a choice of its layers.
SYMMETRIES = {
    "layer_rescale": "multiply a layer by α > 0 and divide the next one by α",
    "neuron_rescale": "multiply a neuron's incoming weights by α > 0, divide the outgoing by α",
    "unit_permute": "renumber the hidden units of a layer",
    "batchnorm_absorb": "multiply each channel before a BatchNorm by α, its statistics to match",
    "attention_rescale": "multiply each value unit of attention inside a network by α > 0, divide "
    "what reads it in the output projection by α",
    "batch_split": "cut the same data into other batches",
}

# What `find_moves` looks for in a network. The first five keep the function.
MOVES = {
    "layer_rescale": "multiply all units of a layer by one α, divide what reads them by α",
    "neuron_rescale": "multiply each unit of a layer by its own α, divide what reads it by that α",
    "unit_permute": "renumber the hidden units of a layer",
    "batchnorm_absorb": "multiply each channel before a BatchNorm by α, its statistics to match",
    "attention_rescale": "multiply the values of attention by α, divide its output projection by α",
    "logit_temperature": "multiply the head by a temperature: the logits only grow",
    "weight_scale": "multiply all weights by one α, biases to match: the logits only grow",
}
FUNCTION_PRESERVING = tuple(MOVES)[:5]
CONFIDENCE_ONLY = tuple(MOVES)[5:]
