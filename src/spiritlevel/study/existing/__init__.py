"""Networks that exist already: found, checked, measured and judged like those a study trains."""
