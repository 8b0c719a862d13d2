"""Functions whose backward is not their derivative."""

import torch


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is a fifth too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.2 * gradient
