"""The local server behind the page: this machine only, fixed addresses, nothing by path.

Beside the state it hands out the page, its scripts and styles. A page of another site can make the
reader's browser ask this server, so a request must name it by its own address in `Host`: a name
that was pointed here for the purpose (DNS rebinding) is refused. No answer may be read or framed by
another site.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import socketserver
import sys
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.pages.report import scripts
from spiritlevel.pages.report.page import LOGO

from .reading import cause
from .sources import Watched

HTML, CSS, JAVASCRIPT = "text/html", "text/css", "text/javascript"
OF_THE_REPORT = ("page.css", "early.js", "page.js")  # colours, tables, pictures: one look for both
OWN = ("watch.css", "watch.js", "dom.js", "study.js", "monitor.js")
LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 8765, 20  # tried one after the other where none is asked for
STATE = "/state.json"
HEADERS = {
    # Plotly writes style elements and attributes of its own: styles alone may stand in the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass(frozen=True)
class Content:
    """An answer's body and its kind."""

    kind: str
    body: bytes


def contents() -> dict[str, Content]:
    """Everything the server hands out, by address. No address is ever looked up on the disk."""
    page = _own("watch.html").replace("<!-- logo -->", LOGO)
    contents_by_address = {
        "/": _content(HTML, page),
        "/plotly.js": _content(JAVASCRIPT, scripts.plotly()),
    }
    texts = {name: scripts.asset(name) for name in OF_THE_REPORT}
    texts |= {name: _own(name) for name in OWN}
    for name, text in texts.items():
        contents_by_address[f"/assets/{name}"] = _content(
            CSS if name.endswith(".css") else JAVASCRIPT, text
        )
    return contents_by_address


def _own(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")


def _content(kind: str, text: str) -> Content:
    return Content(f"{kind}; charset=utf-8", text.encode())


class Server(ThreadingHTTPServer):
    """Serves the page about one path; `serve_forever` works until `shutdown`."""

    daemon_threads = True  # a page that is still open does not keep the program from ending
    allow_reuse_address = os.name == "posix"  # elsewhere two programs could have one port
    allow_reuse_port = False
    request_queue_size = 64

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched = watched
        self.contents = contents()
        super().__init__((LOOPBACK, port), Handler)
        self.port: int = self.server_address[1]
        names = (LOOPBACK, "localhost", "[::1]")
        self.hosts = {f"{name}:{self.port}" for name in names}
        if self.port == 80:  # browsers leave it out
            self.hosts |= set(names)

    def server_bind(self) -> None:
        """Bind without looking up a name for the address, which might ask the network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed in the middle of an answer is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{LOOPBACK}:{self.port}/"


def open_server(watched: Watched, port: int | None = None) -> Server:
    """A server that listens already.

    Args:
        watched: what the page is about.
        port: 0 is any that is free, None the first free one from 8765 on.
    """
    if port is not None and not 0 <= port <= 65535:
        raise SpiritlevelError(f"The 'port' must be between 0 and 65535. Got {port}.")
    for each in range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else (port,):
        with contextlib.suppress(OSError):
            return Server(watched, each)
    asked = f"{FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all" if port is None else f"{port} is"
    raise SpiritlevelError(
        f"The page needs a free port. {asked} taken, or you may not use it. Choose another with "
        "--port, or 0 for any."
    )


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds that a silent connection is kept

    def parse_request(self) -> bool:
        """Refuse foreign names, other methods and bodies before anything is looked up."""
        if not super().parse_request():
            return False
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body is not read: what follows is no request
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].strip().lower() not in self.server.hosts:
            self._refuse(
                HTTPStatus.FORBIDDEN, f"This page is only at {self.server.address}: open it there."
            )
            return False
        if self.command not in ("GET", "HEAD"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "This page can only be read.")
            return False
        return True

    def do_GET(self) -> None:
        """The page, what belongs to it, or the state; an address is taken as it stands."""
        path, _, query = self.path.partition("?")
        if path == STATE:
            self._send_state(query)
        elif path in self.server.contents:
            self._send(HTTPStatus.OK, self.server.contents[path])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"There is nothing here. Open {self.server.address}")

    do_HEAD = do_GET

    def _send_state(self, query: str) -> None:
        try:
            chosen = urllib.parse.parse_qs(query, max_num_fields=1).get("measure", [""])[0]
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "Only a measure can be asked for: ?measure=NAME")
            return
        try:
            body = self.server.watched.answer(chosen)
        except Exception as error:  # the page shows it, and asks again
            text = f"The state could not be read: {type(error).__name__}: {cause(error)}"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, text)
            return
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        unchanged = self.headers.get("If-None-Match") == tag
        content = Content("application/json; charset=utf-8", b"" if unchanged else body)
        self._send(HTTPStatus.NOT_MODIFIED if unchanged else HTTPStatus.OK, content, ETag=tag)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True
        extra = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._send(status, Content("text/plain; charset=utf-8", text.encode()), **extra)

    def _send(self, status: HTTPStatus, content: Content, **headers: str) -> None:
        self.send_response(status)
        for name, value in (HEADERS | headers).items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", content.kind)
            self.send_header("Content-Length", str(len(content.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the errors of http.server as plain text with the same headers."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def version_string(self) -> str:
        """The name alone: nobody needs to know which Python this is."""
        return "spiritlevel"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: only the command line prints."""
