"""Kernel densities against scikit-learn, scipy, automatic derivatives and quadrature."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import sklearn.neighbors
import torch

from spiritlevel.math import kde
from spiritlevel.math.kde import GaussianMixture


@pytest.fixture
def points(generator):
    return torch.randn(13, 4, generator=generator, dtype=torch.float64) * 2 + 0.5


def density_by_hand(centers, h):
    """p(z) as the plain sum, differentiable: nothing in log space."""
    m = centers.shape[1]

    def p(z):
        squares = (z - centers).square().sum(dim=1)
        return torch.exp(-squares / (2 * h * h)).mean() / (2 * math.pi * h * h) ** (m / 2)

    return p


# -- the density and its derivatives -------------------------------------------------------------


@pytest.mark.parametrize("h", [0.3, 1.0, 5.0])
def test_log_density_is_that_of_scikit_learn(points, generator, h):
    z = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    fitted = sklearn.neighbors.KernelDensity(bandwidth=h, rtol=0, atol=0).fit(points.numpy())
    found = GaussianMixture(points, h).log_density(z)
    np.testing.assert_allclose(found, fitted.score_samples(z.numpy()), rtol=1e-12)


def test_density_in_one_dimension_is_that_of_scipy(points):
    x = points[:, :1]
    fitted = scipy.stats.gaussian_kde(x[:, 0].numpy(), bw_method=0.4)
    h = 0.4 * float(x.std())
    z = torch.linspace(-4, 4, 9, dtype=torch.float64)[:, None]
    found = GaussianMixture(x, h).log_density(z).exp()
    np.testing.assert_allclose(found, fitted(z[:, 0].numpy()), rtol=1e-12)


def test_derivatives_are_those_of_the_density_by_hand(points, generator):
    h = 1.3
    mixture, p = GaussianMixture(points, h), density_by_hand(points, h)
    z = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    gradient, laplacian = mixture.derivatives(z)
    weighted = mixture.weighted_laplacian(z)
    for i, at in enumerate(z):
        slope = torch.func.grad(p)(at) / p(at)
        torch.testing.assert_close(gradient[i], slope, rtol=1e-12, atol=1e-13)
        second = torch.func.hessian(p)(at).trace() / p(at)
        assert float(laplacian[i]) == pytest.approx(float(second), rel=1e-11)
        product = torch.func.hessian(lambda v: p(v) * v.square().sum())(at).trace() / p(at)
        assert float(weighted[i]) == pytest.approx(float(product), rel=1e-11)


def test_derivatives_by_finite_differences(points):
    h, step = 0.9, 1e-3
    mixture = GaussianMixture(points, h)
    z = points[:2] + 0.3
    gradient, laplacian = mixture.derivatives(z)
    sides = [z + sign * step * axis for axis in torch.eye(4).double() for sign in (1, -1)]
    logs = [mixture.log_density(side) for side in sides]
    here = mixture.log_density(z)
    slopes = torch.stack([(u - d) / (2 * step) for u, d in zip(logs[::2], logs[1::2], strict=True)])
    torch.testing.assert_close(gradient, slopes.T, rtol=1e-5, atol=1e-5)
    bends = sum(
        (u - here).exp() + (d - here).exp() - 2 for u, d in zip(logs[::2], logs[1::2], strict=True)
    )
    torch.testing.assert_close(laplacian, bends / step**2, rtol=1e-4, atol=1e-4)


def test_far_tails_do_not_underflow(points):
    mixture = GaussianMixture(points, 0.01)
    far = torch.full((1, 4), 1e3, dtype=torch.float64)
    gradient, laplacian = mixture.derivatives(far)
    nearest = (points - far).square().sum(dim=1).min()
    expected = -nearest / (2 * 0.01**2) - math.log(13) - 4 * math.log(0.01 * (2 * math.pi) ** 0.5)
    assert float(mixture.log_density(far)) == pytest.approx(float(expected), rel=1e-12)
    assert bool(torch.isfinite(gradient).all())
    assert bool(torch.isfinite(laplacian).all())


def test_points_far_from_the_origin_keep_their_distances(points):
    z = points + 0.1
    near = GaussianMixture(points, 0.5).log_density(z)
    far = GaussianMixture(points + 1e6, 0.5).log_density(z + 1e6)
    torch.testing.assert_close(near, far, rtol=1e-8, atol=0)


def test_blocks_are_small_and_give_the_same(points, monkeypatch):
    mixture = GaussianMixture(points, 0.7)
    z = points + 0.2
    whole = (mixture.log_density(z), *mixture.derivatives(z))
    bandwidths = torch.tensor([0.5, 2.0], dtype=torch.float64)
    likelihood = kde.leave_one_out(points, bandwidths)
    monkeypatch.setattr(kde, "PAIR_BYTES", 8 * 13 * 3)
    sizes = [squares.numel() for _, squares in kde.squared_distances(z, points)]
    assert max(sizes) == 13 * 3
    assert sum(sizes) == 13 * 13
    for now, then in zip((mixture.log_density(z), *mixture.derivatives(z)), whole, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(kde.leave_one_out(points, bandwidths), likelihood)


# -- bandwidths ----------------------------------------------------------------------------------


def leave_one_out_by_hand(points, h):
    total = 0.0
    for i in range(len(points)):
        others = np.delete(points.numpy(), i, axis=0)
        fitted = sklearn.neighbors.KernelDensity(bandwidth=h, rtol=0, atol=0).fit(others)
        total += float(fitted.score_samples(points[i : i + 1].numpy())[0])
    return total / len(points)


def test_leave_one_out_is_that_of_densities_fitted_without_the_point(points):
    bandwidths = [0.2, 1.0, 4.0]
    found = kde.leave_one_out(points, torch.tensor(bandwidths, dtype=torch.float64))
    expected = [leave_one_out_by_hand(points, h) for h in bandwidths]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_most_likely_bandwidth_is_the_maximum(points, m):
    chosen = points[:, :m].contiguous()
    tried = np.geomspace(0.05, 20, 4000)
    values = kde.leave_one_out(chosen, torch.from_numpy(tried))  # checked above
    best = tried[int(values.argmax())]
    assert kde.most_likely(chosen) == pytest.approx(best, rel=0.02)
    value = kde.leave_one_out(chosen, torch.tensor([kde.most_likely(chosen)]).double())
    assert float(value) == pytest.approx(float(values.max()), abs=1e-3)


def test_bandwidths_follow_the_scale_of_the_points(points):
    for rule in (kde.most_likely, kde.scott, kde.silverman):
        assert rule(points * 7.3) == pytest.approx(7.3 * rule(points), rel=1e-12)
        assert rule(points + 5.0) == pytest.approx(rule(points), rel=1e-12)


@pytest.mark.parametrize("m", [1, 3])
def test_rules_of_thumb_are_those_of_scipy(points, m):
    x = points[:, :m].numpy().T
    sigma = math.sqrt(float(points[:, :m].var(dim=0).mean()))
    for rule, name in ((kde.scott, "scott"), (kde.silverman, "silverman")):
        factor = scipy.stats.gaussian_kde(x, bw_method=name).factor
        assert rule(points[:, :m]) == pytest.approx(factor * sigma, rel=1e-12)


def test_points_on_each_other_have_no_most_likely_bandwidth(points):
    assert kde.most_likely(points.repeat(2, 1)) is None


# -- ∫|∇²(p‖z‖²)|: the absolute value belongs inside ----------------------------------------------


def expectation(mixture, function, count, generator):
    """Mean and standard error over points drawn from the mixture."""
    n, m = mixture.centers.shape
    which = torch.randint(n, (count,), generator=generator)
    noise = torch.randn(count, m, generator=generator, dtype=torch.float64)
    values = function(
        mixture.weighted_laplacian(mixture.centers[which] + mixture.bandwidth * noise)
    )
    return float(values.mean()), float(values.std()) / count**0.5


def test_integral_in_one_dimension_by_quadrature(points, generator):
    centers, h = points[:5, :1], 0.8
    x = np.linspace(-20, 20, 400_001)
    squares = (x[None] - centers.numpy()) ** 2
    p = np.exp(-squares / (2 * h * h)).mean(axis=0) / math.sqrt(2 * math.pi * h * h)
    weighted = p * x**2
    second = (weighted[2:] - 2 * weighted[1:-1] + weighted[:-2]) / (x[1] - x[0]) ** 2
    inside = scipy.integrate.trapezoid(np.abs(second), x[1:-1])
    outside = abs(scipy.integrate.trapezoid(second, x[1:-1]))
    assert outside < 1e-6 * inside  # a Laplacian integrates to nothing
    mixture = GaussianMixture(centers, h)
    mean, error = expectation(mixture, torch.abs, 100_000, generator)
    assert abs(mean - inside) < 5 * error
    mean, error = expectation(mixture, lambda f: f, 100_000, generator)
    assert abs(mean) < 5 * error


def test_integral_in_two_dimensions_by_quadrature(points, generator):
    centers, h = points[:4, :2], 1.1
    axis = torch.linspace(-14, 15, 700, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    p = density_by_hand(centers, h)
    values = torch.func.vmap(lambda z: p(z) * z.square().sum())(grid).reshape(700, 700)
    step = float(axis[1] - axis[0])
    inner = values[1:-1, 1:-1]
    second = values[2:, 1:-1] + values[:-2, 1:-1] + values[1:-1, 2:] + values[1:-1, :-2] - 4 * inner
    inside, outside = float(second.abs().sum()), abs(float(second.sum()))  # steps² cancel
    assert outside < 1e-6 * inside
    assert step < 0.05 * h  # the five-point formula is then off by less than the noise below
    mean, error = expectation(GaussianMixture(centers, h), torch.abs, 100_000, generator)
    assert abs(mean - inside) < 5 * error + 1e-3 * inside
