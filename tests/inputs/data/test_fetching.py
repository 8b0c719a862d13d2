"""Downloads from a server of our own on 127.0.0.1 that can be told to misbehave."""

import errno
import gzip
import hashlib
import os
import re
import signal
import struct
import subprocess
import sys
import time

import pytest

from inputs.data.file_server import CONTENT, add
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.data import catalogue, download, fetch, load

pytestmark = pytest.mark.usefixtures("pauses")  # no test waits


def refused(*parts, **arguments):
    pattern = re.compile(".*".join(parts), re.DOTALL)
    with pytest.raises(SpiritlevelError, match=pattern) as caught:
        fetch("toy", **arguments)
    return str(caught.value)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetch_and_progress(server, toy, tmp_path):
    seen = []
    folder = fetch("toy", tmp_path / "new" / "folder", progress=lambda *a: seen.append(a))
    assert folder == tmp_path / "new" / "folder"
    assert (folder / "data.bin").read_bytes() == CONTENT
    assert names(folder) == ["data.bin"]
    assert server.asked == [("/toy/data.bin", None)]
    done = [now for now, _, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (len(CONTENT), len(CONTENT), "data.bin")


def test_what_is_there_is_not_fetched_again(server, toy, tmp_path):
    fetch("toy", tmp_path)
    fetch("toy", tmp_path)
    assert len(server.asked) == 1
    (tmp_path / "data.bin").write_bytes(CONTENT[:-1])
    fetch("toy", tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_broken_connection_goes_on_where_it_stopped(server, toy, tmp_path, pauses):
    server.break_after = [100_000, 0, 50_000]
    fetch("toy", tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    ranges = [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert server.asked == [("/toy/data.bin", each) for each in ranges]
    assert pauses == [1, 2, 1]  # twice as long after each failure, anew after a gain


@pytest.mark.parametrize("tells_length", [True, False])
def test_a_server_without_ranges_starts_anew(server, toy, tmp_path, tells_length):
    server.has_ranges, server.tells_length = False, tells_length
    server.break_after = [100_000]
    fetch("toy", tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-"]


def test_a_server_that_always_breaks_off_at_the_same_place(server, toy, tmp_path, pauses):
    server.has_ranges, server.break_after = False, [100_000] * 50
    refused(
        "'data.bin' could not be fetched",
        "connection ended after 100000 of 400000 bytes .4 times in a row.",
        "100000 of 400000 bytes are kept",
        folder=tmp_path,
    )
    assert len(server.asked) == 4
    assert pauses == [1, 2, 4]
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:100_000]


def test_the_next_call_goes_on(server, toy, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:123_456])
    fetch("toy", tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert server.asked == [("/toy/data.bin", "bytes=123456-")]
    assert names(tmp_path) == ["data.bin"]


def test_a_complete_part_needs_no_request(server, toy, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    fetch("toy", tmp_path)
    assert server.asked == []
    assert names(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("old", [b"x" * 1000, b"x" * 400_000, b"x" * 500_000])
def test_a_part_of_something_else_is_thrown_away(server, toy, tmp_path, old):
    (tmp_path / "data.bin.part").write_bytes(old)
    fetch("toy", tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_wrong_checksum(server, toy, tmp_path):
    wrong = bytearray(CONTENT)
    wrong[200_000] ^= 1
    server.files["/toy/data.bin"] = bytes(wrong)
    found = hashlib.sha256(bytes(wrong)).hexdigest()
    wanted = toy.files[0].checksum
    refused(
        f"/toy/data.bin: wrong checksum: expected {wanted}, got sha256:{found}",
        "the file was removed",
        "No part was kept",
        folder=tmp_path,
    )
    assert names(tmp_path) == []
    assert len(server.asked) == 1


def test_an_old_good_file_survives_a_wrong_new_one(server, toy, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"mine")
    server.files["/toy/data.bin"] = b"x" * len(CONTENT)
    refused("wrong checksum", folder=tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    assert names(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("tells_length", [True, False])
def test_a_page_in_place_of_the_file(server, toy, tmp_path, tells_length):
    server.tells_length = tells_length
    server.files["/toy/data.bin"] = b"<html>log in</html>" * 30_000
    refused("570000 bytes instead of 400000" if tells_length else "more than", folder=tmp_path)
    assert names(tmp_path) == []


def test_mirrors_are_tried_in_turn(server, monkeypatch, tmp_path):
    server.files |= {"/bad/data.bin": b"x" * len(CONTENT), "/good/data.bin": CONTENT}
    sources = tuple(f"{server.address}/{name}/" for name in ("none", "bad", "good"))
    add(monkeypatch, "toy", {"data.bin": CONTENT}, sources)
    fetch("toy", tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == [f"/{n}/data.bin" for n in ("none", "bad", "good")]


def test_a_mirror_goes_on_where_another_stopped(server, toy, monkeypatch, tmp_path):
    server.break_after = [100_000, 0, 0, 0]
    sources = (f"{server.address}/toy", f"{server.address}/toy/")
    fetch("toy", tmp_path, sources=sources)
    assert server.asked[-1] == ("/toy/data.bin", "bytes=100000-")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_own_sources(server, toy, tmp_path):
    server.files["/mirror/data.bin"] = CONTENT
    fetch("toy", tmp_path, sources=[f"{server.address}/mirror"])
    assert server.asked == [("/mirror/data.bin", None)]
    refused("must be an http or https address. Got 'ftp://x/'", sources=["ftp://x/"])
    refused("must be an http or https address. Got '/etc/'", sources=["/etc/"])
    refused("at least one address", sources=[])


def test_statuses(server, toy, tmp_path, pauses):
    server.statuses = [503, 429]
    fetch("toy", tmp_path / "a")
    assert pauses == [1, 2]
    server.statuses = [403]
    refused("HTTP status 403 Forbidden", "copy the file to", folder=tmp_path / "b")
    assert pauses == [1, 2]
    server.statuses = [500] * 4
    refused("HTTP status 500 .* .4 times in a row.", folder=tmp_path / "c")


def test_nobody_there(server, toy, tmp_path):
    refused("Connection refused.*4 times", folder=tmp_path, sources=["http://127.0.0.1:1/"])
    assert names(tmp_path) == []


def test_full_disk(server, toy, tmp_path, monkeypatch):
    opened, room = open, [150_000]

    class Full:
        """A file on a disk with little room left."""

        def __init__(self, *arguments):
            self.file = opened(*arguments)

        def write(self, chunk):
            room[0] -= len(chunk)
            if room[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(chunk)

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    monkeypatch.setattr(download, "open", Full, raising=False)
    refused(
        r"data.bin.part' cannot be written: No space left on device\. \d+ bytes are still to come",
        "kept: free some space and run it again",
        folder=tmp_path,
    )
    kept = (tmp_path / "data.bin.part").read_bytes()
    assert 0 < len(kept) <= 150_000
    assert len(server.asked) == 1  # asking again would not help
    monkeypatch.undo()
    monkeypatch.setitem(catalogue.CATALOGUE, "toy", toy)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fetch("toy", tmp_path)
    assert server.asked[-1] == ("/toy/data.bin", f"bytes={len(kept)}-")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_too_little_room_is_seen_before_the_download(server, toy, tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: Usage)
    refused("only 1000 bytes are free. 400000 bytes are still to come", folder=tmp_path)
    assert server.asked == []


def test_interrupted_by_the_user(server, toy, tmp_path):
    def stop(done, total, name):
        if done > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("toy", tmp_path, progress=stop)
    kept = (tmp_path / "data.bin.part").read_bytes()
    assert len(kept) > 200_000
    assert CONTENT.startswith(kept)
    fetch("toy", tmp_path)
    assert server.asked[-1] == ("/toy/data.bin", f"bytes={len(kept)}-")


CHILD = """
import hashlib, sys
from spiritlevel.inputs.data import catalogue, fetch
size, digest, url, folder = sys.argv[1:]
file = catalogue.RemoteFile("data.bin", int(size), "sha256:" + digest)
catalogue.CATALOGUE["toy"] = catalogue.DataSet("toy", "", "", (url,), (file,))
fetch("toy", folder)
"""


def test_killed(server, toy, tmp_path):
    server.wait = 0.05
    digest = toy.files[0].checksum.removeprefix("sha256:")
    arguments = [str(len(CONTENT)), digest, f"{server.address}/toy/", str(tmp_path)]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments])
    part = tmp_path / "data.bin.part"
    until = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 50_000) and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(SpiritlevelError, match="is being fetched by another process"):
        fetch("toy", tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    kept = part.read_bytes()
    assert 50_000 < len(kept) < len(CONTENT)
    server.wait = 0.0
    fetch("toy", tmp_path)
    assert server.asked[-1] == ("/toy/data.bin", f"bytes={len(kept)}-")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]


def test_folders_that_cannot_be_made(toy, tmp_path):
    (tmp_path / "file").write_text("x")
    refused(
        "cannot be created: Not a directory", "SPIRITLEVEL_DATA", folder=tmp_path / "file" / "x"
    )


def test_unknown_names():
    with pytest.raises(SpiritlevelError, match=r"Got 'cifar1'\. Did you mean 'cifar10'\?"):
        fetch("cifar1")


def test_md5_is_understood(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert download.has_checksum(path, "md5:900150983cd24fb0d6963f7d28e17f72")
    assert not download.has_checksum(path, "md5:900150983cd24fb0d6963f7d28e17f73")


def test_fetch_then_load(server, monkeypatch, tmp_path):
    def idx(*shape, values):
        return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(values)

    files = {}
    for stem, n in (("train", 3), ("t10k", 2)):
        images, labels = idx(n, 2, 2, values=range(4 * n)), idx(n, values=range(n))
        files[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(images)
        files[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(labels)
    add(monkeypatch, "mnist", files, (f"{server.address}/mnist",))
    server.files |= {f"/mnist/{name}": content for name, content in files.items()}
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path))
    totals = set()
    assert (
        fetch("mnist", progress=lambda done, total, text: totals.add(total)) == tmp_path / "mnist"
    )
    assert totals == {sum(map(len, files.values()))}
    assert load("mnist")[1].tolist() == [0, 1, 2]
    assert load("mnist", "test")[0].shape == (2, 1, 2, 2)
