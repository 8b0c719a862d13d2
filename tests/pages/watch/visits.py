"""What the tests of `watch` share: runs that end without training, rows, a server, a browser."""

import contextlib
import http.client
import json
import threading
import time

from spiritlevel.pages.watch import Watched, open_server
from spiritlevel.study import Store
from spiritlevel.study.run_results import EpochRow, MeasurementRow, RunResult
from spiritlevel.study.storage.claims import new_worker
from study.tiny_study import tiny

EVIL = "<img src=x onerror=alert(1)>"
TAGS = f"<b>{EVIL}</b>&amp;<br>"  # with what Plotly would take for markup


def new_study(folder, **changes) -> Store:
    return Store.create(folder, tiny(**changes))


def finish(store: Store, number: int, *, measures: tuple[str, ...] = ("head.trace",)) -> str:
    """The next run ends with numbers that `number` decides; its id."""
    claim = store.claim(new_worker())
    epochs = tuple(
        EpochRow(epoch, 1.0 / (epoch + number), 0.5, 2.0 / (epoch + number) + number, 0.25)
        for epoch in (1, 2, 3)
    )
    rows = tuple(
        MeasurementRow(name, "", float(number + 1) * 10**i, None, None, True, "ok", "")
        for i, name in enumerate(measures)
    )
    assert store.finish(claim, RunResult("epochs", epochs, rows, b"", 60, 500, 2.5, "{}"))
    return claim.id


def fail(store: Store, error: str) -> str:
    claim = store.claim(new_worker())
    store.fail(claim, error)
    return claim.id


def row(step: int, value=1.0, *, measure: str = "head.trace", **more) -> dict:
    found = {"step": step, "epoch": step // 10, "seconds": 0.5, measure: value, "status": "ok"}
    return found | more


def add_rows(path, *rows) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)


def state(path, measure=""):
    """What the page would be told about `path`."""
    return json.loads(Watched(path).answer(measure))


@contextlib.contextmanager
def serving(path):
    """A server at work on `path`, on a port that is free."""
    server = open_server(Watched(path), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, path="/state.json", method="GET", **headers):
    """Status, headers and body of one request, `path` sent as it stands."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{server.port}"} | headers).items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


class Visit:
    """A page at the server, with everything that it must not do written down."""

    def __init__(self, browser, server, **options) -> None:
        self.page = browser.new_page(**options)
        self.server = server
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda m: m.type == "error" and self.complaints.append(m.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", self._note)
        self.page.goto(server.address)

    def _note(self, request) -> None:
        if not request.url.startswith((self.server.address, "data:", "blob:")):
            self.foreign.append(request.url)

    def wait(self, condition: str) -> None:
        """Until the JavaScript holds. Playwright's own wait needs eval, which the page forbids."""
        end = time.monotonic() + 60
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, f"{condition} did not come true\n{self.complaints}"
            self.page.wait_for_timeout(50)

    def wait_text(self, selector: str, text: str) -> None:
        self.wait(
            f"document.querySelector({json.dumps(selector)})?.textContent"
            f".includes({json.dumps(text)})"
        )

    def check(self) -> None:
        assert self.complaints == []
        assert self.foreign == []
