"""The head: the last linear layer of a network, whose flatness has a closed form."""
