"""TF32: whether float32 sums on a GPU are rounded to 10 bits, which is a setting of the process.

A process that is started afresh has torch's defaults. What the user chose must be handed to it, or
its runs come out with other last digits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


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
