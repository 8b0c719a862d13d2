"""Chromium for the pages of studies."""

from opened_pages import browser as browser
from opened_pages import named_rows_of as named_rows_of
from opened_pages import open_page as open_page
from opened_pages import pytest_runtest_teardown as pytest_runtest_teardown
from opened_pages import pytest_sessionfinish as pytest_sessionfinish
