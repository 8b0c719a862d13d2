"""The page of the built-in networks says what the code has: every model, option and size."""

import ast
import inspect
import pathlib
import re

import pytest
import torch

from spiritlevel.inputs import models

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "models.md").read_text("utf-8")
MODELS = {
    name: (options, count)
    for name, options, count in re.findall(
        r"^\| `(\w+)` \| (`\w+=.*?) \| ([\d,]+) \|", PAGE, flags=re.M
    )
}
HEADS = {
    name: dict(zip(("linear", "conv"), counts, strict=True))
    for name, *counts in re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|$", PAGE, flags=re.M)
}


def parameters(name: str, **options) -> str:
    with torch.device("meta"):  # shapes only: no memory, no time
        model = getattr(models, name)(**options)
    return f"{sum(p.numel() for p in model.parameters()):,}"


def defaults(name: str) -> dict:
    signature = inspect.signature(getattr(models, name))
    return {option.name: option.default for option in signature.parameters.values()}


def test_every_model_is_there():
    assert sorted(MODELS) == models.names()


@pytest.mark.parametrize("name", models.names())
def test_options_defaults_and_size(name):
    options, count = MODELS[name]
    found = {key: ast.literal_eval(v) for key, v in re.findall(r"`(\w+)=([^`]+)`", options)}
    assert found == defaults(name)
    assert count == parameters(name)


def test_sizes_with_either_head():
    assert set(HEADS) == {name for name in models.names() if "head" in defaults(name)}
    for name, counts in HEADS.items():
        assert counts == {head: parameters(name, head=head) for head in counts}
