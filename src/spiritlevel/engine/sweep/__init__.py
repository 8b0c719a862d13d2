"""One backward pass per output column, contracted by every layer as the signal arrives."""
