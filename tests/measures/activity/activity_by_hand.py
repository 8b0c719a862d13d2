"""Activity by its definitions, in loops over samples and outputs."""

import pytest
import torch

RECTIFIED = ["activity.frequency", "activity.death"]


def drawn(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def by_hand(rectified):
    """η and ξ of one place, from its outputs of every sample, by their definitions."""
    samples = [a.flatten() for a in rectified]
    size = samples[0].numel()
    dead = [i for i in range(size) if all(float(a[i]) == 0.0 for a in samples)]
    shares = []
    for a in samples:
        zeros = sum(float(a[i]) == 0.0 for i in range(size) if i not in dead)
        shares.append(1 - zeros / (size - len(dead)) if len(dead) < size else 0.0)
    return sum(shares) / len(shares), len(dead), size, shares


def check(report, places):
    """The report against {place: outputs of all samples}."""
    found = {name: report.layers[name] for name in RECTIFIED}
    expected = {place: by_hand(outputs) for place, outputs in places.items()}
    assert list(found["activity.frequency"]) == list(expected)
    assert list(found["activity.death"]) == list(expected)
    for place, (eta, dead, size, shares) in expected.items():
        one = found["activity.frequency"][place]
        assert one.value == pytest.approx(eta, rel=1e-13), place
        error = torch.tensor(shares, dtype=torch.float64).std() / len(shares) ** 0.5
        assert one.data_stderr == pytest.approx(float(error), rel=1e-9, abs=1e-12)
        assert found["activity.death"][place].value == pytest.approx(dead / size, rel=1e-15), place
    mean = sum(eta for eta, *_ in expected.values()) / len(expected)
    assert report["activity.frequency"].value == pytest.approx(mean, rel=1e-13)
    dead = sum(row[1] for row in expected.values()) / sum(row[2] for row in expected.values())
    assert report["activity.death"].value == pytest.approx(dead, rel=1e-15)
    assert all(report[name].exact for name in RECTIFIED)


def batches(x, y, size=3):
    return list(zip(x.split(size), y.split(size), strict=True))


def labels(count, generator, classes=3):
    return torch.randint(classes, (count,), generator=generator)
