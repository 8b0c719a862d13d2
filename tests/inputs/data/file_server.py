"""A server on 127.0.0.1 that can be told to misbehave, and data sets that name it."""

import hashlib
import http.server
import re
import time

from spiritlevel.inputs.data import catalogue
from spiritlevel.inputs.data.catalogue import DataSet, RemoteFile

CONTENT = bytes(i * i % 251 for i in range(400_000))


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; notes what was asked for; breaks off, refuses or lies where told."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.asked = []  # (path, Range header)
        self.break_after = []  # bytes sent before the connection is cut, one entry a request
        self.statuses = []  # sent instead of the file, one entry a request
        self.has_ranges = True
        self.tells_length = True
        self.wait = 0.0  # seconds a piece of 16 kB

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        whole = server.files[self.path]
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and server.has_ranges:
            start = int(asked[1])
            if start >= len(whole):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        else:
            self.send_response(200)
        if server.tells_length:
            self.send_header("Content-Length", str(len(whole) - start))
        self.end_headers()
        end = len(whole)
        if server.break_after:
            end = min(end, start + server.break_after.pop(0))
        for at in range(start, end, 16_384):
            self.wfile.write(whole[at : min(at + 16_384, end)])
            if server.wait:
                time.sleep(server.wait)
        self.close_connection = True

    def log_message(self, *_):
        pass


def add(monkeypatch, name, files, sources):
    remote = (
        RemoteFile(file, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
        for file, content in files.items()
    )
    entry = DataSet(name, "a toy", "us", sources, tuple(remote))
    monkeypatch.setitem(catalogue.CATALOGUE, name, entry)
    return entry
