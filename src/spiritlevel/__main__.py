"""`python -m spiritlevel`, where the installed command is not on the path."""

from .cli import main

main()
