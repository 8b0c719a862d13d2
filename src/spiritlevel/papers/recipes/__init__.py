"""Analyses that are data: a study's file says which groups, numbers, parts and sentences."""
