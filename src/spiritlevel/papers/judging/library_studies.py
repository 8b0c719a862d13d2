"""The studies of the papers as they come with the package, each read once."""

from __future__ import annotations

import functools

from ...study import Study, control


@functools.cache
def library_study(name: str, preset: str = "") -> Study:
    """A study by its name, with one of its presets; checking all of its runs takes a while."""
    if preset:
        return library_study(name).with_preset(preset)
    return control.find(name)
