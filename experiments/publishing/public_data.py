"""The public data sets that a study needs."""

from __future__ import annotations

from spiritlevel.inputs.data.catalogue import CATALOGUE
from spiritlevel_lab import Study


def data_to_fetch(study: Study) -> dict[str, str]:
    """Public data sets that a study needs, by the key that names them."""
    needed = {}
    for run in study.runs():
        for section, settings in (("data", run.data), ("task", run.task)):
            for key, value in settings.to_dict().items() if settings is not None else ():
                if isinstance(value, str) and value in CATALOGUE:
                    needed[f"{section}.{key}"] = value
    return needed
