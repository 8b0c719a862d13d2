"""Convolutions of many networks at once as one product of matrices.

With weights of their own, the networks of a stack make one convolution with a group for each of
them, which libraries for GPUs compute group by group: with few channels each, a step waits for
hundreds of small kernels. A product over all networks is one kernel. It takes patches of the image,
or, where a product with few channels would leave most of a GPU idle, whole rows: the weights of a
row of outputs are then a band matrix, more than it needs to compute and yet faster.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_CHANNELS = 64  # of the output: above it a group keeps a GPU busy, and patches fill its memory
MOST_IN_ROWS = 16  # up to it whole rows are faster than patches (LeNet-5 on an H200: 1.1 times,
# with TF32 1.3 to 1.9 times)


def suits(module: nn.Module) -> bool:
    """Whether it is a convolution of images that is computed from patches."""
    return (
        isinstance(module, nn.Conv2d)
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.out_channels <= MOST_CHANNELS
    )


def patch_numbers(module: nn.Module, output: Tensor) -> int:
    """How many numbers the patches of one image have that led to this output; rows have fewer."""
    assert isinstance(module, nn.Conv2d)
    return output.shape[-2] * output.shape[-1] * module.weight[0].numel()


def use_products(model: nn.Module, *, first: bool = True) -> nn.Module:
    """Compute the convolutions of this network as products; changed in place.

    `first=False` leaves the first one: with inputs that all networks share it is a common one.
    """
    suitable = [module for module in model.modules() if suits(module)]
    for module in suitable[0 if first else 1 :]:
        assert isinstance(module, nn.Conv2d)
        way = RowConv2d if module.out_channels <= MOST_IN_ROWS else PatchConv2d
        module.__class__ = type(module.__class__.__name__, (way, module.__class__), {})
    return model


def _padded(layer: nn.Conv2d, images: Tensor) -> Tensor:
    assert not isinstance(layer.padding, str)
    rows, columns = layer.padding
    return F.pad(images, (columns, columns, rows, rows)) if rows or columns else images


class PatchConv2d(nn.Conv2d):
    """A convolution of images as weights times patches."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute what `nn.Conv2d` computes, up to round-off."""
        (height, width), (down, right) = self.kernel_size, self.stride
        patches = _padded(self, input).unfold(2, height, down).unfold(3, width, right)
        samples, channels, out_rows, out_columns = patches.shape[:4]
        # (samples, numbers of a patch, places): places last, so that the output needs no copy
        flat = patches.permute(0, 1, 4, 5, 2, 3).reshape(
            samples, channels * height * width, out_rows * out_columns
        )
        output = self.weight.flatten(1) @ flat
        if self.bias is not None:
            output = output + self.bias[:, None]
        return output.unflatten(2, (out_rows, out_columns))


class RowConv2d(nn.Conv2d):
    """A convolution of images as rows times a band matrix."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute what `nn.Conv2d` computes, up to round-off."""
        (height, width), (down, right) = self.kernel_size, self.stride
        # (samples, channels, out rows, columns, height)
        rows = _padded(self, input).unfold(2, height, down)
        samples, _, out_rows, columns, _ = rows.shape
        out_columns = (columns - width) // right + 1
        # (width, columns, out columns): where a column of the kernel meets one of the image
        at = torch.arange(columns, device=input.device)[:, None]
        start = right * torch.arange(out_columns, device=input.device)
        shift = torch.arange(width, device=input.device)[:, None, None]
        meets = (at - start == shift).to(input.dtype)
        band = (self.weight @ meets.flatten(1)).unflatten(3, (columns, out_columns))
        flat = rows.permute(0, 2, 1, 4, 3).reshape(samples * out_rows, -1)
        output = flat @ band.permute(1, 2, 3, 0, 4).reshape(-1, self.out_channels * out_columns)
        output = output.reshape(samples, out_rows, self.out_channels, out_columns)
        if self.bias is not None:
            output = output + self.bias[:, None]
        return output.transpose(1, 2)
