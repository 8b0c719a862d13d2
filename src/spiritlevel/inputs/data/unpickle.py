"""Numpy arrays out of pickles, without ever running anything that a pickle names.

A pickle is a program: it may call whatever it can import. Here every import is answered with a
stand-in of our own that only notes what it was given, or it is refused. Not even numpy runs.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUFFER_MODULES = ("numpy.core.numeric", "numpy._core.numeric")


class PickledArray:
    """Shape, type and bytes of an array that a pickle describes."""

    __slots__ = ("data", "dtype", "is_fortran", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype = ""
        self.is_fortran = False
        self.data = b""

    def __setstate__(self, state: Any) -> None:
        """What numpy's own arrays are given: version, shape, type, order and bytes."""
        _version, shape, dtype, is_fortran, data = state
        self.fill(shape, dtype, bool(is_fortran), data)

    def fill(self, shape: Any, dtype: Any, is_fortran: bool, data: Any) -> None:
        """Note the parts, once they are of the right types and fit each other."""
        is_shape = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not (is_shape and isinstance(dtype, _Dtype) and isinstance(data, bytes | bytearray)):
            raise pickle.UnpicklingError("an array whose parts are not shape, type and bytes")
        if dtype.code == "u1" and len(data) != math.prod(shape):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(data)} bytes")
        self.shape, self.dtype, self.is_fortran = shape, dtype.code, is_fortran
        self.data = bytes(data)


class _Inert:
    """A stand-in that pickles cannot change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("an attempt to change a function")


class _Dtype:
    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and the like, which mean nothing for single bytes."""


class _MakeDtype(_Inert):
    def __call__(self, code: Any, *_flags: Any) -> _Dtype:
        return _Dtype(code.decode("ascii") if isinstance(code, bytes) else str(code))


class _ArrayType(_Inert):
    """The class that every pickled array names; it is never called."""


class _Reconstruct(_Inert):
    def __call__(self, *_args: Any) -> PickledArray:
        return PickledArray()


class _FromBuffer(_Inert):
    def __call__(self, data: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
        array = PickledArray()
        array.fill(shape, dtype, order == "F", data)
        return array


class _Encode(_Inert):
    """How Python 3 writes bytes for Python 2."""

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not (isinstance(text, str) and encoding in ("latin1", b"latin1")):
            raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
        return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for what arrays and bytes need; anything else is refused."""
        if (module, name) == ("numpy", "dtype"):
            return _MakeDtype()
        if (module, name) == ("numpy", "ndarray"):
            return _ArrayType()
        if (module, name) == ("_codecs", "encode"):
            return _Encode()
        if module in _ARRAY_MODULES and name == "_reconstruct":
            return _Reconstruct()
        if module in _BUFFER_MODULES and name == "_frombuffer":
            return _FromBuffer()
        raise pickle.UnpicklingError(f"a call of {module}.{name}")


def unpickle(data: bytes) -> object:
    """Dicts, lists, numbers, text, bytes and arrays; pickle.UnpicklingError for anything else.

    Text that Python 2 wrote comes as bytes.
    """
    try:
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # damaged pickles raise nearly anything
        text = f"{type(error).__name__}: {error}"
        raise pickle.UnpicklingError(f"what cannot be unpickled ({text})") from error
