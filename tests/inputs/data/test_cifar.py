import importlib.util
import io
import os
import pathlib
import pickle
import re
import sys
import tarfile

import pytest
import torch

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.data import load, read_cifar
from spiritlevel.inputs.data.cifar import unpickle

np = pytest.importorskip("numpy", reason="numpy writes the files these tests read")
REAL = pathlib.Path(
    os.environ.get("SPIRITLEVEL_TEST_DATA") or pathlib.Path(__file__).parents[4] / "shared" / "data"
)
LAYOUT = {
    "cifar10": ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]),
    "cifar100": (["train"], ["test"]),
}
FOLDERS = {
    ("cifar10", True): "cifar-10-batches-bin",
    ("cifar10", False): "cifar-10-batches-py",
    ("cifar100", True): "cifar-100-binary",
    ("cifar100", False): "cifar-100-python",
}
ARCHIVES = {
    ("cifar10", True): "cifar-10-binary.tar.gz",
    ("cifar10", False): "cifar-10-python.tar.gz",
    ("cifar100", True): "cifar-100-binary.tar.gz",
    ("cifar100", False): "cifar-100-python.tar.gz",
}


def truth(name, split, rows=3):
    """Pixels (N, 3072) uint8 and labels, coarse and fine, made with numpy alone."""
    files = LAYOUT[name][split == "test"]
    draw = np.random.default_rng(len(files) + 10 * (name == "cifar10"))
    n = rows * len(files)
    fine = draw.integers(0, 10 if name == "cifar10" else 100, n)
    return draw.integers(0, 256, (n, 3072), dtype=np.uint8), fine // 5, fine


def contents(name, split, *, binary, protocol=2):
    """What is in each file."""
    pixels, coarse, fine = truth(name, split)
    out = {}
    for i, file in enumerate(LAYOUT[name][split == "test"]):
        part = slice(3 * i, 3 * i + 3)
        data, groups, classes = pixels[part], coarse[part].tolist(), fine[part].tolist()
        if binary:
            heads = [
                [c] if name == "cifar10" else [g, c] for g, c in zip(groups, classes, strict=True)
            ]
            records = (bytes(h) + row.tobytes() for h, row in zip(heads, data, strict=True))
            out[f"{file}.bin"] = b"".join(records)
        else:
            labels = {b"labels": classes}
            if name == "cifar100":
                labels = {b"fine_labels": classes, b"coarse_labels": groups}
            content = {b"data": data, b"batch_label": b"of some", b"filenames": [b"a.png"]} | labels
            out[file] = pickle.dumps(content, protocol=protocol)
    return out


def write(place, name, *, binary, packed, protocol=2):
    """The whole data set, as a folder or as an archive; gives its path."""
    folder = FOLDERS[name, binary]
    files = {}
    for split in ("train", "test"):
        files |= contents(name, split, binary=binary, protocol=protocol)
    if not packed:
        (place / folder).mkdir()
        for file, content in files.items():
            (place / folder / file).write_bytes(content)
        return place / folder
    path = place / ARCHIVES[name, binary]
    with tarfile.open(path, "w:gz") as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{file}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def check(found, name, split, labels="fine"):
    x, y = found
    pixels, coarse, fine = truth(name, split)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    wanted = pixels.reshape(-1, 3, 32, 32).astype("float32") / np.float32(255)
    assert torch.equal(x, torch.from_numpy(wanted))
    assert y.tolist() == (fine if labels == "fine" else coarse).tolist()


@pytest.mark.parametrize("name", LAYOUT)
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_every_form(tmp_path, name, binary, packed):
    path = write(tmp_path, name, binary=binary, packed=packed)
    for place in (path, tmp_path):
        for split in ("train", "test"):
            check(read_cifar(place, split, name=name, whole=False), name, split)


@pytest.mark.parametrize("binary", [True, False])
def test_groups_of_cifar100(tmp_path, binary):
    write(tmp_path, "cifar100", binary=binary, packed=True)
    found = read_cifar(tmp_path, name="cifar100", labels="coarse", whole=False)
    check(found, "cifar100", "train", "coarse")


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol(tmp_path, protocol):
    path = write(tmp_path, "cifar10", binary=False, packed=False, protocol=protocol)
    check(read_cifar(path, whole=False), "cifar10", "train")


