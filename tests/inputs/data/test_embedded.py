import gzip
import inspect
import random
import re

import pytest
import torch

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs import data
from spiritlevel.inputs.data import digits, load
from spiritlevel.inputs.data import embedded as module


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in x.flatten(1).tolist()]


def test_all_is_what_scikit_learn_distributes():
    datasets = pytest.importorskip("sklearn.datasets", reason="the oracle is scikit-learn's copy")
    oracle = datasets.load_digits()
    x, y = digits("all", flat=True)
    # Sixteenths are exact in float32: the comparison needs no tolerance.
    assert torch.equal(x.double() * 16, torch.from_numpy(oracle.data))
    assert torch.equal(y, torch.from_numpy(oracle.target).long())


def test_shapes_types_and_range():
    for split, num in {"train": 1297, "test": 500, "all": 1797}.items():
        x, y = digits(split)
        assert x.shape == (num, 1, 8, 8)
        assert y.shape == (num,)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert (x.min(), x.max()) == (0, 1)
        assert torch.equal(digits(split, flat=True)[0], x.flatten(1))


@pytest.mark.parametrize("seed", [0, 7])
def test_train_and_test_partition_the_whole(seed):
    parts = [digits(split, flat=True, seed=seed) for split in ("train", "test")]
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    whole_x, whole_y = digits("all", flat=True)
    together = sorted(zip(rows(x), y.tolist(), strict=True))
    assert together == sorted(zip(rows(whole_x), whole_y.tolist(), strict=True))


def test_split_is_stratified():
    counts = digits("all")[1].bincount()
    share = digits("test")[1].bincount() / counts
    # Rounding moves a class by less than one image of its 174 or more.
    torch.testing.assert_close(share, torch.full((10,), 500 / 1797), atol=1 / 174, rtol=0)


def test_split_is_shuffled_and_fixed_by_the_seed():
    x, y = digits("train")
    again, other = digits("train"), digits("train", seed=1)
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])
    assert not torch.equal(y, other[1])
    assert not torch.equal(y, y.sort().values)


def test_split_stays_the_same_between_releases():
    # Recorded once: published accuracies refer to this split.
    assert digits("train")[1][:12].tolist() == [6, 0, 3, 7, 6, 1, 1, 1, 2, 4, 1, 1]
    assert digits("test")[1][:12].tolist() == [6, 5, 3, 8, 3, 7, 7, 9, 5, 0, 8, 0]


def test_global_generators_are_left_alone():
    before = torch.get_rng_state(), random.getstate()
    digits("train", seed=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_writing_into_the_result_does_not_reach_the_next_caller():
    first, labels = digits("all")
    first.zero_()
    labels.zero_()
    assert digits("all")[0].sum() > 0
    assert digits("all")[1].sum() > 0


def test_unknown_split_is_named():
    with pytest.raises(SpiritlevelError, match=r"'train', 'test' or 'all'\. Got 'valid'"):
        digits("valid")


def packed() -> bytes:
    return module.resources.files("spiritlevel.inputs.data").joinpath("digits.bin.gz").read_bytes()


def test_file_is_small_and_carries_no_clock():
    assert len(packed()) < 100_000
    assert packed()[4:8] == bytes(4)  # the gzip header's time stamp


def test_one_changed_pixel_is_noticed():
    raw = bytearray(gzip.decompress(packed()))
    assert module._unpack(gzip.compress(bytes(raw))) == bytes(raw)
    raw[100] ^= 1
    message = r"'digits\.bin\.gz' .* Got SHA-256 [0-9a-f]{64}\. .* --force-reinstall"
    with pytest.raises(SpiritlevelError, match=message):
        module._unpack(gzip.compress(bytes(raw)))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:1000], lambda b: b"not gzip", lambda b: b[:500] + b[600:]]
)
def test_damaged_gzip_is_noticed(damage):
    with pytest.raises(SpiritlevelError, match=r"Got bytes that gzip cannot read \(.+\)\."):
        module._unpack(damage(packed()))


def test_attribution_travels_with_the_data():
    source = inspect.getdoc(module) or ""
    assert re.search(r"Alpaydin.*Kaynak.*10\.24432/C50P49.*CC BY 4\.0", source, re.DOTALL)


def test_load_by_name():
    for split in ("train", "test", "all"):
        x, y = load("digits", split)
        assert torch.equal(x, digits(split)[0])
        assert torch.equal(y, digits(split)[1])
    assert torch.equal(load("digits")[1], digits("train")[1])


@pytest.mark.parametrize("name", ["iris", "data.csv", ""])
def test_load_of_anything_else_gives_the_options(name):
    message = rf"must be 'digits' .* ending in \.npz .* Got {re.escape(repr(name))}\."
    with pytest.raises(SpiritlevelError, match=message):
        data.load(name)
