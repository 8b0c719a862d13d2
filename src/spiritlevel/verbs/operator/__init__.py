"""The curvature matrix of a network for other tools: products, solutions, and the diagonal."""

from .curvature_operator import CurvatureOperator, operator
from .diagonals import Diagonal, diagonal
from .solving import Solution

__all__ = ["CurvatureOperator", "Diagonal", "Solution", "diagonal", "operator"]
