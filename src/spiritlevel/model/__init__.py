"""Everything that touches a user's model and data."""
