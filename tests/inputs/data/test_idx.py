import gzip
import os
import pathlib
import re
import struct

import pytest
import torch

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.data import load, read_mnist
from spiritlevel.inputs.data.idx import read_idx

REAL = pathlib.Path(
    os.environ.get("SPIRITLEVEL_TEST_DATA") or pathlib.Path(__file__).parents[4] / "shared" / "data"
)
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST_NAMES = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(*shape, values):
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(values)


IMAGES = idx(3, 2, 2, values=[0, 51, 102, 255, *range(8)])
LABELS = idx(3, values=[7, 0, 9])


@pytest.fixture
def folder(tmp_path):
    for (images, labels), last in ((NAMES, 9), (TEST_NAMES, 1)):
        (tmp_path / images).write_bytes(IMAGES)
        (tmp_path / labels).write_bytes(LABELS[:-1] + bytes([last]))
    return tmp_path


def refused(read, *parts):
    pattern = re.compile(".*".join(parts), re.DOTALL)
    with pytest.raises(SpiritlevelError, match=pattern):
        read()


def test_images_and_labels(folder):
    x, y = read_mnist(folder)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert x.shape == (3, 1, 2, 2)
    torch.testing.assert_close(x[0, 0], torch.tensor([[0.0, 0.2], [0.4, 1.0]]))
    torch.testing.assert_close(x[2, 0] * 255, torch.tensor([[4.0, 5.0], [6.0, 7.0]]))
    assert y.tolist() == [7, 0, 9]
    assert read_mnist(folder, "test")[1].tolist() == [7, 0, 1]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_load_by_kind_and_path(folder, name):
    for split, wanted in (("train", [7, 0, 9]), ("test", [7, 0, 1]), ("all", [7, 0, 9, 7, 0, 1])):
        x, y = load(f"{name}:{folder}", split)
        assert y.tolist() == wanted
        assert len(x) == len(wanted)


def test_gzipped_and_renamed_files(folder):
    for name in (*NAMES, *TEST_NAMES):
        plain = folder / name
        packed = folder / f"{name.replace('-idx', '.idx')}.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    assert read_mnist(folder)[1].tolist() == [7, 0, 9]
    (folder / "train-labels.idx1-ubyte.gz").write_bytes(LABELS)  # unpacked, but not renamed
    assert read_mnist(folder)[1].tolist() == [7, 0, 9]


def test_the_folders_of_torchvision_are_found(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    for kind, last in (("MNIST", 3), ("FashionMNIST", 4)):
        raw = root / kind / "raw"
        raw.mkdir(parents=True)
        (raw / NAMES[0]).write_bytes(IMAGES)
        (raw / NAMES[1]).write_bytes(LABELS[:-1] + bytes([last]))
    assert load(f"mnist:{root}")[1].tolist() == [7, 0, 3]
    assert load(f"fashion-mnist:{root}")[1].tolist() == [7, 0, 4]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("cut", "expected", "found"), [(5, 28, 23), (14, 28, 14), (26, None, 2)])
def test_cut_short(tmp_path, packed, cut, expected, found):
    path = tmp_path / "file"
    content = IMAGES[:-cut]
    path.write_bytes(gzip.compress(content) if packed else content)
    need = (
        f"must have {16 if cut == 14 else expected} bytes" if expected else "starts with 00000803"
    )
    got = f"Got {found} bytes" if expected else "Got 0000"
    refused(lambda: read_idx(path, num_dims=3), re.escape(repr(str(path))), need, got)


def test_cut_short_archive_and_damage(tmp_path):
    path = tmp_path / "file.gz"
    whole = gzip.compress(IMAGES)
    path.write_bytes(whole[:-6])
    text = (re.escape(repr(str(path))), rf"its {len(whole) - 6} bytes failed with EOFError")
    refused(lambda: read_idx(path, num_dims=3), *text)
    damaged = bytearray(whole)
    damaged[-6] ^= 1  # of the checksum
    path.write_bytes(bytes(damaged))
    refused(lambda: read_idx(path, num_dims=3), "failed with BadGzipFile: CRC check failed")


def test_surplus_bytes(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(IMAGES + b"xyz")
    refused(lambda: read_idx(path, num_dims=3), "must have 28 bytes", "Got at least 29 bytes")


def test_a_header_that_promises_too_much_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 2**15, 2**14) + b"abc")
    refused(lambda: read_idx(path, num_dims=3), "must have", "Got 19 bytes")


def test_swapped_files_and_other_types(folder):
    (folder / NAMES[0]).write_bytes(LABELS)
    refused(lambda: read_mnist(folder), "starts with 00000803", "Got 00000801", "swapped")
    (folder / NAMES[0]).write_bytes(b"")
    refused(lambda: read_mnist(folder), "Got an empty file")
    (folder / NAMES[0]).write_bytes(b"<html>not found</html>")
    refused(lambda: read_mnist(folder), "Got 3c68746d")


def test_counts_and_labels_must_fit(folder):
    (folder / NAMES[1]).write_bytes(idx(2, values=[1, 2]))
    refused(lambda: read_mnist(folder), "equally long. Got 3 images and 2 labels")
    (folder / NAMES[1]).write_bytes(idx(3, values=[1, 2, 10]))
    refused(lambda: read_mnist(folder), "must be 0 to 9. Got 10", "data fetch mnist")
    (folder / NAMES[1]).write_bytes(idx(0, values=[]))
    refused(lambda: read_mnist(folder), r"at least one row. Got shape \(0,\)")


def test_missing_files_and_folders(folder):
    (folder / NAMES[1]).unlink()
    refused(lambda: read_mnist(folder), f"must have the file '{NAMES[1]}'", "It has: t10k-images")
    refused(lambda: read_mnist(folder / "none"), "nothing there", "spiritlevel data fetch mnist")
    refused(lambda: read_mnist(folder / NAMES[0]), "must be a folder", "a file")
    refused(lambda: read_idx(folder / "none", num_dims=1), "must exist")


@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason=f"no real MNIST in {REAL}")
def test_the_real_mnist():
    x, y = load(f"mnist:{REAL / 'mnist'}", "all")
    assert x.shape == (70_000, 1, 28, 28)
    # Published: mean and deviation of the training images, class counts, the first labels.
    torch.testing.assert_close(float(x[:60_000].mean()), 0.1307, rtol=0, atol=5e-5)
    torch.testing.assert_close(float(x[:60_000].std()), 0.3081, rtol=0, atol=5e-5)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert y[:60_000].bincount().tolist() == counts
    assert y[60_000:].bincount().tolist()[:3] == [980, 1135, 1032]
    assert y[:5].tolist() == [5, 0, 4, 1, 9]
