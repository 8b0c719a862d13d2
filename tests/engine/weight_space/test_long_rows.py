"""Sums over long rows, and rows made orthogonal to others."""

import pytest
import torch

from spiritlevel.engine.weight_space.long_rows import project_out
from zoo.plain import random


@pytest.mark.parametrize("near", [0, 2, 20, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_left_is_orthogonal_however_little_it_is(dtype, near):
    onto = torch.linalg.qr(random(300, 20)).Q.T.contiguous().to(dtype)
    rest = random(2, 300, seed=1).to(dtype)
    along = random(2, 20, seed=2).double()
    for size in (1.0, 1e-4):
        rows = (along.to(dtype) @ onto + size * rest).clone()
        before = rows.double() @ onto.double().T
        removed = project_out(rows, onto, near=near)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(removed, before, rtol=0, atol=100 * eps)
        left = (rows.double() @ onto.double().T).norm(dim=1) / rows.double().norm(dim=1)
        # a few units in the last place for each of the 20 rows
        assert float(left.max()) < 40 * eps
