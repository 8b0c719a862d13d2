"""Chromium, with every page it opens watched: no error, no request, no dialog."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import chromium

LOCAL = ("data:", "blob:", "about:")
RUNNING = contextlib.ExitStack()
STARTED: list[Any] = []


@pytest.fixture
def browser() -> Any:
    """Debian's Chromium, started once for a folder: it takes as long as most of the tests."""
    if not STARTED:
        STARTED.append(RUNNING.enter_context(chromium.started()))
    return STARTED[0]


def close_browser() -> None:
    STARTED.clear()
    RUNNING.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """While it runs, so does an event loop that the tests of other folders stumble over."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        close_browser()


def pytest_sessionfinish() -> None:
    close_browser()


class Opener:
    """`open_page(html, width=1280, dark=False) -> page`; `offences` are raised after the test."""

    def __init__(self, browser: Any, folder: pathlib.Path) -> None:
        self.browser, self.folder = browser, folder
        self.contexts: list[Any] = []
        self.offences: list[str] = []

    def __call__(self, html: str, *, width: int = 1280, dark: bool = False) -> Any:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
        )
        self.contexts.append(context)
        page = context.new_page()
        path = self.folder / f"page-{len(self.contexts)}.html"
        path.write_text(html, encoding="utf-8")

        def refuse(dialog: Any) -> None:
            self.offences.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        def request(request: Any) -> None:
            if not request.url.startswith((*LOCAL, path.as_uri())):
                self.offences.append(f"request: {request.url}")

        def console(message: Any) -> None:
            if message.type in ("error", "warning"):
                self.offences.append(f"console {message.type}: {message.text}")

        page.on("dialog", refuse)
        page.on("request", request)
        page.on("console", console)
        page.on("pageerror", lambda error: self.offences.append(f"error: {error}"))
        page.goto(path.as_uri())
        return page


@pytest.fixture
def open_page(browser: Any, tmp_path: pathlib.Path) -> Iterator[Opener]:
    opener = Opener(browser, tmp_path)
    yield opener
    for context in opener.contexts:
        context.close()
    assert opener.offences == []


def rows_of(page: Any, identifier: str) -> list[list[str]]:
    """The cells that a reader sees in a table, row by row."""
    return page.eval_on_selector_all(
        f"#{identifier} tbody tr:not([hidden])",
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))",
    )


@pytest.fixture(name="rows_of")
def named_rows_of():
    return rows_of
