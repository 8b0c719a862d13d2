"""Optimizers that take the gradient at perturbed weights: SAM and its variants."""
