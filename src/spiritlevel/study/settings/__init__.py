"""What a study and its runs are asked to do: read, checked, typed."""
