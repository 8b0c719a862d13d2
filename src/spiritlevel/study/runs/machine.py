"""The process that a run is made in: its threads, TF32, and what else decides about last digits.

TF32 rounds float32 sums on a GPU to 10 bits. A process that is started afresh has torch's defaults.
What the user chose must be handed to it, or its runs come out with other last digits.
"""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import platform
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ...records import __version__


class TF32(NamedTuple):
    """Which operations may round their float32 inputs."""

    convolutions: bool
    products: bool  # of matrices

    @classmethod
    def of_this_process(cls) -> TF32:
        """The flags as they are now; torch's default is on for convolutions, off for products."""
        backends = torch.backends
        return cls(bool(backends.cudnn.allow_tf32), bool(backends.cuda.matmul.allow_tf32))

    def use(self) -> None:
        """Set the flags of this process."""
        torch.backends.cudnn.allow_tf32 = self.convolutions
        torch.backends.cuda.matmul.allow_tf32 = self.products


@contextlib.contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """Sums in the same order each time; the settings of torch are restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.cudnn.flags(
            enabled=True,
            deterministic=True,
            benchmark=False,
            allow_tf32=TF32.of_this_process().convolutions,
        ):
            yield
    finally:
        torch.set_num_threads(before)


def machine(device: str | torch.device, threads: int, *, together: bool = False) -> str:
    """Where a run was made, and with which versions, as JSON."""
    name = str(device)
    tf32 = TF32.of_this_process() if name.startswith("cuda") else None
    return _machine(name, threads, together, tf32)


@functools.cache
def _machine(device: str, threads: int, together: bool, tf32: TF32 | None) -> str:
    chip = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        chip = next((s.partition(":")[2].strip() for s in lines if "model name" in s), chip)
    facts = {
        "host": platform.node(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else chip,
        "threads": threads,
        "trained": "together" if together else "alone",
        "system": platform.platform(),
        "spiritlevel": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    if tf32 is not None:  # on a GPU, where it decides about the last digits
        facts |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32_convolutions": tf32.convolutions,
            "tf32_products": tf32.products,
        }
    return json.dumps(facts, sort_keys=True)
