"""Edited and damaged copies of a JSON file: what a hand, a disk or another program may do to it."""

import copy
import functools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]

# What is put in place of a value.
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3.5, -0.0, 1e308, -1e308, 10**400, 2**63, 1e-320),
    *("", "x", "nan", "-inf", "1.5", "ok", "\x00", "\ud800", "💥" * 50),
    *([], {}, [None], [[]], {"": 0}, [1, 2, 3], {"format": "x"}, {"a": {"b": [1, {}]}}),
]


def paths(data: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in the data, the whole first; of long lists the first and the last."""
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from paths(value, (*path, key))
    elif isinstance(data, list):
        for index in sorted({*range(min(len(data), 2)), len(data) - 1} - {-1}):
            yield from paths(data[index], (*path, index))


def changed(data: Any, path: Path, value: Any) -> Any:
    """A copy with another value in one place."""
    if not path:
        return copy.deepcopy(value)
    copied = copy.deepcopy(data)
    _owner(copied, path)[path[-1]] = copy.deepcopy(value)
    return copied


def _owner(data: Any, path: Path) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


def _dropped(data: Any, path: Path) -> Any:
    copied = copy.deepcopy(data)
    del _owner(copied, path)[path[-1]]
    return copied


def _renamed(data: Any, path: Path, name: str) -> Any:
    copied = copy.deepcopy(data)
    owner = _owner(copied, path)
    owner[name] = owner.pop(path[-1])
    return copied


def _repeated(data: Any, path: Path) -> Any:
    copied = copy.deepcopy(data)
    owner = _owner(copied, path)
    owner.append(owner[path[-1]])
    return copied


def edits(data: Any) -> Iterator[tuple[str, Any]]:
    """Every single edit, with a description: values replaced, keys dropped, renamed or repeated."""
    return ((name, make()) for name, make in planned_edits(data))


def planned_edits(data: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The edits before they are made: a copy of large data for each of them takes long."""
    for path in paths(data):
        for value in VALUES:
            yield f"{path} = {value!r:.40}", functools.partial(changed, data, path, value)
        if not path:
            continue
        yield f"without {path}", functools.partial(_dropped, data, path)
        if isinstance(path[-1], str):
            name = f"{path[-1]}_"
            yield f"{path} renamed", functools.partial(_renamed, data, path, name)
        else:
            yield f"{path} repeated", functools.partial(_repeated, data, path)


def chosen_edits(data: Any, *, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Some of the edits as texts, all if there are no more; each has the same chance."""
    everything = list(planned_edits(data))
    picked = random.Random(seed).sample(everything, min(count, len(everything)))
    return ((name, json.dumps(make())) for name, make in picked)


def damages(text: str) -> Iterator[tuple[str, bytes]]:
    """The file cut short, in another encoding, or no JSON at all."""
    raw = text.encode()
    for share in (0.0, 0.01, 0.3, 0.5, 0.9, 0.999):
        yield f"cut at {share}", raw[: int(share * len(raw))]
    yield "twice", raw + raw
    yield "with a byte order mark", b"\xef\xbb\xbf" + raw
    yield "UTF-16", text.encode("utf-16")
    yield "latin-1", text.replace("spirit", "é").encode("latin-1")
    yield "zeros", bytes(len(raw))
    yield "not text", bytes(range(256)) * 4
    yield "a number", b"3"
    yield "a list", b"[]"
    yield "a deep list", b"[" * 100_000 + b"]" * 100_000
    yield "a deep mapping", b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    yield "NaN", raw.replace(b": 1", b": NaN", 1)
    yield "infinity", raw.replace(b": 0", b": Infinity", 1)
    yield "many digits", raw.replace(b": 1", b": 1" + b"0" * 5000, 1)
    yield "a key twice", raw.replace(b"{", b'{"format": "x", "format": "y", ', 1)
