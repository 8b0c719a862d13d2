"""Largest eigenvalues of many matrices at once against a dense solver."""

import pytest
import torch

from spiritlevel.measures.decomposition.matrices import largest_eigenvalues


def spectra(count, size, rank, generator):
    factor = torch.randn(count, size, rank, generator=generator, dtype=torch.float64)
    return factor @ factor.mT


def solve(matrices, generator, **options):
    start = torch.randn(matrices.shape[:2], generator=generator, dtype=torch.float64)
    return largest_eigenvalues(
        lambda v: (matrices @ v[:, :, None]).squeeze(2),
        start,
        **{"max_steps": 100, "enough": lambda values, residuals: False} | options,
    )


@pytest.mark.parametrize("rank", [1, 2, 7, 12])
def test_all_steps_give_the_dense_answer(rank, generator):
    matrices = spectra(5, 12, rank, generator)
    found = solve(matrices, generator)
    expected = torch.linalg.eigvalsh(matrices)[:, -1]
    torch.testing.assert_close(found.values, expected, rtol=1e-12, atol=0)
    assert found.steps == 12


def test_samples_that_end_early_do_not_disturb_the_others(generator):
    matrices = spectra(4, 10, 10, generator)
    matrices[1] = 0.0
    matrices[2] = torch.eye(10) * 3.0
    matrices[3] *= 1e-20
    found = solve(matrices, generator)
    expected = torch.linalg.eigvalsh(matrices)[:, -1]
    torch.testing.assert_close(found.values, expected, rtol=1e-12, atol=1e-300)


def test_an_eigenvalue_lies_within_the_residual_of_every_step(generator):
    matrices = spectra(6, 30, 30, generator)
    dense = torch.linalg.eigvalsh(matrices)
    seen = []

    def watch(values, residuals):
        apart = (dense - values[:, None]).abs().amin(dim=1)
        assert bool((apart <= residuals * (1 + 1e-9) + 1e-10).all())
        assert bool((values <= dense[:, -1] * (1 + 1e-12)).all())  # never too large
        seen.append(residuals.max())
        return False

    solve(matrices, generator, enough=watch)
    assert seen[-1] < 1e-9 * dense.max()


def test_stops_when_told(generator):
    matrices = spectra(3, 40, 40, generator)
    found = solve(
        matrices, generator, enough=lambda v, r: bool((r <= 1e-6 * v).all()), max_steps=40
    )
    assert found.steps < 40
    expected = torch.linalg.eigvalsh(matrices)[:, -1]
    torch.testing.assert_close(found.values, expected, rtol=1e-10, atol=0)
    assert solve(matrices, generator, max_steps=3).steps == 3
