"""Convolutions of many networks at once as one product of matrices.

With weights of their own, the networks of a stack make one convolution with a group for each of
them, which libraries for GPUs compute group by group: with few channels each, a step waits for
hundreds of small kernels. A product over all patches of all networks is one kernel.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

MOST_CHANNELS = 64  # of the output: above it a group keeps a GPU busy, and patches fill its memory


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
    """How many numbers the patches of one image have that led to this output."""
    assert isinstance(module, nn.Conv2d)
    return output.shape[-2] * output.shape[-1] * module.weight[0].numel()


def use_patches(model: nn.Module) -> nn.Module:
    """Compute the convolutions of this network from patches; changed in place."""
    for module in model.modules():
        if suits(module):
            module.__class__ = type(module.__class__.__name__, (PatchConv2d, module.__class__), {})
    return model


class PatchConv2d(nn.Conv2d):
    """A convolution of images as weights times patches."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Conv2d`, up to round-off."""
        assert not isinstance(self.padding, str)
        rows, columns = self.padding
        if rows or columns:
            input = F.pad(input, (columns, columns, rows, rows))
        (height, width), (down, right) = self.kernel_size, self.stride
        patches = input.unfold(2, height, down).unfold(3, width, right)
        samples, channels, out_rows, out_columns = patches.shape[:4]
        # (samples, numbers of a patch, places): places last, so that the output needs no copy
        flat = patches.permute(0, 1, 4, 5, 2, 3).reshape(
            samples, channels * height * width, out_rows * out_columns
        )
        output = self.weight.flatten(1) @ flat
        if self.bias is not None:
            output = output + self.bias[:, None]
        return output.unflatten(2, (out_rows, out_columns))
