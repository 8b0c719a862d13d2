import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# A shell that starts the tests in the background has them ignore Ctrl-C, and some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests choose their dtype themselves; the thread count is fixed so that sums run in one order.
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")  # while it runs, so does an event loop that others stumble over
def browser() -> Iterator[Any]:
    """Debian's Chromium, or a skip that says what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed: apt install chromium")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()
