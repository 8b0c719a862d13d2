"""Climbs on quadratics against all eigenvalues and the secular equation."""

import pytest
import torch

from measures.forms.sharpness import highest_in_ball
from spiritlevel.measures.sharpness.ascent import Point, ascend, peak_in_ball

RADIUS = 0.5
SIZE = 12


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_spectrum(values):
    Q, _ = torch.linalg.qr(drawn(len(values), len(values)))
    return Q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ Q.T


SPECTRA = {
    "bowl": [0.1 * i for i in range(SIZE)],
    "saddle": [-1.0 + 0.2 * i for i in range(SIZE)],
    "mostly_down": [-5.0, -4.0, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.1, 0.2, 0.4, 1.0],
    "hill": [-3.0 + 0.2 * i for i in range(SIZE)],  # the top lies inside the ball
    "flat": [0.0] * SIZE,
}


class Quadratic:
    """g'u + u'Hu/2, which notes the losses it was asked for."""

    def __init__(self, H, g):
        self.H, self.g, self.seen = H, g, []

    def __call__(self, u):
        self.seen.append(3.0 + float(self.g @ u + u @ self.H @ u / 2))
        return self.seen[-1], self.g + self.H @ u

    def climb(self, start, *, steps=40, memory=40, inside=True):
        centre = Point(torch.zeros_like(self.g), 3.0, self.g)
        start = start * (RADIUS / start.norm())
        options = {"radius": RADIUS, "steps": steps, "memory": memory, "round_off": 1e-15}
        return ascend(self, centre, start, inside=inside, **options)


@pytest.mark.parametrize("size", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_top_of_a_quadratic_in_a_ball(name, size):
    H, g = with_spectrum(SPECTRA[name]), size * drawn(SIZE, seed=1)
    z = peak_in_ball(H, g, RADIUS)
    assert float(z.norm()) <= RADIUS * (1 + 1e-14)
    value = float(g @ z + z @ H @ z / 2)
    assert value == pytest.approx(highest_in_ball(H, g, RADIUS), rel=1e-12)


def test_the_top_where_the_linear_term_misses_the_largest_eigenvector():
    H, g = torch.diag(torch.tensor([2.0, -1.0]).double()), drawn(2) * 0
    g[1] = 0.3
    z = peak_in_ball(H, g, 1.0)
    # by hand: (2 + 1) z_1 = 0.3, and the rest of the radius along the first axis
    assert z.abs().tolist() == pytest.approx([0.99**0.5, 0.1], rel=1e-13)


@pytest.mark.parametrize("size", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("name", SPECTRA)
def test_a_climb_along_the_gradient_finds_the_exact_peak(name, size):
    quadratic = Quadratic(with_spectrum(SPECTRA[name]), size * drawn(SIZE, seed=1))
    found = quadratic.climb(quadratic.g)
    exact = highest_in_ball(quadratic.H, quadratic.g, RADIUS)
    assert found.rise == pytest.approx(exact, rel=1e-10)
    assert abs(found.rise - exact) <= found.residual + 1e-14  # round-off of losses around 3
    assert found.unfinished == 0.0


@pytest.mark.parametrize("name", ["bowl", "saddle", "mostly_down"])
def test_without_a_gradient_a_random_start_finds_the_largest_eigenvalue(name):
    H = with_spectrum(SPECTRA[name])
    found = Quadratic(H, torch.zeros(SIZE).double()).climb(drawn(SIZE, seed=2), inside=False)
    assert found.rise == pytest.approx(RADIUS**2 * max(SPECTRA[name]) / 2, rel=1e-9)


def test_where_all_directions_lead_down_the_centre_is_the_peak():
    H = with_spectrum(SPECTRA["hill"])
    assert Quadratic(H, torch.zeros(SIZE).double()).climb(drawn(SIZE), inside=False).rise == 0.0


def test_a_normalized_gradient_iteration_would_run_to_the_wrong_end():
    # Meta-test: the spectrum above is one where the plain iteration fails.
    H, g = with_spectrum(SPECTRA["mostly_down"]), 1e-3 * drawn(SIZE, seed=1)
    u = g * (RADIUS / g.norm())
    for _ in range(200):
        gradient = g + H @ u
        u = gradient * (RADIUS / gradient.norm())
    assert float(g @ u + u @ H @ u / 2) < -0.1
    assert highest_in_ball(H, g, RADIUS) > 0.1


@pytest.mark.parametrize("name", ["bowl", "saddle"])
def test_three_remembered_points_suffice(name):
    quadratic = Quadratic(with_spectrum(SPECTRA[name]), 0.01 * drawn(SIZE, seed=1))
    found = quadratic.climb(quadratic.g, steps=60, memory=2)
    assert found.rise == pytest.approx(highest_in_ball(quadratic.H, quadratic.g, RADIUS), rel=1e-9)


def test_more_steps_never_lose_and_the_residual_covers_what_is_missing():
    quadratic = Quadratic(with_spectrum(SPECTRA["mostly_down"]), 1e-3 * drawn(SIZE, seed=1))
    exact = highest_in_ball(quadratic.H, quadratic.g, RADIUS)
    peaks = [quadratic.climb(quadratic.g, steps=steps) for steps in range(1, 24)]
    rises = [peak.rise for peak in peaks]
    assert rises == sorted(rises)
    assert [peak.steps for peak in peaks[:8]] == list(range(1, 9))
    for peak in peaks:  # with few steps it has hardly left the saddle, but says so
        assert exact - peak.rise <= peak.residual + 1e-14 or peak.unfinished > 0.1 * peak.rise
    assert sum(exact - peak.rise <= peak.residual + 1e-14 for peak in peaks) >= 5


def test_a_kink_does_not_derail_the_climb():
    # |a'u| bends down along a: the peak lies on the kink a'u = 0, where no gradient vanishes
    a, g = drawn(SIZE, seed=4), drawn(SIZE, seed=5)
    a /= a.norm()

    def slope(u):
        return float(g @ u - 2 * (a @ u).abs()), g - 2 * torch.sign(a @ u) * a

    along = g - (g @ a) * a  # 2 is steeper than g is along a
    centre = Point(torch.zeros(SIZE).double(), 0.0, g)
    start = g * (RADIUS / g.norm())
    found = ascend(
        slope, centre, start, radius=RADIUS, steps=60, memory=60, round_off=1e-15, inside=True
    )
    exact = RADIUS * float(along.norm())
    assert abs(float(g @ a)) < 2
    assert exact * (1 - 1e-3) <= found.rise <= exact * (1 + 1e-12)