# What Python 2 wrote: text is bytes, numpy is named by its old name, the array is a plain string.
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
    b"K\x00\x85U\x01b\x87Rq\x05(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87R"
    b"q\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x18\x00\x00"
    + bytes(i % 251 for i in range(6144))
    + b"tbU\x06labelsq\x08]q\x09(K\x06K\x09eu."
)


def test_a_pickle_of_python_2(tmp_path):
    (tmp_path / "test_batch").write_bytes(PYTHON_2)
    x, y = read_cifar(tmp_path, "test", whole=False)
    assert y.tolist() == [6, 9]
    assert (x.flatten() * 255).round().int().tolist() == [i % 251 for i in range(6144)]
    reference = pickle.loads(PYTHON_2, encoding="bytes")  # numpy's own reading of it
    assert torch.equal(x.view(2, -1), torch.from_numpy(reference[b"data"]) / 255)


def test_fortran_order(tmp_path):
    pixels = truth("cifar10", "test")[0]
    content = {"data": np.asfortranarray(pixels), "labels": [1, 2, 3]}
    for protocol in (2, 5):
        (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=protocol))
        x, _ = read_cifar(tmp_path, "test", whole=False)
        assert torch.equal((x * 255).round().byte().view(3, -1), torch.from_numpy(pixels))


# -- what is refused -------------------------------------------------------------------------


def refused(read, *parts):
    pattern = re.compile(".*".join(parts), re.DOTALL)
    with pytest.raises(SpiritlevelError, match=pattern):
        read()


class Shell:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def attacks(trap):
    """Pickles that would make the file `trap`."""
    command = f"touch {trap}"
    yield pickle.dumps({"data": Shell(command), "labels": [1]})
    yield pickle.dumps([Shell(command)], protocol=0)
    yield f"cbuiltins\neval\n(S'open({str(trap)!r}, \"w\")'\ntR.".encode()
    yield f"(S{command!r}\nios\nsystem\n.".encode()
    yield f"cnumpy\nf2py.os.system\n(S{command!r}\ntR.".encode()  # an attribute of what is allowed
    yield f"cnumpy.core.multiarray\n_reconstruct.__globals__\n(S{command!r}\ntR.".encode()


def test_nothing_in_a_pickle_is_run(tmp_path):
    trap = tmp_path / "trap"
    for attack in attacks(trap):
        (tmp_path / "test_batch").write_bytes(attack)
        refused(
            lambda: read_cifar(tmp_path, "test", whole=False),
            re.escape(repr(str(tmp_path / "test_batch"))),
            "refused, and nothing in it was run: it holds a call of",
            "binary version",
        )
        assert not trap.exists()


def test_the_trap_works(tmp_path):
    # Meta-test: an unrestricted unpickler would be caught.
    trap = tmp_path / "trap"
    pickle.loads(next(attacks(trap)))
    assert trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy.core.multiarray\n_reconstruct\n}S'x'\nI1\nsb.",  # attributes for a function
        b"cnumpy\ndtype\n}b.",
        b"cnumpy\nndarray\n(tR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n(I-1\ntS'x'\nI00\nS'y'\ntb.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"",
        b"\x80\x02}q",
        b"not a pickle",
    ],
)
def test_odd_pickles_are_refused(content):
    with pytest.raises(pickle.UnpicklingError):
        unpickle(content)


def test_pickles_of_other_things(tmp_path):
    def read(content, name="cifar10"):
        file = "test_batch" if name == "cifar10" else "test"
        (tmp_path / file).write_bytes(pickle.dumps(content))
        return lambda: read_cifar(tmp_path, "test", name=name, whole=False)

    pixels = truth("cifar10", "test")[0]
    refused(read([1, 2]), "array 'data' and the list 'labels'. Got list")
    refused(read({"data": pixels}), r"Got one with 'data' \(PickledArray\)")
    refused(
        read({"data": pixels, "labels": [1, 2]}), r"shape \(3, 3072\) of type 'u1' and 2 labels"
    )
    refused(read({"data": pixels.astype("i4"), "labels": [1, 2, 3]}), "of type 'i4'")
    refused(read({"data": pixels, "labels": [1, 2, "x"]}), "must hold integers from 0 to 9")
    refused(read({"data": pixels, "labels": [1, 2, 10]}), "must be 0 to 9. Got 10")
    refused(read({"data": pixels, "labels": [1, 2, 3]}, "cifar100"), "list 'fine_labels'")


