"""The version of both distributions, which are released together."""

__version__ = "0.1.0"
