"""The softmax head z = W φ + b of a language model, in chunks of tokens and of the vocabulary.

The logits of 8192 tokens over 128,256 classes fill 4 GB and are used once, so they never exist all
at once: one sweep goes over chunks of W, as in online softmax, with two matrix products per chunk
(the logits φ W_cᵀ and the sums e W_c). Memory follows `budget`, not the vocabulary.

As in `curvature`, no digits are lost: every sum runs over the tail only, which is all classes other
than the most likely one, and nothing is subtracted from 1. A chunk leaves out its own most likely
class; the less likely of that class and the leader so far joins the tail. Tail sums are relative to
the tail's own largest logit, so that even a very confident token stays in the range of float32.

Half-precision heads are multiplied without conversion and summed in float32. Only the second
product needs e^z rounded to their type, and all sums of `quadratic` use the same rounded numbers:
so it is the exact variance of the rows for probabilities that are off by factors within 1 ± 2ε
(ε = 2⁻⁹ for bfloat16), and is itself accurate to such factors.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .blocks import CPU_BLOCK, GPU_BLOCK, block_shape, matmul, slices, wide_type

MEAN_ROWS = 1024  # rows of a half-precision head that its mean row is computed from

# Compiling takes seconds. From this many logits on it pays: without it, the steps between the
# matrix products take a good part of the products' time.
COMPILE_FROM = 1 << 28


@dataclass(frozen=True)
class TokenSums:
    """What one sweep over the vocabulary gives for each of T tokens; float64, shape (T,) each."""

    logsumexp: Tensor
    top: Tensor  # int64: the most likely class, the first of several
    gini: Tensor  # 1 − Σ p²
    entropy: Tensor  # −Σ p log p
    confidence: Tensor  # the largest p
    quadratic: Tensor | None  # Tr(Wᵀ (diag p − p pᵀ) W) = Σ p_i ‖w_i‖² − ‖Σ p_i w_i‖²


@torch.no_grad()
def stream_tokens(
    features: Tensor, weight: Tensor, bias: Tensor | None, *, kappa: bool, budget: int
) -> TokenSums:
    """Sums over the vocabulary for φ of shape (T, d), W of shape (C, d) and b of shape (C,).

    Args:
        kappa: whether to compute `quadratic`, which takes the second matrix product.
        budget: bytes beside the arguments and the result; the smallest block is 1 token × 16
            classes, even if that takes more.

    >>> phi, W = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0], [0.0, -1.0]])
    >>> sums = stream_tokens(phi, W, None, kappa=True, budget=2**20)    # p = (½, ½)
    >>> float(sums.gini), float(sums.quadratic)                         # ½; the variance of 3, −1
    (0.5, 4.0)
    """
    features, weight = features.detach(), weight.detach()
    head = _StreamedHead(features, weight, bias, kappa=kappa, budget=budget)
    parts = [head.sums(features[tokens]) for tokens in slices(len(features), head.tokens)]
    sums = TokenSums(*(torch.cat(column) for column in zip(*parts, strict=True)))
    return sums if kappa else replace(sums, quadratic=None)


@torch.no_grad()
def stream_product(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sums: TokenSums,
    token_weights: Tensor,
    direction: Tensor,
    *,
    budget: int,
    into: Tensor | None = None,
) -> Tensor:
    """Σ_t weight_t A_t (V φ_t) φ_tᵀ for V of shape (C, d): the head's Hessian times `direction`.

    It is added to `into` if that is given, so that no second tensor as large as W is needed.

    A x = p∘(x − p·x) with x = V φ needs p·x before its first entry, hence two sweeps over the
    vocabulary. Since A·1 = 0, x_top is subtracted from x: then p·x is a sum over the tail.

    >>> phi, W = torch.tensor([[2.0]]), torch.tensor([[0.0], [0.0]])    # p = (½, ½)
    >>> sums = stream_tokens(phi, W, None, kappa=False, budget=2**20)
    >>> V = torch.tensor([[1.0], [0.0]])                                # H = 4 · [[¼, −¼], [−¼, ¼]]
    >>> stream_product(phi, W, None, sums, torch.ones(1), V, budget=2**20).tolist()
    [[1.0], [-1.0]]
    """
    wide = wide_type(features, weight, direction)
    row = wide.itemsize * features.shape[1]
    tokens, classes = block_shape(
        len(features),
        len(weight),
        budget=budget,
        logit_bytes=6 * wide.itemsize,
        token_bytes=4 * row,
        class_bytes=2 * row,
        limit=GPU_BLOCK if features.is_cuda else CPU_BLOCK,
    )
    result = into
    if result is None:
        result = torch.zeros(weight.shape, dtype=wide, device=features.device)
    every = torch.arange(len(weight), device=features.device)
    for block in slices(len(features), tokens):
        phi, top = features[block], sums.top[block]
        scale = sums.logsumexp[block].to(wide)[:, None]
        x_top = (phi.to(wide) * direction[top].to(wide)).sum(dim=1, keepdim=True)
        weights = token_weights[block].to(wide)[:, None]
        mean = torch.zeros_like(scale)
        for sweep in ("mean", "product"):
            for chunk in slices(len(weight), classes):
                z = matmul(phi, weight[chunk].T, wide)
                p = (z - scale if bias is None else z + bias[chunk] - scale).exp_()
                x = matmul(phi, direction[chunk].T, wide) - x_top
                # exactly 0: what rounding leaves at the top would outweigh a whole tail
                x.masked_fill_(every[chunk] == top[:, None], 0.0)
                if sweep == "mean":
                    mean += (p * x).sum(dim=1, keepdim=True)
                else:
                    result[chunk].addmm_((p * (x - mean) * weights).T, phi.to(wide))
    return result


class _Tail(NamedTuple):
    """Running sums of e^{z − reference} over the tail of each token; float64, shape (T,)."""

    top: Tensor  # the largest logit, not in the sums
    leader: Tensor  # its class
    reference: Tensor
    mass: Tensor  # Σ e
    squares: Tensor  # Σ e²
    depth: Tensor  # Σ e (reference − z)
    rounded_mass: Tensor  # Σ e of the rounded numbers, which `spread` is summed from
    spread: Tensor  # Σ e ‖w − μ‖²


class _Joining(NamedTuple):
    """How a chunk joins the tail: factors of the old sums, of the new ones, and of one class."""

    old: Tensor
    new: Tensor
    loser: Tensor
    loser_class: Tensor


class _StreamedHead:
    """The head's weight in the types that the products need, and the sweep over it."""

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, *, kappa: bool, budget: int
    ) -> None:
        self.weight, self.bias, self.kappa = weight, bias, kappa
        self.fuse = fuse = features.is_cuda and len(features) * len(weight) >= COMPILE_FROM
        self.wide = wide_type(features, weight)
        half = weight.dtype.itemsize == 2
        self.narrow = weight.dtype if half else self.wide
        # Half-precision vectors are sums of rounded numbers: summing them in float32 is enough.
        self.sum_type = self.wide if half else torch.float64
        size, width = self.wide.itemsize, weight.shape[1]
        self.tokens, classes = block_shape(
            len(features),
            len(weight),
            budget=budget,
            # fused: logits and e; otherwise also the intermediate results
            logit_bytes=self.narrow.itemsize + size * (1 if fuse else 3 + (bias is not None)),
            token_bytes=self.sum_type.itemsize * width * (3 if fuse else 7) * kappa,
            class_bytes=2 * width * size * (not (fuse and half)),
            limit=GPU_BLOCK if features.is_cuda else CPU_BLOCK,
        )
        self.chunks = list(slices(len(weight), classes))
        self.every = torch.arange(len(weight), device=weight.device)
        # A variance of rows does not change when the mean row μ is subtracted, and then large rows
        # that are nearly equal keep their digits. Half-precision rows cannot be shifted without
        # rounding: there μ is subtracted from the sums, which is as good for rows of few digits.
        self.mean = torch.zeros(width, dtype=self.wide, device=weight.device)
        self.norms: Tensor | None = None  # ‖w_i − μ‖²
        if kappa:
            # any fixed vector near the rows would do, so the mean of some rows is enough
            step = max(1, len(weight) // MEAN_ROWS) if half else 1
            self.mean += weight[::step].mean(dim=0, dtype=self.wide)
            parts = [weight] if fuse else [weight[chunk] for chunk in self.chunks]
            self.norms = torch.cat([self._run(_squared_norms, part, self.mean) for part in parts])
        self.centred = kappa and not half
        self.shift = self.mean if self.centred else torch.zeros_like(self.mean)

    def sums(self, phi: Tensor) -> tuple[Tensor, ...]:
        """The fields of `TokenSums` for one block of tokens; the last is 0 without κ."""
        tail, vectors = self._sweep(phi)
        scale = (tail.reference - tail.top).exp()
        mass = tail.mass * scale
        rest = mass / (1.0 + mass)  # 1 − p_top
        gini = rest * (2.0 - rest) - tail.squares * (scale / (1.0 + mass)).square()
        logsumexp = tail.top + torch.log1p(mass)
        # −log p_i = log(1 + mass) + (z_top − z_i): no term is negative, so none cancels
        below = (tail.depth + (tail.top - tail.reference) * tail.mass) * scale
        entropy = torch.log1p(mass) + below / (1.0 + mass)
        without_kappa = (tail.leader, gini, entropy, 1.0 / (1.0 + mass))
        if self.norms is None:
            return logsumexp, *without_kappa, torch.zeros_like(gini)
        if self.centred:
            logsumexp += phi.double() @ self.mean.double()
        dot, deviation = self._run(
            _against_top,
            vectors,
            tail.rounded_mass,
            self.weight,
            tail.leader,
            self.mean,
            self.shift,
        )
        # turns sums of e^{z − reference} into sums of p
        unit = scale / (1.0 + tail.rounded_mass * scale)
        # Σ e_i ‖w_i − w_top‖², both rows relative to μ
        spread = tail.spread - 2.0 * dot + tail.rounded_mass * self.norms[tail.leader]
        return logsumexp, *without_kappa, unit * spread - unit.square() * deviation

    def _sweep(self, phi: Tensor) -> tuple[_Tail, Tensor]:
        """The tail sums over all classes, and, for κ, Σ e_i (w_i − shift) of shape (T, d)."""
        start = (-math.inf, 0, torch.finfo(torch.float32).min, 0, 0, 0, 0, 0)
        tail = _Tail(*(phi.new_full((len(phi),), x, dtype=torch.float64) for x in start))
        tail = tail._replace(leader=tail.leader.long())
        vectors = torch.zeros_like(phi if self.kappa else phi[:0], dtype=self.sum_type)
        for chunk in self.chunks:
            rows = self.weight[chunk] - self.mean if self.centred else self.weight[chunk]
            logits = matmul(phi, rows.T, self.wide)
            bias = None if self.bias is None else self.bias[chunk]
            norms = None if self.norms is None else self.norms[chunk]
            tail, rounded, joining = self._run(
                _absorb, tail, logits, bias, self.every[chunk], self.norms, norms, self.narrow
            )
            del logits  # free them before the next ones are made
            if rounded is not None:
                new = matmul(rounded, rows, self.wide)
                vectors = self._run(_join, vectors, new, self.weight, self.shift, joining)
        return tail, vectors

    def _run(self, function: Callable[..., Any], *arguments: object) -> Any:
        return (_fused(function) if self.fuse else function)(*arguments)


def _absorb(
    tail: _Tail,
    logits: Tensor,
    bias: Tensor | None,
    classes: Tensor,
    norms: Tensor | None,
    chunk_norms: Tensor | None,
    narrow: torch.dtype,
) -> tuple[_Tail, Tensor | None, _Joining]:
    """Add one chunk of logits; every elementwise step is here, so that one fused kernel does it.

    Returns the new tail, the rounded e^{z − reference} of the chunk's own tail if `norms` are
    given, and how that joins what came before.
    """
    logits = logits if bias is None else logits + bias
    top, column = logits.max(dim=1)
    index = classes[column]
    if torch.compiler.is_compiling():
        rest = torch.where(classes == index[:, None], -math.inf, logits)  # fuses into one kernel
    else:
        rest = logits.scatter_(1, column[:, None], -math.inf)  # the same without a second copy
    # bfloat16 has the range for a lead of up to 80, and this saves a pass over the logits
    reference = top if narrow is torch.bfloat16 else rest.amax(dim=1)
    if narrow is torch.float16:
        reference = reference - 10.0  # float16 ends at 6e-8 and 65504: leave room below
    # an empty tail has the reference −∞, and −∞ − (−∞) is NaN
    reference = reference.clamp(min=torch.finfo(logits.dtype).min)
    e = (rest - reference[:, None]).exp_()
    mass = e.sum(dim=1)
    squares = torch.linalg.vector_norm(e, dim=1).double().square()
    depth = torch.special.entr(e).sum(dim=1).double()  # 0 where e is

    first, second = top.double(), tail.top
    loser = torch.minimum(first, second)
    common = torch.maximum(torch.maximum(tail.reference, reference.double()), loser)
    old, new = (tail.reference - common).exp(), (reference.double() - common).exp()
    joins = (loser - common).exp()
    # how far each sum's own reference lies below the common one; a sum that is 0 stays 0
    deeper = _lower(common, tail.reference) * tail.mass, _lower(common, reference) * mass
    leads = first > second
    loser_index = torch.where(leads, tail.leader, index)
    rounded, rounded_mass, spread = None, tail.rounded_mass, tail.spread
    if norms is not None and chunk_norms is not None:
        rounded = e.to(narrow)
        e = rounded.to(logits.dtype)
        chunk_mass = mass if narrow is logits.dtype else e.sum(dim=1)
        rounded_mass = old * rounded_mass + new * chunk_mass + joins
        spread = old * spread + new * (e * chunk_norms).sum(dim=1) + joins * norms[loser_index]
    tail = _Tail(
        torch.maximum(first, second),
        torch.where(leads, index, tail.leader),
        common,
        old * tail.mass + new * mass + joins,
        old.square() * tail.squares + new.square() * squares + joins.square(),
        old * (tail.depth + deeper[0]) + new * (depth + deeper[1]) + _lower(common, loser) * joins,
        rounded_mass,
        spread,
    )
    return tail, rounded, _Joining(old, new, joins, loser_index)


def _lower(common: Tensor, reference: Tensor) -> Tensor:
    """How far a reference lies below the common one, cut off far beyond the range of exp."""
    return (common - reference.double()).clamp(max=1e9)  # −∞ stands for an empty tail


def _join(old: Tensor, new: Tensor, weight: Tensor, shift: Tensor, joining: _Joining) -> Tensor:
    """Σ e_i (w_i − shift) of the old tail, the chunk, and the class that lost the lead; (T, d)."""
    row = weight[joining.loser_class].to(old.dtype) - shift
    a, b, c = (factor.to(old.dtype)[:, None] for factor in joining[:3])
    return a * old + b * new + c * row


def _against_top(
    vectors: Tensor, mass: Tensor, weight: Tensor, index: Tensor, mean: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """⟨w_top, u⟩ and ‖u − mass·w_top‖² for u = Σ e_i w_i, all rows relative to μ; (T,) each."""
    mass = mass.to(vectors.dtype)[:, None]
    row = weight[index].to(vectors.dtype) - mean
    u = vectors - mass * (mean - shift)
    return (row * u).sum(dim=1).double(), (u - mass * row).square().sum(dim=1).double()


def _squared_norms(rows: Tensor, mean: Tensor) -> Tensor:
    """‖w_i − μ‖², shape (C,)."""
    return torch.linalg.vector_norm(rows - mean, dim=1).square()


@functools.cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled; uncompiled where that fails, for example without a C compiler."""
    from torch._dynamo.exc import BackendCompilerFailed

    try:
        compiled = torch.compile(function)  # for the common sizes; for others on demand
    except RuntimeError:  # no compiler for this version of Python
        return function
    failed = False

    def call(*arguments: object) -> Any:
        nonlocal failed
        if not failed:
            try:
                return compiled(*arguments)
            except BackendCompilerFailed as error:  # not an error of `function` itself
                failed = True
                warnings.warn(f"{function.__name__} runs uncompiled: {error}", stacklevel=2)
        return function(*arguments)

    return call
