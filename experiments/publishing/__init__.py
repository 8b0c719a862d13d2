"""The pages of this repository on the papers' experiments, made from recorded results."""
