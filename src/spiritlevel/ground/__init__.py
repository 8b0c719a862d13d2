"""What everything stands on: errors, checks of values, files, text, plugins, a user's code."""
