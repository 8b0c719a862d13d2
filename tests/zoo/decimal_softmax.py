"""Softmax curvature in decimals of 80 digits: the truth where floating point has none left.

The formulas are the plain definitions, which floats cannot use: with this many digits 1 - p loses
nothing that matters (margins of 60 cost 27 digits).
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

Row = list[float]


def _precise() -> object:
    return localcontext(Context(prec=80))


def probabilities(logits: Row) -> list[Decimal]:
    with _precise():
        powers = [Decimal(z).exp() for z in logits]
        total = sum(powers)
        return [power / total for power in powers]


def matrix(logits: Row) -> list[list[Decimal]]:
    """diag(p) - p p'."""
    p = probabilities(logits)
    with _precise():
        return [
            [(p[i] if i == j else 0) - p[i] * p[j] for j in range(len(p))] for i in range(len(p))
        ]


def gini(logits: Row) -> Decimal:
    """1 - sum p^2."""
    p = probabilities(logits)
    with _precise():
        return 1 - sum(x * x for x in p)


def quadratic(logits: Row, weight: list[Row]) -> Decimal:
    """sum_ij <w_i, w_j> A_ij."""
    A = matrix(logits)
    with _precise():
        total = Decimal(0)
        for i, row in enumerate(A):
            for j, a in enumerate(row):
                dot = sum(
                    Decimal(x) * Decimal(y) for x, y in zip(weight[i], weight[j], strict=True)
                )
                total += dot * a
        return total


def pair(left: Row, right: Row) -> Decimal:
    """Tr(A A')."""
    A, B = matrix(left), matrix(right)
    with _precise():
        return sum(
            (A[i][j] * B[j][i] for i in range(len(A)) for j in range(len(A))), start=Decimal(0)
        )


def squared_norm(x: Row) -> Decimal:
    with _precise():
        return sum((Decimal(v) * Decimal(v) for v in x), start=Decimal(0))


def affine(weight: list[Row], bias: Row, x: list[Decimal] | Row) -> list[Decimal]:
    """W x + b."""
    with _precise():
        return [
            sum((Decimal(w) * Decimal(v) for w, v in zip(row, x, strict=True)), start=Decimal(b))
            for row, b in zip(weight, bias, strict=True)
        ]


def mean(values: list[Decimal]) -> float:
    with _precise():
        return float(sum(values, start=Decimal(0)) / len(values))


def product(*factors: Decimal) -> Decimal:
    with _precise():
        result = Decimal(1)
        for factor in factors:
            result *= factor
        return result
