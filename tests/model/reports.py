"""Reports of several processes, read from JSON."""

import pytest


def same_numbers(found, expected, keys=("value", "stderr")):
    """Two reports, read from JSON, hold the same numbers."""
    assert found["measures"].keys() == expected["measures"].keys()
    for name, measurement in expected["measures"].items():
        for key in keys:
            if measurement[key] is None:
                assert found["measures"][name][key] is None
            else:
                number = float(found["measures"][name][key])
                assert number == pytest.approx(float(measurement[key]), rel=1e-10), (name, key)
    for name, rows in expected["layers"].items():
        for layer, measurement in rows.items():
            value = found["layers"][name][layer]["value"]
            assert value == pytest.approx(measurement["value"], rel=1e-10, abs=1e-14), (name, layer)
