"""What differs between networks without being flatness, yet moves the numbers of flatness.

The audit and the comparison measure these beside whatever was asked for.
"""

GINI = "softmax.gini"
CONFOUNDERS = {
    GINI: "Gini impurity of the predictions",
    "norms.weight": "weight norm",
    "activity.activation_norm": "activation norm",
    "activity.frequency": "activation frequency",
}
