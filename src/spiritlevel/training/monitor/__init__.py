"""Measuring flatness while a network trains, without touching the training."""
