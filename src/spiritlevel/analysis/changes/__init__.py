"""Changes of the weights: what each does to the loss, the best within a budget, and a check."""
