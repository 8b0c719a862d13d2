"""Studies that come with the package."""
