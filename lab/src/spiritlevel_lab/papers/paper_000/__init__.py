"""The experiments of paper 000."""
