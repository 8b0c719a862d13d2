"""Reports and figures of studies, and the live page."""
