"""The curvature matrix of a network for other tools: products, solutions, and the diagonal."""

from .curvature_operator import CurvatureOperator, Solution, operator
from .diagonals import Diagonal, diagonal

__all__ = ["CurvatureOperator", "Diagonal", "Solution", "diagonal", "operator"]
