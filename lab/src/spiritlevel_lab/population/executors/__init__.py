"""Ways to work through the runs of a store."""
