"""The server answers this machine's own page, and nothing and nobody else."""

import http.client
import json
import re
import socket
import threading

import pytest

from pages.watch.visits import add_rows, ask, row, serving
from spiritlevel import SpiritlevelError
from spiritlevel_lab.pages.watch import Watched, open_server, server


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    add_rows(folder / "run.jsonl", row(1))
    (folder / "secret.txt").write_text("secret")
    (folder / "link.js").symlink_to("/etc/passwd")
    with serving(folder) as found:
        yield found


ADDRESSES = ["/", "/state.json", "/plotly.js", "/assets/page.css", "/assets/watch.js"]


@pytest.mark.parametrize("path", ADDRESSES)
def test_what_there_is(served, path):
    status, headers, body = ask(served, path)
    assert status == 200
    assert len(body) == int(headers["Content-Length"]) > 0
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("Access-Control")]
    assert "Python" not in headers["Server"]
    status, _, empty = ask(served, path, "HEAD")
    assert (status, empty) == (200, b"")


def test_every_colour_that_is_used_is_there(served):
    styles = "".join(ask(served, f"/assets/{name}.css")[2].decode() for name in ("page", "watch"))
    used = set(re.findall(r"var\((--[\w-]+)\)", styles))
    assert "--warn" in used
    assert used <= set(re.findall(r"(--[\w-]+):", styles))


def test_only_this_machine_can_connect(served):
    assert served.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:{other}",
        "127.0.0.1.evil.example:{port}",
        "evil.example@127.0.0.1:{port}",
        "127.0.0.1:{port}@evil.example",
        "127.0.0.1:{port}.evil.example",
        "0.0.0.0:{port}",
        "2130706433:{port}",
        "127.1:{port}",
    ],
)
@pytest.mark.parametrize("path", ["/", "/state.json", "/nothing"])
def test_foreign_hosts_are_refused(served, host, path):
    filled = host and host.format(port=served.port, other=served.port + 1)
    status, headers, body = ask(served, path, Host=filled)
    assert status == 403
    assert served.address in body.decode()
    assert "Content-Security-Policy" in headers


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LocalHost", "[::1]"])
def test_own_names_are_answered(served, name):
    assert ask(served, Host=f"{name}:{served.port}")[0] == 200


def raw(served, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(2**16):
            found += part
        return found


def test_two_hosts_are_refused(served):
    own = f"Host: 127.0.0.1:{served.port}\r\n"
    for both in (own + "Host: evil.example\r\n", "Host: evil.example\r\n" + own):
        assert raw(served, f"GET / HTTP/1.1\r\n{both}\r\n".encode()).startswith(b"HTTP/1.1 403")


PATHS = [
    "/secret.txt",
    "/link.js",
    "/assets/",
    "/assets/../state.json",
    "/assets/../../server.py",
    "/assets/..%2f..%2fserver.py",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/..\\..\\etc\\passwd",
    "//etc/passwd",
    "/etc/passwd",
    "/assets//etc/passwd",
    "/assets/watch.js%00.txt",
    "/assets/watch.js/",
    "/state.json/",
    "/STATE.JSON",
    "/runs.sqlite",
    "http://127.0.0.1/state.json",
    "http://evil.example/",
    "*",
]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_by_path(served, path):
    status, _, body = ask(served, path)
    assert status == 404
    assert b"secret" not in body
    assert b"root:" not in body


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "MADE_UP"]
)
def test_only_reading(served, method):
    status, headers, _ = ask(served, "/state.json", method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


def test_a_body_is_never_taken_for_a_request(served):
    own = f"Host: 127.0.0.1:{served.port}\r\n"
    inner = f"GET /plotly.js HTTP/1.1\r\n{own}\r\n"
    for method in ("POST", "GET"):
        head = f"{method} /state.json HTTP/1.1\r\n{own}Content-Length: {len(inner)}\r\n\r\n"
        answer = raw(served, (head + inner).encode())
        assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"nonsense\r\n\r\n", b"Bad request syntax"),
        (b"GET / HTTP/9.9\r\n\r\n", b"Invalid HTTP version"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n", b" 431 "),
    ],
)
def test_malformed_requests_are_answered_and_survived(served, request_, answer):
    assert answer in raw(served, request_)
    assert ask(served)[0] == 200


@pytest.mark.parametrize("query", ["measure=" + "%ff" * 50, "measure", "measure=%", "other=1", ""])
def test_any_measure_may_be_asked_for(served, query):
    assert ask(served, f"/state.json?{query}")[0] == 200


def test_more_than_a_measure_may_not(served):
    assert ask(served, "/state.json?measure=a&measure=b")[0] == 400


def test_nothing_is_sent_twice(tmp_path):
    path = tmp_path / "run.jsonl"
    add_rows(path, row(1))
    with serving(path) as served:
        status, headers, _ = ask(served)
        tag = headers["ETag"]
        known = {"If-None-Match": tag}
        status, headers, body = ask(served, **known)
        assert (status, body, headers["ETag"]) == (304, b"", tag)
        add_rows(path, row(2))
        status, headers, body = ask(served, **known)
        assert status == 200
        assert headers["ETag"] != tag
        assert json.loads(body)["monitors"][0]["steps"] == [1, 2]


def test_many_clients_at_once(served):
    answers = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        for _ in range(5):  # on one connection
            connection.request("GET", "/state.json")
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 100
    assert {status for status, _ in answers} == {200}
    assert len({body for _, body in answers}) == 1


def test_a_failure_of_ours_is_told_and_survived(tmp_path, monkeypatch):
    with serving(tmp_path) as served:
        monkeypatch.setattr(served.watched, "answer", lambda measure: 1 / 0)
        status, _, body = ask(served)
        assert (status, b"ZeroDivisionError" in body) == (500, True)
        monkeypatch.undo()
        assert ask(served)[0] == 200


def test_ports(tmp_path, monkeypatch):
    watched = Watched(tmp_path)
    with open_server(watched, 0) as first:
        with pytest.raises(SpiritlevelError, match=f"{first.port} is taken"):
            open_server(watched, first.port)
        monkeypatch.setattr(server, "FIRST_PORT", first.port)
        monkeypatch.setattr(server, "PORTS", 1)
        with pytest.raises(SpiritlevelError, match="all taken"):
            open_server(watched)
        monkeypatch.setattr(server, "PORTS", 20)
        with open_server(watched) as second:  # the next one that is free
            assert first.port < second.port < first.port + 20
    with pytest.raises(SpiritlevelError, match="65535"):
        open_server(watched, 70_000)
