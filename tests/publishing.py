"""The package experiments/publishing for tests, without its folder on the path.

There is a `pages.py` in that folder, which would hide the helpers in tests/pages.
"""

import pathlib

__path__ = [str(pathlib.Path(__file__).parents[1] / "experiments" / "publishing")]
