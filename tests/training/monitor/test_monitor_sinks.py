"""A monitor whose rows cannot be written warns, and training goes on."""

import json
import math
import os
import warnings

import pytest
import torch
from torch import nn

from spiritlevel import FlatnessMonitor
from spiritlevel.training.monitor.rows import File, json_lines


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return model, (torch.randn(12, 4), torch.randint(0, 2, (12,)))


def monitored(to, **options) -> FlatnessMonitor:
    model, batch = problem()
    return FlatnessMonitor(model, batch, measures="norms.weight", to=to, every=1, **options)


def steps(monitor: FlatnessMonitor, number: int) -> None:
    for _ in range(number):
        monitor.step()


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
def test_a_full_disk(tmp_path, name):
    """/dev/full takes no byte: a real full disk, behind a link with the right ending."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    path = tmp_path / name
    path.symlink_to("/dev/full")
    monitor = monitored(path)
    with pytest.warns(RuntimeWarning, match="No space left on device") as caught:
        steps(monitor, 3)
    assert len([w for w in caught if "cannot write its rows" in str(w.message)]) == 1
    assert str(path) in str(caught[0].message)
    assert [row["step"] for row in monitor.rows] == [1, 2, 3]
    path.unlink()  # there is room again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.step()
    lines = path.read_text().splitlines()
    assert len(lines) == (4 if name.endswith("jsonl") else 5)  # with a heading


def test_half_a_line_does_not_stay(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    file = File(path, json_lines([]))
    file.write({"step": 1})

    class Cut:
        def __init__(self, inner):
            self.inner = inner

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.inner.close()

        def write(self, text):
            self.inner.write(text[:4])
            self.inner.flush()
            raise OSError(28, "No space left on device")

    kind = type(path)
    opened = kind.open
    monkeypatch.setattr(kind, "open", lambda self, *a, **k: Cut(opened(self, *a, **k)))
    with pytest.raises(OSError, match="No space"):
        file.write({"step": 2})
    monkeypatch.undo()
    file.write({"step": 2})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_function_that_fails_now_and_then():
    taken = []

    def sink(row):
        if row["step"] == 2:
            raise ValueError("not this one")
        taken.append(row["step"])

    monitor = monitored(sink)
    with pytest.warns(RuntimeWarning, match="ValueError: not this one"):
        steps(monitor, 4)
    assert taken == [1, 3, 4]
    assert [row["step"] for row in monitor.rows] == [1, 2, 3, 4]


def test_a_server_that_is_away_gets_its_rows_later():
    taken, away = [], [True]

    def sink(row):
        if away[0]:
            raise ConnectionError("nobody answers")
        taken.append(row["step"])

    monitor = monitored(sink)
    with pytest.warns(RuntimeWarning, match="nobody answers"):
        steps(monitor, 2)
    away[0] = False
    monitor.step()
    assert taken == [1, 2, 3]


def test_the_other_sinks_get_their_rows(tmp_path):
    def broken(row):
        raise RuntimeError("no")

    path = tmp_path / "run.jsonl"
    monitor = monitored([broken, str(path)])
    with pytest.warns(RuntimeWarning, match="no"):
        monitor.step()
    assert len(path.read_text().splitlines()) == 1


def test_rows_that_wait_are_not_written_twice_after_a_resume(tmp_path):
    taken, away = [], [False]

    def sink(row):
        if away[0]:
            raise ConnectionError("nobody answers")
        taken.append(row["step"])

    monitor = monitored(sink)
    monitor.step()
    state = monitor.state_dict()
    away[0] = True
    with pytest.warns(RuntimeWarning):
        monitor.step()
    away[0] = False
    monitor.load_state_dict(state)
    monitor.step()
    assert taken == [1, 2]


def test_ctrl_c_in_a_sink_stops():
    def sink(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        monitored(sink).step()


def test_a_row_with_an_infinite_value_is_not_ok():
    model, batch = problem()
    model, batch = model.double(), (batch[0].double(), batch[1])
    monitor = FlatnessMonitor(model, batch, measures="norms.weight", every=1)
    assert monitor.step()["status"] == "ok"
    with torch.no_grad():
        model[0].weight.fill_(1e200)  # its square is no float64
    row = monitor.step()
    assert math.isinf(row["norms.weight"])
    assert (row["status"], row["norms.weight.status"]) == ("nonfinite", "nonfinite")
