"""What one run does: train a network, measure it, return the result."""
