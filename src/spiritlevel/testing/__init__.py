"""Tests for measures, also for those of other packages: the contract that every card has to keep.

    from spiritlevel.testing import checks

    @pytest.mark.parametrize("check", checks("mine.mean_eigenvalue"), ids=str)
    def test_contract(check):
        check()

Or all of it at once: `check_measure("mine.mean_eigenvalue")`. For tests of your own there are slow
truths to compare with: `Truth` holds dense Hessians and Gauss-Newton matrices in float64.
"""

from .contract import ClaimCheck as ClaimCheck
from .contract import check_measure as check_measure
from .contract import checks as checks
from .moves import problem_named as problem_named
from .references import Truth as Truth
from .references import hessian_of as hessian_of
