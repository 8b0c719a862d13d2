"""Reports with given values, for what is read off reports and needs no network."""

import spiritlevel as sl
from spiritlevel.verbs.comparison import Comparison, Scale

SETTINGS = {"num_samples": 8, "confidence": 0.95}
UNCHANGED = Scale("unchanged", "no symmetry changes it")
CHANGES = Scale("changes", "7 times under neuron_rescale")


def report(**values):
    """A report with these values, or (value, stderr) pairs, under names with __ for the dot."""
    found = {}
    for key, given in values.items():
        name = key.replace("__", ".")
        value, stderr = given if isinstance(given, tuple) else (given, None)
        found[name] = sl.Measurement(
            name, value, exact=stderr is None, stderr=stderr, settings=SETTINGS
        )
    return sl.Report(found, layers={}, settings=SETTINGS, cost=sl.results.Cost())


def trained_to(loss, found, *, outputs=10):
    """The report of a network with this loss."""
    found.settings = found.settings | {
        "loss": "cross_entropy",
        "num_outputs": outputs,
        "subject": {"mean_loss": loss, "accuracy": 0.875},
    }
    return found


def comparison(reports, **given):
    """Of networks whose audit lets through everything, or all but what `scales` names."""
    names = {name for each in reports.values() for name in each}
    scales = dict.fromkeys(names, UNCHANGED) | given.pop("scales", {})
    return Comparison(reports, scales=scales, **given)
