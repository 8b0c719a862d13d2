"""The experiments of paper 001."""
