"""`python -m spiritlevel`, where the installed command is not on the path."""

import os
import sys

# Python puts the working folder first. A downloaded one may hold a yaml.py or a typer.py.
if sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]

from .cli import main

main()
