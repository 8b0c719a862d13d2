"""What people look at: HTML reports, figures, and the live page."""
