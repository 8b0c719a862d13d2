"""What a study may be made of: texts, numbers, lists and mappings, as JSON has them, or YAML.

Nothing in a YAML text is run, and a key that occurs twice is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import SpiritlevelError, brief, require

MOST = 100_000  # values in a study; aliases of YAML can make billions out of a few lines
DEEPEST = 50  # lists in lists
HALF = re.compile("[\ud800-\udfff]")  # of a character: no file can hold it


def check_plain(where: str, value: object, *, finite: bool = True) -> None:
    """Refuse what JSON cannot write, and what would never end being written.

    `finite=False` leaves infinite numbers to later checks, which know what a number is for.
    """
    for count, (path, depth, part) in enumerate(_parts(where, value, 0), start=1):
        if count > MOST or depth > DEEPEST:
            raise SpiritlevelError(
                f"The study's {where} must have at most {MOST:,} values, nested at most {DEEPEST} "
                "deep. Got more. Check the aliases (&name, *name) in the file."
            )
        is_whole = isinstance(part, int) and (isinstance(part, bool) or abs(part) < 2**63)
        is_number = isinstance(part, float) and (math.isfinite(part) or not finite)
        is_container = isinstance(part, list | tuple) or (
            isinstance(part, Mapping) and all(isinstance(key, str) for key in part)
        )
        if isinstance(part, str) and HALF.search(part):
            raise SpiritlevelError(
                f"The study's {path} must be a text that can be written to a file. Got "
                f"{brief(part)}, with half of a character. Type it again."
            )
        if not (part is None or isinstance(part, str) or is_whole or is_number or is_container):
            raise SpiritlevelError(
                f"The study's {path} must be a text, a finite number, true or false, a list, or a "
                f"mapping with texts as keys. Got {brief(part)}. Put a text in quotes."
            )


def _parts(path: str, value: Any, depth: int) -> Iterator[tuple[str, int, Any]]:
    """The value and all that is in it; the reader stops where it is too much."""
    yield path, depth, value
    if depth > DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(f"{path}.{key}", part, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _parts(path, part, depth + 1)


# 1e-3 is a number, as in YAML 1.2; PyYAML follows 1.1, which asks for a point and a sign.
WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def read_yaml(text: str, *, source: str) -> Any:
    """The content of a YAML text; `source` names it in errors."""
    yaml = require("yaml", what="Reading a study from YAML", extra="study")

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """A YAML loader that makes plain values only."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for key in keys:
                if keys.count(key) > 1:
                    problem = f"the key {key!r} occurs twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return node

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", WITH_EXPONENT, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise SpiritlevelError(
            f"The study in {source} cannot be read as YAML: {cause}. "
            "Check the indentation and brackets there."
        ) from error
