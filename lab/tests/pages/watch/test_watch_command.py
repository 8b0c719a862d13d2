"""`spiritlevel watch` on the command line."""

import contextlib
import http.client
import json
import signal
import socket
import threading
import time

import pytest

from pages.watch.visits import add_rows, row
from spiritlevel.cli.app import app


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        app([str(each) for each in arguments])
    return ended.value.code


def test_state_as_json_without_a_page(tmp_path, capsys):
    add_rows(tmp_path / "run.jsonl", row(7))
    assert run("watch", tmp_path, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["monitors"][0]["steps"] == [7]


def test_a_port_that_is_none(tmp_path, capsys):
    assert run("watch", tmp_path, "--port", 70000) == 2
    assert "--port" in capsys.readouterr().err


def test_it_serves_until_interrupted(tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = []

    def reader() -> None:
        try:
            end = time.monotonic() + 60
            while not answers and time.monotonic() < end:
                with contextlib.suppress(ConnectionError):  # it is not there yet
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                    connection.request("GET", "/state.json")
                    answers.append(json.loads(connection.getresponse().read()))
        finally:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=reader)
    thread.start()
    code = run("watch", tmp_path / "later", "--port", port)
    thread.join()
    out, err = capsys.readouterr()
    assert "nothing at" in answers[0]["waiting"]
    assert out.startswith(f"Watching {tmp_path / 'later'} at http://127.0.0.1:{port}/\n")
    assert out.endswith("Stopped watching. The study or monitor continues.\n")
    assert (code, err) == (0, "")
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
