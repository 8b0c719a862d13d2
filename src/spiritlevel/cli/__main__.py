"""`python -m spiritlevel.cli`, where the installed command is not on the path."""

from . import main

main()
