"""Recorded results, and the pages made from them."""
