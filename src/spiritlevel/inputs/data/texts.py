"""Text for language models, and labelled text for classifiers, by the tokenizer of the model."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief
from ...ground.files import as_path
from ...ground.need import need, or_none, whole

BLOCK = 256  # tokens of a sample, where the model takes as many
ENOUGH = 1e9  # tokenizers that know no limit give a number beyond that


def read_text(
    path: str | os.PathLike[str], tokenizer: Any, *, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """Token ids (N, block) of a text, and the tokens that follow them, for a causal model.

    The text is cut into N blocks one after another, without special tokens; what is left at the end
    is dropped.

    Args:
        path: a text in UTF-8; of a .jsonl file, the "text" of every line.
        tokenizer: of transformers, as AutoTokenizer.from_pretrained gives it.
        block: tokens of a sample; None takes 256, or what the tokenizer says the model takes.
    """
    need(
        "block", block, or_none(whole(least=1)), "a positive whole number, or None", of="read_text"
    )
    is_table = str(path).lower().endswith(".jsonl")
    text = "\n\n".join(row["text"] for row in _rows(path)) if is_table else _text(path)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    most = getattr(tokenizer, "model_max_length", ENOUGH)
    size = block or (min(BLOCK, int(most)) if 0 < most < ENOUGH else BLOCK)
    count = (len(ids) - 1) // size
    if count < 1:
        raise SpiritlevelError(
            f"The text {str(path)!r} must have more tokens than one block, which takes {size}. Got "
            f"{len(ids)}. Give a longer text, or a smaller block: --block {max(len(ids) // 2, 1)}."
        )
    tokens = torch.tensor(ids)
    return tokens[: count * size].view(count, size), tokens[1 : count * size + 1].view(count, size)


def read_labelled_text(
    path: str | os.PathLike[str], tokenizer: Any, *, classes: Mapping[str, int] | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """What a tokenizer makes of the texts of a .jsonl file, padded, and their labels.

    Every line is {"text": ..., "label": ...}. A label is a number, or one of the names in
    `classes`, such as model.config.label2id.
    """
    rows = _rows(path)
    labels = [_label(path, number, row, classes or {}) for number, row in enumerate(rows, start=1)]
    inputs = tokenizer(
        [row["text"] for row in rows], padding=True, truncation=True, return_tensors="pt"
    )
    return dict(inputs), torch.tensor(labels)


def _label(
    path: str | os.PathLike[str], number: int, row: Mapping[str, Any], classes: Mapping[str, int]
) -> int:
    label = row.get("label")
    if type(label) is int and (not classes or label in classes.values()):
        return label
    if isinstance(label, str) and label in classes:
        return classes[label]
    known = (
        f" or one of {', '.join(sorted(classes, key=lambda name: classes[name]))}"
        if classes
        else ""
    )
    raise SpiritlevelError(
        f'Line {number} of {str(path)!r} must have a "label": the number of a class of the model'
        f'{known}. Got {brief(label)}. For example {{"text": "A fine film.", "label": 1}}.'
    )


def _rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise SpiritlevelError(
                f'Line {number} of {str(path)!r} must be a JSON object with a "text". Got '
                f'{brief(line)}. For example {{"text": "A fine film.", "label": 1}}.'
            )
        rows.append(row)
    if not rows:
        raise SpiritlevelError(f"The file {str(path)!r} must have lines of JSON. Got none.")
    return rows


def _text(path: str | os.PathLike[str]) -> str:
    file = pathlib.Path(as_path(path, what="text file"))
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SpiritlevelError(
            f"The text file {str(file)!r} cannot be read: {error.strerror or error}. Check the "
            "path."
        ) from error
    except UnicodeDecodeError as error:
        raise SpiritlevelError(
            f"The text file {str(file)!r} must be in UTF-8. Got the byte "
            f"0x{error.object[error.start]:02x} at position {error.start}. Convert it first."
        ) from error
    if not text.strip():
        raise SpiritlevelError(f"The text file {str(file)!r} must have text in it. Got none.")
    return text
