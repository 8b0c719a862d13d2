"""Small files that unpack to much, and names that lead elsewhere, are refused before they can."""

import bz2
import gzip
import io
import lzma
import os
import pathlib
import resource
import struct
import tarfile
import zipfile

import numpy
import pytest
import torch
from torch import nn

from population.tiny_study import tiny
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.ground.files import check_name, reading
from spiritlevel.inputs.checkpoints import load_checkpoint, save_checkpoint
from spiritlevel.inputs.data import load
from spiritlevel.inputs.data.download import download
from spiritlevel.inputs.data.idx import read_idx
from spiritlevel_lab import Store, Study
from spiritlevel_lab.population import control

pytestmark = pytest.mark.sampled(3)  # the others at night

HUGE = 2**30  # bytes that no test may unpack
ZEROS = bytes(2**22)


@pytest.fixture(autouse=True)
def little_memory():
    """Unpacking one of the files would fail here, not fill the machine's memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2**19  # KiB: half of what is packed in them


def refusal(call) -> str:
    with pytest.raises(SpiritlevelError) as caught:
        call()
    return str(caught.value)


def write_zeros(file, count: int) -> None:
    for start in range(0, count, len(ZEROS)):
        file.write(ZEROS[: count - start])


def npy_heading(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    file = io.BytesIO()
    heading = {"descr": kind, "fortran_order": False, "shape": shape}
    numpy.lib.format.write_array_header_1_0(file, heading)
    return file.getvalue()


@pytest.fixture(scope="module")
def packed_zeros(tmp_path_factory) -> bytes:
    """HUGE zeros, as deflate packs them."""
    path = tmp_path_factory.mktemp("zeros") / "zeros.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy_heading((HUGE // 64, 64)))
        write_zeros(file, HUGE)
    return path.read_bytes()


def test_an_npz_that_unpacks_to_too_much(tmp_path, packed_zeros):
    path = tmp_path / "bomb.npz"
    path.write_bytes(packed_zeros)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y.npy", npy_heading((4,)) + bytes(4))
    text = refusal(lambda: load(str(path)))
    assert f"would unpack to {HUGE + 2 * 128 + 4:,} bytes" in text  # two headings, four labels
    assert "Save it without compression: numpy.savez" in text


def test_an_npz_whose_heading_promises_more_than_it_has(tmp_path):
    path = tmp_path / "promise.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy_heading((2**40, 64)) + bytes(64))
        archive.writestr("y.npy", npy_heading((4,)) + bytes(4))
    assert "x has 64 bytes where its heading says 70368744177664" in refusal(
        lambda: load(str(path))
    )


def test_an_honest_npz_is_read_as_before(tmp_path):
    x, y = numpy.zeros((2000, 64), "float32"), numpy.arange(2000)
    for save in (numpy.savez, numpy.savez_compressed):
        save(tmp_path / "honest.npz", x=x, y=y)
        read_x, read_y = load(str(tmp_path / "honest.npz"))
        assert torch.equal(read_x, torch.from_numpy(x))
        assert torch.equal(read_y, torch.from_numpy(y))


def quick_xz(path, mode):
    return lzma.open(path, mode, preset=0)


def test_a_gzipped_idx_file_that_unpacks_to_too_much(tmp_path):
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, HUGE // 2**10, 32, 32))
        write_zeros(file, 2**26)
    assert "must unpack to at most 536,870,912 bytes" in refusal(lambda: read_idx(path, num_dims=3))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("opener", [gzip.open, bz2.open, quick_xz], ids=["gz", "bz2", "xz"])
@pytest.mark.parametrize("kind", ["member", "beside", "heading"])
def test_a_tar_archive_that_unpacks_to_too_much(tmp_path, monkeypatch, opener, kind):
    """In a file that is wanted, in one that is not, or in the headings of one."""
    monkeypatch.setattr(reading, "ALWAYS", 2**24)  # to pack a little less
    size = 2**25
    path = tmp_path / "cifar-10-binary.tar.gz"
    name = {"member": "data_batch_1.bin", "beside": "other", "heading": "other"}[kind]
    with opener(path, "wb") as file:
        member = tarfile.TarInfo(name)
        member.size = size
        if kind == "heading":
            member.type = tarfile.XHDTYPE
        file.write(member.tobuf())
        write_zeros(file, size)
        with tarfile.open(fileobj=file, mode="w|") as archive:
            archive.addfile(tarfile.TarInfo("last"))
    assert "must unpack to at most 16,777,216 bytes" in refusal(lambda: load(f"cifar10:{path}"))


def test_a_torch_file_that_unpacks_to_too_much(tmp_path, packed_zeros):
    model, path = nn.Linear(4, 3), tmp_path / "bomb.pt"
    path.write_bytes(packed_zeros)
    text = refusal(lambda: load_checkpoint(model, path))
    assert "would unpack to 1,073,741,952 bytes" in text
    assert "torch.save, which does not compress" in text


def test_an_honest_torch_file_is_read_as_before(tmp_path):
    model, other, path = nn.Linear(400, 300), nn.Linear(400, 300), tmp_path / "honest.pt"
    torch.save(model.state_dict(), path)
    load_checkpoint(other, path)
    assert torch.equal(model.weight, other.weight)


def test_a_large_image_is_refused_before_it_is_unpacked(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "cats").mkdir()
    image.new("1", (16384, 8192)).save(tmp_path / "cats" / "1.png")
    assert "at most 67,108,864 pixels. Got 16384×8192" in refusal(
        lambda: load(f"folder:{tmp_path}")
    )


# -- torch files and the version of torch -------------------------------------------------------


@pytest.mark.parametrize(
    "version",
    [
        "2.4.0",
        "2.5.1+cu121",
        "2.6.0",
        "2.9.1",
        "2.9.1.post1",
        "2.10.0a0+git1",
        "2.10.0.dev20251001",
    ],
)
def test_torch_files_are_refused_by_versions_that_would_run_code(version):
    text = refusal(lambda: reading.check_torch(version, what="'a.pt'"))
    for part in ("'a.pt'", version, "2.10.0 or newer", ".safetensors", "GHSA-63cw-57p8-fm3p"):
        assert part in text


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0+cpu", "2.10.1", "2.13.0+cu130", "3.0.0"])
def test_torch_files_are_read_by_later_versions(version):
    reading.check_torch(version, what="'a.pt'")


def test_every_torch_file_goes_through_the_check(tmp_path, monkeypatch):
    path, weights = tmp_path / "weights.pt", tmp_path / "weights.safetensors"
    torch.save(nn.Linear(4, 3).state_dict(), path)
    save_checkpoint(nn.Linear(4, 3), weights)
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    assert "torch 2.9.1" in refusal(lambda: load_checkpoint(nn.Linear(4, 3), path))
    load_checkpoint(nn.Linear(4, 3), weights)


def test_a_torch_file_that_contains_itself(tmp_path):
    content: dict = {}
    content["model"] = content
    torch.save(content, tmp_path / "circle.pt")
    text = refusal(lambda: load_checkpoint(nn.Linear(4, 3), tmp_path / "circle.pt"))
    assert "must hold a dict of tensors" in text


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda w: w.to(torch.complex64), "complex"),
        (lambda w: w.long(), "whole numbers"),
        (lambda w: w.to_sparse(), "sparse or quantized"),
    ],
    ids=["complex", "whole", "sparse"],
)
def test_weights_that_could_not_be_copied_without_loss_are_refused(tmp_path, change, kind):
    state = nn.Linear(4, 3).state_dict()
    torch.save(state | {"weight": change(state["weight"])}, tmp_path / "odd.pt")
    text = refusal(lambda: load_checkpoint(nn.Linear(4, 3), tmp_path / "odd.pt"))
    assert f"numbers differ: weight is {kind} in the file and floating point in the model" in text


@pytest.mark.parametrize("path", [None, 3, b"a.pt", "", "a\0b"], ids=repr)
def test_a_checkpoint_is_a_path(path):
    assert "The checkpoint must be a path" in refusal(
        lambda: load_checkpoint(nn.Linear(1, 1), path)
    )


def test_a_pipe_is_no_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    text = refusal(lambda: load_checkpoint(nn.Linear(1, 1), tmp_path / "pipe.pt"))
    assert "it is not a file" in text


# -- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["symlink", "dangling", "hard link", "pipe"])
def test_a_part_file_that_leads_elsewhere_is_not_written(tmp_path, kind):
    victim, part = tmp_path / "victim", tmp_path / "data.gz.part"
    victim.write_bytes(b"precious")
    if kind == "hard link":
        part.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.symlink_to(victim if kind == "symlink" else tmp_path / "new")
    text = refusal(
        lambda: download(
            tmp_path / "data.gz", ["http://127.0.0.1:9/"], size=9, checksum="md5:0", report=print
        )
    )
    assert "cannot be written" in text
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "new").exists()


# -- names --------------------------------------------------------------------------------------

LEADING_ELSEWHERE = [
    *("../x", "..", "a/../../b", "/etc/x", "//x", "a\0b", "a\nb", "\x1b[31mred", "x" * 300),
    *("nul", "COM1.txt", "C:\\x", "..\\x", "a/./b", ".", " ", "\u202egpj"),
]


@pytest.mark.parametrize("name", LEADING_ELSEWHERE, ids=ascii)
def test_a_study_cannot_be_named_after_a_place_elsewhere(name):
    with pytest.raises(SpiritlevelError, match=r"study's name must be"):
        Study(name)


@pytest.mark.parametrize(
    "name", ["digits", "sgd [/lr]", "κ, ρ", "002-fig-4", "A: baseline", ".a", "x.?/b. "]
)
def test_other_names_are_fine(name):
    folder = control.default_folder(Study(name).name, "quick")
    assert pathlib.Path("studies").resolve() in folder.resolve().parents
    on_windows = pathlib.PureWindowsPath(folder)
    assert not set('<>:"|?*') & set(str(on_windows))
    assert not any(part.endswith((".", " ")) for part in on_windows.parts)


@pytest.mark.parametrize("preset", ["/../../x", "q/../../../x", "a\0", "y" * 300])
def test_nor_can_a_preset(preset):
    assert "--out" in refusal(lambda: control.default_folder("digits", preset))


@pytest.mark.parametrize("id_", ["../../x", "/tmp/x", "a\0b"])
def test_a_run_of_an_edited_store_stays_in_its_folder(tmp_path, id_):
    with Store.create(tmp_path, tiny()) as store:
        assert "run's id" in refusal(lambda: store.checkpoint(id_))


def test_a_start_stays_in_the_folder_of_its_study(tmp_path):
    Store.create(tmp_path, tiny()).close()
    start = f"{tmp_path}#../../../x"
    study = tiny(model={"name": "mlp", "hidden": 4, "init_from": start})
    assert "run of the study's model.init_from" in refusal(lambda: control.check(study))


@pytest.mark.parametrize("start", ["a\0b", "y" * 300])
def test_a_start_that_no_file_can_have_is_refused_with_the_settings(start):
    model = {"name": "mlp", "init_from": start}
    assert "study's model.init_from must be a path. Got" in refusal(lambda: tiny(model=model))


def test_the_check_names_the_fault():
    assert "leads out" in refusal(lambda: check_name("a/../b", what="name", advice=""))
    assert "longer than 200 bytes" in refusal(lambda: check_name("é" * 101, what="name", advice=""))