def test_cut_short_records(tmp_path):
    path = write(tmp_path, "cifar10", binary=True, packed=False) / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    refused(
        lambda: read_cifar(path.parent, whole=False),
        re.escape(repr(str(path))),
        "must have a multiple of 3073 bytes. Got 9218",
    )
    path.write_bytes(b"")
    refused(lambda: read_cifar(path.parent, whole=False), "Got 0")


def test_the_published_number_of_images_is_asked_for(tmp_path):
    write(tmp_path, "cifar10", binary=True, packed=True)
    expected = "'test_batch.bin' in .* must have 30730000 bytes. Got 9219"
    refused(lambda: load(f"cifar10:{tmp_path}", "test"), expected, "whole=False")
    write(tmp_path, "cifar10", binary=False, packed=False)
    path = tmp_path / "cifar-10-batches-py"
    refused(lambda: load(f"cifar10-python:{path}", "test"), "must be 10000 rows of 3072 bytes")
    with (tmp_path / "test.bin").open("wb") as file:
        file.truncate(3074 * 10_000)
    x, y = load(f"cifar100:{tmp_path}", "test")
    assert x.shape == (10_000, 3, 32, 32)
    assert y.tolist() == [0] * 10_000


def test_labels_out_of_range(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    refused(lambda: read_cifar(tmp_path, "test", whole=False), "must be 0 to 9. Got 10")


@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_cut_short_archive(tmp_path, keep):
    path = write(tmp_path, "cifar10", binary=True, packed=True)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    for place in (path, tmp_path):
        refused(
            lambda place=place: read_cifar(place, whole=False),
            re.escape(repr(str(path))),
            "whole tar archive of 170052171 bytes, as published",
            f"Got {int(keep * len(whole))} bytes",
        )


def test_missing_files(tmp_path):
    path = write(tmp_path, "cifar10", binary=True, packed=False)
    (path / "data_batch_3.bin").unlink()
    refused(lambda: read_cifar(path), "'.* lacks data_batch_3.bin", "data fetch cifar10")
    refused(lambda: read_cifar(path, name="cifar100"), "has none of these")
    refused(lambda: read_cifar(tmp_path / "none"), "There is no '.*none'", "data fetch cifar10")
    refused(lambda: read_cifar(path, labels="coarse"), "must be 'fine' for cifar10. Got 'coarse'")


def test_an_archive_of_links_and_folders_has_no_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(3073))
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    refused(lambda: read_cifar(path, "test", whole=False), "has none of these")


# -- real photographs ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A part of the real CIFAR-10, written anew in both forms by numpy alone."""
    if not (REAL / "cifar10").is_dir():
        pytest.skip(f"no real CIFAR-10 in {REAL}")
    spec = importlib.util.spec_from_file_location("load_cifar", REAL / "load_cifar.py")
    reader = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    spec.loader.exec_module(reader)
    sys.dont_write_bytecode = kept
    (x, y, _), _ = reader.load(REAL / "cifar10" / "cifar10_20k5k.npz")
    x, y = x[:5000], np.asarray(y[:5000])
    folder = tmp_path_factory.mktemp("cifar10")
    planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    for i in range(5):
        part = slice(1000 * i, 1000 * i + 1000)
        records = np.concatenate([y[part, None].astype("uint8"), planes[part]], axis=1)
        (folder / f"data_batch_{i + 1}.bin").write_bytes(records.tobytes())
        content = {b"data": planes[part], b"labels": y[part].tolist()}
        (folder / f"data_batch_{i + 1}").write_bytes(pickle.dumps(content, protocol=2))
    return folder, x, y


def test_real_photographs(photographs):
    folder, images, labels = photographs
    x, y = read_cifar(folder, whole=False)
    assert y.tolist() == labels.tolist()
    assert torch.equal((x * 255).round().byte().permute(0, 2, 3, 1), torch.from_numpy(images))
    # The published means of the whole training set; a tenth of it is within 0.01.
    published = torch.tensor([0.4914, 0.4822, 0.4465])
    torch.testing.assert_close(x.mean((0, 2, 3)), published, rtol=0, atol=0.01)
    for path in folder.glob("*.bin"):
        path.unlink()
    pickled, targets = read_cifar(folder, whole=False)
    assert torch.equal(pickled, x)
    assert torch.equal(targets, y)
