"""What one run does: train a network, measure it, hand over the result."""
