import re
import sys

import pytest
import torch

from spiritlevel.ground.errors import MissingExtra, SpiritlevelError
from spiritlevel.inputs.data import load, read_npz

np = pytest.importorskip("numpy", reason="numpy writes the files these tests read")

X = np.arange(12, dtype="float32").reshape(4, 3)
Y = np.array([0, 1, 2, 1])


@pytest.fixture
def save(tmp_path):
    """A function that writes the arrays given and returns the path."""

    def write(**arrays):
        path = tmp_path / "data.npz"
        np.savez(path, **arrays)
        return path

    return write


def refused(path, *parts):
    """The file must be refused with its name and every part of the text, in this order."""
    pattern = ".*".join([re.escape(repr(str(path))), *parts])
    with pytest.raises(SpiritlevelError, match=re.compile(pattern, re.DOTALL)) as caught:
        read_npz(path)
    return str(caught.value)


def test_floats_and_labels(save):
    x, y = read_npz(save(x=X, y=Y))
    assert torch.equal(x, torch.arange(12.0).view(4, 3))
    assert torch.equal(y, torch.tensor([0, 1, 2, 1]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8", "longdouble"])
def test_every_float_becomes_float32(save, dtype):
    x, y = read_npz(save(x=X.astype(dtype), y=X[:, 0].astype(dtype)))
    assert (x.dtype, y.dtype) == (torch.float32, torch.float32)
    assert torch.equal(x, torch.arange(12.0).view(4, 3))
    assert torch.equal(y, torch.tensor([0.0, 3.0, 6.0, 9.0]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", ">i4", "uint16", "int64", "uint64"])
def test_every_integer_label_becomes_int64(save, dtype):
    y = read_npz(save(x=X, y=Y.astype(dtype)))[1]
    assert y.dtype == torch.int64
    assert y.tolist() == [0, 1, 2, 1]


def test_uint8_images_become_fractions(save):
    images = np.array([[0, 51], [102, 255]], dtype="uint8")
    x, _ = read_npz(save(x=images, y=Y[:2]))
    torch.testing.assert_close(x, torch.tensor([[0.0, 0.2], [0.4, 1.0]]))


def test_signed_integer_inputs_stay_token_ids(save):
    x, _ = read_npz(save(x=X.astype("int32"), y=Y))
    assert x.dtype == torch.int64
    assert x[3].tolist() == [9, 10, 11]


def test_fortran_order_keeps_its_meaning(save):
    x, _ = read_npz(save(x=np.asfortranarray(X), y=Y))
    assert torch.equal(x, torch.arange(12.0).view(4, 3))


def test_compressed_archives_and_string_paths(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=X, y=Y)
    assert torch.equal(read_npz(str(path))[1], torch.from_numpy(Y))


def test_lengths_must_agree(save):
    refused(save(x=X, y=Y[:3]), r"equally long\. Got 4 and 3 rows\.")


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), ()])
def test_empty_arrays(save, shape):
    parts = (rf"at least one row\. Got shape {re.escape(str(shape))}",)
    assert "array x" in refused(save(x=np.zeros(shape), y=Y), *parts)
    assert "array y" in refused(save(x=X, y=np.zeros(shape)), *parts)


@pytest.mark.parametrize("dtype", ["bool", "complex64", "uint16", "U3", "datetime64[s]"])
def test_inputs_of_other_kinds(save, dtype):
    came = np.zeros((4, 3), dtype=dtype).dtype
    path = save(x=np.zeros((4, 3), dtype=dtype), y=Y)
    refused(path, rf"Got dtype {re.escape(str(came))}\.", r"x\.astype\('float32'\)")


@pytest.mark.parametrize("dtype", ["bool", "complex64", "U3"])
def test_targets_of_other_kinds(save, dtype):
    came = np.zeros(4, dtype=dtype).dtype
    path = save(x=X, y=np.zeros(4, dtype=dtype))
    refused(path, rf"Got dtype {re.escape(str(came))}\.", r"y\.astype\('int64'\)")


def test_objects_are_never_unpickled(save):
    trap = np.array([Trap(), Trap(), Trap(), Trap()], dtype=object)
    assert "array x" in refused(save(x=trap, y=Y), "Got Python objects", "rectangular numeric")
    assert "array y" in refused(save(x=X, y=trap), "Got Python objects", "rectangular numeric")
    assert Trap.sprung == 0


def test_the_trap_works(save):
    # Meta-test: unpickling would be noticed.
    path = save(x=np.array([Trap()], dtype=object), y=Y)
    before = Trap.sprung
    np.load(path, allow_pickle=True)["x"]
    assert Trap.sprung == before + 1
    Trap.sprung = 0


class Trap:
    """Counts how often one of these is unpickled."""

    sprung = 0

    def __reduce__(self):
        return spring, ()


def spring():
    Trap.sprung += 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_values_must_be_finite_in_float32(save, value):
    x = X.astype("float64")
    x[2, 1] = x[3, 0] = value
    message = refused(save(x=x, y=Y), r"Got 2 nan or inf, the first in row 2\.")
    assert "array x" in message
    message = refused(save(x=X, y=x[:, 1]), r"Got 1 nan or inf, the first in row 2\.")
    assert "array y" in message


def test_missing_arrays_are_listed(save):
    refused(save(images=X, y=Y), "Missing: x; it has: images, y", r"numpy\.savez")
    refused(save(a=X, b=Y), "Missing: x, y; it has: a, b")
    refused(save(), "Missing: x, y; it has: nothing")


def test_missing_file(tmp_path):
    refused(tmp_path / "none.npz", "must exist", "Check the path")


def test_folder(tmp_path):
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    refused(folder, "must be an .npz archive", "IsADirectoryError")


def test_single_array(tmp_path):
    path = tmp_path / "single.npz"
    with path.open("wb") as file:
        np.save(file, X)
    refused(path, r"Got a single array \(\.npy\)", r"numpy\.savez")


@pytest.mark.parametrize("content", [b"", b"x,y\n1,2\n", b"PK\x03\x04 torn"])
def test_other_files(tmp_path, content):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    refused(path, r"must be an \.npz archive", r"failed with \w+: ", r"numpy\.savez")


@pytest.mark.parametrize("keep", [0.3, 0.7])
def test_torn_file(save, keep):
    path = save(x=np.zeros((100, 100)), y=np.zeros(100))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    refused(path, r"failed with \w+: ", "Write it again")


def test_flipped_byte_inside_an_array(save):
    path = save(x=np.zeros((100, 100)), y=np.zeros(100))
    content = bytearray(path.read_bytes())
    content[5000] ^= 255
    path.write_bytes(bytes(content))
    refused(path, "failed with BadZipFile: Bad CRC-32")


def test_without_numpy_the_pip_line_is_given(save, monkeypatch):
    path = save(x=X, y=Y)
    monkeypatch.setitem(sys.modules, "numpy", None)
    message = r"^Reading \.npz files needs numpy: pip install 'spiritlevel\[cli\]'$"
    with pytest.raises(MissingExtra, match=message):
        read_npz(path)


def test_load_takes_a_path(save):
    path = str(save(x=X, y=Y))
    for split in ("train", "all"):
        assert torch.equal(load(path, split)[1], torch.from_numpy(Y))


def test_load_of_a_file_has_no_test_split(save):
    path = str(save(x=X, y=Y))
    message = rf"'train' or 'all' for an \.npz file.* Got 'test' for {re.escape(repr(path))}"
    with pytest.raises(SpiritlevelError, match=message):
        load(path, "test")
