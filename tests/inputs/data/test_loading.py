import re

import pytest
import torch

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.data import CATALOGUE, data_folder, load
from spiritlevel.inputs.data.catalogue import find, published_size

np = pytest.importorskip("numpy", reason="numpy writes the files these tests read")
X = np.arange(12, dtype="float32").reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def refused(read, *parts):
    with pytest.raises(SpiritlevelError, match=re.compile(".*".join(parts), re.DOTALL)):
        read()


# -- npz files with splits -------------------------------------------------------------------


def test_splits_of_an_npz_file(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x_train=X, y_train=Y, x_test=X[:1] + 1, y_test=Y[1:2])
    x, y = load(str(path))
    assert torch.equal(x, torch.from_numpy(X))
    assert y.tolist() == [0, 1, 2, 1]
    x, y = load(str(path), "test")
    assert torch.equal(x, torch.from_numpy(X[:1] + 1))
    assert y.tolist() == [1]
    x, y = load(str(path), "all")
    assert torch.equal(x, torch.from_numpy(np.concatenate([X, X[:1] + 1])))
    assert y.tolist() == [0, 1, 2, 1, 1]


def test_a_split_that_is_not_there(tmp_path):
    path = str(tmp_path / "data.npz")
    np.savez(path, x_train=X, y_train=Y)
    assert len(load(path)[0]) == 4
    missing = "must have the arrays x_test and y_test. Missing: x_test, y_test; it has: x_train"
    refused(lambda: load(path, "test"), missing)
    np.savez(path, x_train=X, y_train=Y[:2])
    refused(lambda: load(path), "arrays x_train and y_train of .* Got 4 and 2 rows")


def test_checks_name_the_array_of_the_split(tmp_path):
    path = str(tmp_path / "data.npz")
    np.savez(path, x_train=X, y_train=Y, x_test=X > 1, y_test=Y)
    refused(lambda: load(path, "test"), "array x_test of .* Got dtype bool", "x_test.astype")
    assert len(load(path)[0]) == 4
    np.savez(path, x_train=X, y_train=Y, x_test=X[:, :2], y_test=Y)
    refused(lambda: load(path, "all"), r"x_train and x_test of .* Got \(3,\) of torch.float32 and")


def test_x_and_y_win_over_splits(tmp_path):
    path = str(tmp_path / "data.npz")
    np.savez(path, x=X, y=Y, x_train=X[:1], y_train=Y[:1])
    assert len(load(path)[0]) == 4


# -- names -----------------------------------------------------------------------------------


def test_splits_are_checked_first():
    refused(lambda: load("digits", "validation"), "'train', 'test' or 'all'. Got 'validation'")


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_data_set_that_was_not_fetched(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path))
    place = re.escape(repr(str(tmp_path / name)))
    refused(lambda: load(name), f"There is no folder {place}", f"`spiritlevel data fetch {name}`")


def test_a_data_set_that_was_fetched_in_part(tmp_path, monkeypatch):
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    refused(lambda: load("cifar10"), "has none of these", "data fetch cifar10")


def test_misspelt_names():
    refused(lambda: load("mnits"), "Got 'mnits'. Did you mean 'mnist'\\?")
    refused(lambda: load("cifar:/data"), "Got 'cifar:/data'. Did you mean 'cifar100?'\\?")
    refused(lambda: load("mnist:"), "Got 'mnist:'")
    refused(lambda: load("folder:"), "Got 'folder:'")
    refused(lambda: find("mnits"), "Got 'mnits'. Did you mean 'mnist'\\?", "spiritlevel data list")


def test_size_is_for_folders_alone():
    refused(lambda: load("digits", size=8), "'size' .* Got 8 for 'digits'")


def test_home_is_known_behind_a_colon(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    refused(lambda: load("mnist:~/none"), re.escape(repr(str(tmp_path / "none"))))
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    assert len(load("~/data.npz")[0]) == 4


# -- the catalogue ---------------------------------------------------------------------------


def test_the_folder_of_fetched_data(tmp_path, monkeypatch):
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("SPIRITLEVEL_DATA")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "spiritlevel" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "spiritlevel" / "data"


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=list(CATALOGUE))
def test_entries_are_complete(entry):
    assert all(re.fullmatch(r"https?://\S+/", source) for source in entry.sources)
    assert len(entry.sources) >= 2
    digits = {"md5": 32, "sha256": 64}
    for file in entry.files:
        kind, _, value = file.checksum.partition(":")
        assert re.fullmatch(rf"[0-9a-f]{{{digits[kind]}}}", value)
        assert file.size > 0
    assert entry.summary
    assert entry.origin


def test_published_sizes():
    assert published_size("cifar-10-binary.tar.gz") == 170_052_171
    assert published_size("train-images-idx3-ubyte.gz") is None  # MNIST's or Fashion-MNIST's
    assert published_size("other") is None
