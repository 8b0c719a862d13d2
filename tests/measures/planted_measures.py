"""Measures whose cards are right or wrong on purpose; a pytest plugin that registers them.

Their values are those of true measures under another name, so a wrong claim is the only fault.
"""

import dataclasses

from spiritlevel.measures.registry import Measured, get, measure


def plant(name, source, **claims):
    """A measure with the values of `source`, and its card but for the claims given."""
    true = get(source)

    def function(workspace):
        """As the measure it was taken from."""
        found = true.function(workspace)
        return Measured(
            dataclasses.replace(found.whole, name=name),
            {layer: dataclasses.replace(m, name=name) for layer, m in found.layers.items()},
        )

    card = {
        "summary": true.summary,
        "formula": true.formula,
        "paper": true.paper,
        "invariant": true.invariant,
        "misleads": true.misleads,
        "needs": true.needs,
        "default": False,
        "requires": true.requires,
        "found_by": true.found_by,
        "cost": true.cost_text,
    }
    measure(name=name, **(card | claims))(function)


def pytest_configure():
    """Only where pytest is told to load this file: other runs see no planted measure."""
    plant("softmax.planted_honest", "softmax.gini")
    plant(
        "norms.planted_unmoved",
        "norms.weight",
        invariant={*get("norms.weight").invariant, "layer_rescale"},
    )
    plant(
        "softmax.planted_moved",
        "softmax.gini",
        invariant=get("softmax.gini").invariant - {"unit_permute"},
    )
    plant("softmax.planted_draws", "softmax.gini", found_by="draws")
    plant("softmax.planted_anywhere", "softmax.gini", requires=())
