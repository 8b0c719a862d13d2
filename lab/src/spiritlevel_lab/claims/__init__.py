"""How a claim of a paper is judged from the runs of a study."""
