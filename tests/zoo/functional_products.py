"""Products and convolutions of bare, packed and subclassed weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .functional_base import Network, weight


class Linear(Network):
    """F.linear with bare parameters."""

    kept = "w1:oi w2:oi"

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1, self.w2, self.b2 = weight(5, 4), weight(5), weight(3, 5), weight(3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.w1, self.b1).relu(), self.w2, self.b2)


class Products(Network):
    """x @ W + b, W kept as (in, out), and x @ W.T."""

    kept = "w1:io w2:oi"

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1, self.w2 = weight(4, 5), weight(5), weight(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w1 + self.b1).relu() @ self.w2.T


class Addmm(Network):
    """torch.addmm, positions as further rows, and a mean over them."""

    kept = "w1:io w2:io"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1, self.w2 = weight(4, 5), weight(5), weight(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.b1, x.reshape(-1, 4), self.w1).relu()
        return (rows @ self.w2).reshape(len(x), 2, 3).mean(dim=1)


class TimeFirst(Network):
    """Linear maps with time first inside, so that the samples are in the second dimension."""

    kept = "w1:oi w2:oi"
    inputs = (3, 4)

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1, self.w2 = weight(5, 4), weight(5), weight(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x.transpose(0, 1), self.w1, self.b1).relu()
        return F.linear(x, self.w2).sum(dim=0)


class Einsum(Network):
    """einsum over several dimensions."""

    kept = "w1:oi w2:io"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = weight(5, 4), weight(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.einsum("nti,oi->nto", x, self.w1).relu()
        return torch.einsum("nto,oc->nc", x, self.w2)


class Heads(Network):
    """A matrix of every head in one parameter, as attention code has it."""

    kept = "w:oi out:oi"
    inputs = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.w, self.out = weight(2, 3, 4), weight(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.w.reshape(6, 4)).relu()
        return F.linear(x.mean(dim=1), self.out)


class Packed(Network):
    """Three matrices in one, used apart."""

    kept = "w:oi head:oi"

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b, self.head = weight(12, 4), weight(12), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.w.chunk(3)
        p, q, r = self.b.split([4, 4, 4])
        h = F.linear(x, a, p).relu() + F.linear(x, b, q)
        return F.linear(F.linear(h, c, r).relu(), self.head)


class Sliced(Network):
    """Slices of a matrix that is kept as (in, out)."""

    kept = "w:io head:oi"

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = weight(4, 8), weight(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = (x @ self.w[:, :4]).relu() @ self.w[:, 4:]
        return F.linear(h.relu(), self.head)


class Experts(Network):
    """One matrix for each expert in one parameter, selected one by one."""

    kept = "w:gio head:oi"

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head, self.gate = weight(2, 4, 4), weight(3, 4), weight(2)

    def forward(self, x: Tensor) -> Tensor:
        h = sum(self.gate[i] * (x @ self.w[i]).relu() for i in range(2))
        return F.linear(h, self.head)


class SamePadding(nn.Conv2d):
    """A convolution that pads by itself, as in EfficientNet."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(
            F.pad(x, (0, 1, 1, 0)),
            self.weight,
            self.bias,
            self.stride,
            0,
            self.dilation,
            self.groups,
        )


class Subclassed(Network):
    """A subclass with a forward of its own, and its batch norm by a functional call."""

    kept = "first:conv1 second:conv2 head:oi"
    inputs = (2, 3, 3)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SamePadding(2, 4, 2), SamePadding(4, 4, 2, groups=2, bias=False)
        self.gain, self.shift, self.head = weight(4), weight(4), weight(3, 4)
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("var", torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(self.first(x), self.mean, self.var, self.gain, self.shift).relu()
        return F.linear(self.second(x).relu().mean(dim=(2, 3)), self.head)


class Convolved(Network):
    """Convolutions of bare kernels: strided, dilated, transposed, and with a bias."""

    kept = "w1:conv1 w2:conv1 w3:transposed1"
    inputs = (2, 7)

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1, self.w2, self.w3 = (
            weight(3, 2, 3),
            weight(3),
            weight(4, 3, 2),
            weight(4, 3, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv1d(x, self.w1, self.b1, stride=2, padding=1).relu()
        x = F.conv1d(x, self.w2, dilation=2).relu()
        return F.conv_transpose1d(x, self.w3, stride=2).mean(dim=2)
