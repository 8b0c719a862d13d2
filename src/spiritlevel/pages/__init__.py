"""What people look at: HTML reports and figures."""
