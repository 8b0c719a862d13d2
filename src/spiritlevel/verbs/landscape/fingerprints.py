"""Fingerprints of weights and data, by which a later call recognizes them."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping

from torch import Tensor

from ...model import batches as _batches
from ...model.surface import Surface

SIZE = 16  # bytes


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A fingerprint of the names, types, shapes and every bit."""
    digest = hashlib.blake2b(digest_size=SIZE)
    for name, tensor in tensors.items():
        _feed(digest, name, tensor)
    return digest.hexdigest()


def of_data(surface: Surface) -> str:
    """A fingerprint of all samples of all processes, the same in any order."""
    total = 0
    for _, batch in surface.batches():
        on_cpu = _batches.map_tensors(lambda t: t.detach().cpu(), batch)
        for i in range(_batches.num_samples(on_cpu)):
            digest = hashlib.blake2b(digest_size=SIZE)
            for tensor in _batches.tensors(_batches.take(on_cpu, slice(i, i + 1))):
                _feed(digest, "", tensor)
            total += int.from_bytes(digest.digest(), "big")
    total = sum(surface.processes.gather(total))
    return (total % (1 << 8 * SIZE)).to_bytes(SIZE, "big").hex()


def _feed(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    tensor = tensor.detach().cpu().contiguous()
    digest.update(f"{name}/{tensor.dtype}/{tuple(tensor.shape)}/".encode())
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes:  # read where it lies: numpy is not a dependency of the core
        digest.update((ctypes.c_char * num_bytes).from_address(tensor.data_ptr()))
