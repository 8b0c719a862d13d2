"""`spiritlevel study`, `demo` and `watch`, joined to the command line by an entry point."""
