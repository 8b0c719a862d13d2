"""The experiments of paper 003."""
