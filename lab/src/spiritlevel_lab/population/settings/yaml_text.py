"""YAML as a mapping: nothing in it is run, and a key that occurs twice is refused."""

from __future__ import annotations

import re
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, require

# 1e-3 is a number, as in YAML 1.2; PyYAML follows 1.1, which asks for a point and a sign.
WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def read_yaml(text: str, *, source: str) -> Any:
    """The content of a YAML text; `source` names it in errors."""
    yaml = require("yaml", what="Reading a study from YAML", extra="lab")

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Plain values only."""

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
