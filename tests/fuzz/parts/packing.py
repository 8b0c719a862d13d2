"""Parts that store the samples in another order or in another dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class TimeFirst(nn.Module):
    """(samples, time, features) as (time, samples, features)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


class FlatTokens(nn.Module):
    """(samples, time, features) as rows, sample after sample."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.reshape(-1, x.shape[-1])).reshape(x.shape)


class FlatTimes(nn.Module):
    """(samples, time, features) as rows, time step after time step."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        rows = self.inner(turned.reshape(-1, x.shape[-1]))
        return rows.reshape(turned.shape).transpose(0, 1)


class SortedRows(nn.Module):
    """The rows are sorted by their first feature and put back afterwards."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        order = rows[:, 0].argsort()
        return self.inner(rows[order])[order.argsort()].reshape(x.shape)


class ReversedBatch(nn.Module):
    """The samples pass in reversed order."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flip(0)).flip(0)


class OneByOne(nn.Module):
    """Every sample is a call of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(row) for row in x.split(1)])


class HalfBatches(nn.Module):
    """The batch passes in two calls."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        half = (len(x) + 1) // 2
        parts = [self.inner(part) for part in (x[:half], x[half:]) if len(part)]
        return torch.cat(parts)


class PaddedRows(nn.Module):
    """One row of ones is added to the batch and dropped again."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.cat([torch.ones_like(x[:1]), x]))[1:]


class NonzeroTokens(nn.Module):
    """Only tokens with a positive first feature are packed together and computed."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        shown = x[..., 0] > 0
        out = x.clone()
        out[shown] = self.inner(x[shown])
        return out


class PackedRecurrence(nn.Module):
    """A recurrent layer on packed sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x[..., 0] > 0).sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(
            self.cells(packed)[0], batch_first=True, total_length=x.shape[1]
        )
        return out


class SwappedPair(nn.Module):
    """Two calls of one module; in the second, two samples have changed places."""

    def __init__(self, inner: nn.Module, first: int) -> None:
        super().__init__()
        self.inner, self.pair = inner, slice(first, first + 2)

    def forward(self, x: Tensor) -> Tensor:
        order = torch.arange(len(x))
        order[self.pair] = order[self.pair].flip(0)
        return self.inner(x) + self.inner(x[order].flip(-1))[order]


class RolledByData(nn.Module):
    """Two calls of one module; in the second, the samples are rolled, or not, as the data say."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        shift = int((x.flatten(1)[:, 0] > 0).sum())
        return self.inner(x) + self.inner(x.flip(-1).roll(shift, 0)).roll(-shift, 0)


class CutByData(nn.Module):
    """Two calls of one module; in the second, the batch is cut where the data say and turned."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        cut = int((x.flatten(1)[:, 0] > 0).sum())
        turned = self.inner(torch.cat([x[cut:], x[:cut]]).flip(-1))
        rest = len(x) - cut
        return self.inner(x) + torch.cat([turned[rest:], turned[:rest]])


class Unbatched(nn.Module):
    """Every sample is a call of its own, without a dimension for the batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.inner(sample) for sample in x])
