"""Fixing the norms of activations and weights while training."""
