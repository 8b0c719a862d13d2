"""Values with their errors: what the rooms hand to each other, files, and how records look."""
