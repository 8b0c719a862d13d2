"""Columns in the order of the probabilities: outer products, what is left, digits."""

import itertools
from decimal import Decimal

import pytest
import torch

from spiritlevel.math.curvature import OrderedColumns, SoftmaxCurvature
from zoo import decimal_softmax
from zoo.plain import random

N = 4
LOGITS = {
    "untrained": lambda classes: 0.1 * random(N, classes),
    "in between": lambda classes: 3 * random(N, classes),
    "confident": lambda classes: 30 * random(N, classes),
    "equal": lambda classes: torch.zeros(N, classes).double(),
    "two equal": lambda classes: torch.eye(N, classes).double() + torch.eye(N, classes).roll(1, 1),
}


def columns_of(logits, mass=None):
    """All columns as (N, C, C − 1)."""
    ordered = OrderedColumns(SoftmaxCurvature(logits, mass))
    columns = [ordered.column(rank) for rank in range(logits.shape[1] - 1)]
    assert all(torch.equal(sign, torch.ones(len(logits)).double()) for _, sign in columns)
    return torch.stack([column for column, _ in columns], dim=2)


def softmax_matrix(logits):
    p = logits.softmax(dim=1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


@pytest.mark.parametrize("classes", [2, 3, 7, 30])
@pytest.mark.parametrize("name", LOGITS)
def test_outer_products_add_up_to_the_hessian(name, classes):
    logits, mass = LOGITS[name](classes), torch.tensor([1.0, 0.3, 0.0, 2.5]).double()
    S = columns_of(logits, mass)
    truth = mass[:, None, None] * softmax_matrix(logits)
    torch.testing.assert_close(S @ S.mT, truth, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("classes", [3, 6, 9])
@pytest.mark.parametrize("name", LOGITS)
def test_the_first_columns_leave_the_other_classes_among_themselves(name, classes):
    """Rank by rank: the mass of the others times their own softmax Hessian, and its trace."""
    logits = LOGITS[name](classes)
    order = logits.sort(dim=1, descending=True, stable=True).indices
    curvature = SoftmaxCurvature(logits)
    S, left = columns_of(logits), OrderedColumns(curvature).left(list(range(classes)))
    for rank in range(classes):
        others = torch.zeros_like(logits).scatter(1, order[:, rank:], 1.0)
        p = logits.softmax(dim=1) * others
        mass = p.sum(dim=1)
        share = p / mass[:, None]
        truth = mass[:, None, None] * (
            torch.diag_embed(share) - share[:, :, None] * share[:, None, :]
        )
        rest = S[:, :, rank:] @ S[:, :, rank:].mT
        torch.testing.assert_close(rest, truth, rtol=1e-10, atol=1e-15)
        trace = truth.diagonal(dim1=1, dim2=2).sum(dim=1)
        torch.testing.assert_close(left[:, rank], trace, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(left[:, 0], curvature.trace(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("name", LOGITS)
def test_random_signs_are_right_on_average_over_all_of_them(name, first):
    logits = LOGITS[name](6)
    ordered, S = OrderedColumns(SoftmaxCurvature(logits)), columns_of(logits)
    every = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=6)), dtype=torch.float64)
    total = torch.zeros(N, 6, 6).double()
    for signs in every:
        column, sign = ordered.probe(signs.expand(N, -1), first)
        assert bool((sign == 1).all())
        total += column[:, :, None] * column[:, None, :]
    rest = S[:, :, first:] @ S[:, :, first:].mT
    torch.testing.assert_close(total / len(every), rest, rtol=1e-12, atol=1e-15)


def test_every_digit_of_a_confident_column():
    """Against decimals; p_top differs from 1 by less than float64 can tell."""
    logits = torch.tensor([[0.0, 60.0, 20.0, -5.0]], dtype=torch.float64)
    p = decimal_softmax.probabilities(logits[0].tolist())
    ordered = OrderedColumns(SoftmaxCurvature(logits))
    ranks = [1, 2, 0, 3]
    for rank in range(3):
        here, behind = p[ranks[rank]], [p[i] for i in ranks[rank + 1 :]]
        below = sum(behind, Decimal(0))
        size = (here * below / (here + below)).sqrt()
        column = ordered.column(rank)[0][0]
        assert float(column[ranks[rank]]) == pytest.approx(float(size), rel=1e-13)
        for i in ranks[rank + 1 :]:
            assert float(column[i]) == pytest.approx(float(-size * p[i] / below), rel=1e-13)


def test_probabilities_that_underflow_leave_zeros():
    logits = torch.tensor([[0.0, 2000.0, -torch.inf, 1000.0]], dtype=torch.float64)
    ordered = OrderedColumns(SoftmaxCurvature(logits))
    assert all(bool((ordered.column(rank)[0] == 0).all()) for rank in range(3))
    assert bool((ordered.probe(torch.ones_like(logits), 1)[0] == 0).all())
    assert bool((ordered.left([0, 2]) == 0).all())
