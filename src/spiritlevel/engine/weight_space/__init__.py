"""Work in the space of all weights: products, probes, eigenvalues, noise."""
