from collections.abc import Generator

import pytest
from _pytest.doctest import DoctestModule

pytest_plugins = ["plumbing"]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Files of tests have no doctests, and looking for some takes seconds."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]
