"""The experiments of paper 004."""
