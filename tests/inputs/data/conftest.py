"""Downloads from a server of our own."""

import threading

import pytest

from inputs.data.file_server import CONTENT, Server, add
from spiritlevel.inputs.data import download


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pauses(monkeypatch):
    """Seconds that would have been waited."""
    waited = []
    monkeypatch.setattr(download, "_sleep", waited.append)
    return waited


@pytest.fixture
def toy(server, monkeypatch):
    """A data set "toy" of one file that the server has; gives its entry."""
    server.files["/toy/data.bin"] = CONTENT
    return add(monkeypatch, "toy", {"data.bin": CONTENT}, (f"{server.address}/toy/",))
