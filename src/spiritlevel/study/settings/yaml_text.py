"""YAML as a mapping: nothing in it is run, and a key that occurs twice is refused."""

from __future__ import annotations

from typing import Any

from ...errors import SpiritlevelError, require


def read_yaml(text: str, *, source: str) -> Any:
    """The content of a YAML text; `source` names it in errors."""
    yaml = require("yaml", what="Reading a study from YAML", extra="study")

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

    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise SpiritlevelError(
            f"The study in {source} cannot be read as YAML: {cause}. "
            "Check the indentation and brackets there."
        ) from error
