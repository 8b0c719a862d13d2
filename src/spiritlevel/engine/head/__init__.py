"""The last linear map of a network, whose flatness has a closed form."""
