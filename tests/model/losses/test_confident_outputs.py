"""Losses of confident outputs: values, gradients and Hessians to the last digits, and torch's."""

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.model.losses import resolve

WEIGHTS = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
SMOOTH = 1e-20  # at this smoothing the targets are as certain as the network
ROWS = torch.tensor([[40.0, 0.0, 1.0], [-2.0, 0.5, 37.0], [0.0, 50.0, 3.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1])
ONE_HOT = F.one_hot(LABELS, 3).double()
CASES = {
    "labels": (nn.CrossEntropyLoss(), LABELS),
    "function": (F.cross_entropy, LABELS),
    "weighted": (nn.CrossEntropyLoss(weight=WEIGHTS), LABELS),
    "wrong": (nn.CrossEntropyLoss(), torch.tensor([1, 2, 1])),
    "probabilities": (nn.CrossEntropyLoss(), ONE_HOT),
    "tiny": (nn.CrossEntropyLoss(), ONE_HOT + 1e-18 * (1 - ONE_HOT)),
    "smooth": (nn.CrossEntropyLoss(label_smoothing=SMOOTH), ONE_HOT),
    "bits": (nn.BCEWithLogitsLoss(), ONE_HOT),
    "pos_weight": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS, weight=WEIGHTS), ONE_HOT),
}


def softmax_loss(z, target, weights):
    """−Σ_c w_c t_c log p_c, its gradient and its Hessian, in mpmath."""
    total = sum(mpmath.exp(entry) for entry in z)
    p = [mpmath.exp(entry) / total for entry in z]
    shares = [w * t for w, t in zip(weights, target, strict=True)]
    value = -sum(s * mpmath.log(q) for s, q in zip(shares, p, strict=True))
    slopes = [sum(shares) * q - s for s, q in zip(shares, p, strict=True)]
    second = [
        [sum(shares) * ((i == j) * p[i] - p[i] * p[j]) for j in range(len(p))]
        for i in range(len(p))
    ]
    return value, slopes, second


def sigmoid_loss(z, target, weights):
    """Σ_c w_c (−w_c t_c log σ(z_c) − (1 − t_c) log σ(−z_c)), with its derivatives."""
    value, slopes = mpmath.mpf(0), []
    second = [[mpmath.mpf(0)] * len(z) for _ in z]
    for i, (entry, t, w) in enumerate(zip(z, target, weights, strict=True)):
        p = 1 / (1 + mpmath.exp(-entry))
        value += w * (-w * t * mpmath.log(p) - (1 - t) * mpmath.log(1 - p))
        slopes.append(w * (-w * t * (1 - p) + (1 - t) * p))
        second[i][i] = w * (w * t + 1 - t) * p * (1 - p)
    return value, slopes, second


def truth(name, n):
    """Of one sample, in 80 digits."""
    targets = CASES[name][1]
    target = (F.one_hot(targets, 3) if targets.dim() == 1 else targets)[n].double().tolist()
    with mpmath.workdps(80):
        z = [mpmath.mpf(entry) for entry in ROWS[n].tolist()]
        target = [mpmath.mpf(entry) for entry in target]
        if name == "smooth":
            e = mpmath.mpf(SMOOTH)
            target = [(1 - e) * entry + e / 3 for entry in target]
        weights = WEIGHTS.tolist() if name in ("weighted", "pos_weight") else [1.0] * 3
        form = sigmoid_loss if name in ("bits", "pos_weight") else softmax_loss
        return form(z, target, weights)


def close(found, wanted, rtol=1e-13):
    return abs(found - wanted) <= rtol * abs(wanted)


@pytest.mark.parametrize("name", CASES)
def test_no_digits_are_lost(name):
    module, targets = CASES[name]
    loss = resolve(module)
    z = ROWS.clone().requires_grad_()
    values = loss.values(z, targets)
    (slope,) = torch.autograd.grad(values.sum(), z, create_graph=True)
    rows = [torch.autograd.grad(slope[:, i].sum(), z, retain_graph=True)[0] for i in range(3)]
    for n in range(len(z)):
        value, slopes, second = truth(name, n)
        assert close(float(values[n].detach()), value)
        assert all(close(*pair) for pair in zip(slope[n].tolist(), slopes, strict=True))
        for row, wanted in zip(rows, second, strict=True):
            assert all(close(*pair) for pair in zip(row[n].tolist(), wanted, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_where_the_network_is_undecided_it_is_torchs(name):
    module, targets = CASES[name]
    z = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[0, 0] = z[0, 1] = 0.0  # two classes alike, and the place where two halves meet
    z[0, 2], z[1] = -1.0, 0.0
    given, ours = z.clone().requires_grad_(), z.clone().requires_grad_()
    loss = resolve(module)
    by_torch = module(given, targets)
    mean = loss.values(ours, targets).sum() / loss.weights(ours.detach(), targets).sum()
    torch.testing.assert_close(mean, by_torch, rtol=1e-13, atol=0)
    slopes = [
        torch.autograd.grad(each, at, create_graph=True)[0]
        for each, at in ((mean, ours), (by_torch, given))
    ]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-16)
    seconds = [
        torch.autograd.grad(each.square().sum(), at)[0]
        for each, at in zip(slopes, (ours, given), strict=True)
    ]
    torch.testing.assert_close(*seconds, rtol=1e-12, atol=1e-16)
