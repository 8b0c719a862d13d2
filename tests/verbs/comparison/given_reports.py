"""Reports with given values, for what is read off reports and needs no network."""

import spiritlevel as sl

SETTINGS = {"num_samples": 8, "confidence": 0.95}


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
