"""Penalties on flatness, added to the training loss."""
