"""What a study and its runs are asked to do: typed, and checked when a study is read."""
