"""Slope and curvature of the loss along given changes of the weights: rounding, deletion."""
