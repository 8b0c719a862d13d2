"""What several tests of estimates share."""

from collections.abc import Iterator

import pytest
import scipy.special

import spiritlevel.engine.estimate


@pytest.fixture(scope="module")
def quick_quantiles() -> Iterator[None]:
    """Quantiles by scipy, to which test_student.py holds the library's own: they are faster."""
    with pytest.MonkeyPatch.context() as patch:
        quick = lambda probability, dof: float(scipy.special.stdtrit(dof, probability))  # noqa: E731
        patch.setattr(spiritlevel.engine.estimate, "t_quantile", quick)
        yield
