"""Random signs: a function of their place, fair, independent, and the bits of SplitMix64."""

import itertools

import pytest
import torch

from spiritlevel.math.signs import PackedSigns, random_signs

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # of SplitMix64


def finalized(x):
    """The finalizer of SplitMix64 in whole numbers, as printed by Steele, Lea and Flood."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def plain_sign(seed, stream, row, place):
    """One sign by whole numbers of any size, which do not wrap around by themselves."""
    key = finalized((finalized((seed + GOLDEN) & MASK) + stream + GOLDEN) & MASK)
    key = finalized((key + GOLDEN * row) & MASK)
    word = finalized((key + GOLDEN * (place // 64 + 1)) & MASK)
    return 2 * ((word >> (place % 64)) & 1) - 1


def signs(seed=0, stream=0, rows=range(1), count=64, dtype=torch.float64):
    return random_signs(seed, stream, torch.tensor(list(rows)), count, dtype)


@pytest.mark.parametrize("seed", [0, 1, 12345, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("stream", [0, 7, 1003])
def test_bits_are_those_of_splitmix(seed, stream):
    rows = [0, 1, 5, 10**12]
    found = signs(seed, stream, rows, count=130)
    plain = [[plain_sign(seed, stream, row, place) for place in range(130)] for row in rows]
    assert found.tolist() == plain


def test_rows_may_have_streams_of_their_own():
    rows, streams = torch.tensor([3, 3, 4]), torch.tensor([7, 1003, 0])
    found = random_signs(-5, streams, rows, 70, torch.float64)
    plain = [
        [plain_sign(-5 & MASK, stream, row, place) for place in range(70)]
        for stream, row in zip(streams.tolist(), rows.tolist(), strict=True)
    ]
    assert found.tolist() == plain


def test_packed_signs_are_the_same_bits_tensor_by_tensor():
    """Each tensor starts with a word of its own."""
    shapes = [torch.Size([3]), torch.Size([10, 13]), torch.Size([2, 2, 2]), torch.Size([0])]
    packed = PackedSigns([s.numel() for s in shapes], torch.float32, torch.device("cpu"))
    drawn = packed.drawn(11, 1 << 32, 6)
    assert drawn.nbytes == 8 * (1 + 3 + 1)
    for number, (shape, word) in enumerate(zip(shapes, (0, 1, 4, 5), strict=True)):
        found = packed.of(drawn, number, shape)
        assert found.shape == shape
        assert found.dtype is torch.float32
        places = range(64 * word, 64 * word + shape.numel())
        assert found.flatten().tolist() == [plain_sign(11, 1 << 32, 6, i) for i in places]


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 128, 129, 1000])
def test_shape_and_values(count):
    found = signs(rows=range(50), count=count)
    assert found.shape == (50, count)
    assert set(found.unique().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_same_signs_in_every_precision(dtype):
    found = signs(rows=range(20), count=100, dtype=dtype)
    assert found.dtype is dtype
    assert torch.equal(found.double(), signs(rows=range(20), count=100))


def test_a_row_does_not_depend_on_the_rows_beside_it():
    whole = signs(3, 2, range(100), count=70)
    for rows in ([4], [99, 0, 4], range(40, 60)):
        assert torch.equal(signs(3, 2, rows, count=70), whole[list(rows)])


def test_fewer_signs_are_the_first_ones():
    longest = signs(rows=range(10), count=300)
    for count in (1, 64, 65, 200):
        assert torch.equal(signs(rows=range(10), count=count), longest[:, :count])


def test_no_rows_and_no_columns():
    assert signs(rows=range(3), count=0).shape == (3, 0)
    assert random_signs(0, 0, torch.zeros(0, dtype=torch.int64), 5, torch.float32).shape == (0, 5)


# The statistics below are of fixed seeds: each bound is 5 standard deviations of a fair coin.


def test_fair_in_every_column_and_row():
    draws = signs(rows=range(4096), count=192)
    assert draws.mean(dim=0).abs().max() < 5 / 4096**0.5
    assert draws.mean(dim=1).abs().max() < 5 / 192**0.5


def test_columns_are_uncorrelated():
    draws = signs(rows=range(8192), count=96)
    gram = draws.T @ draws / len(draws)
    assert (gram - torch.eye(96, dtype=torch.float64)).abs().max() < 5.5 / 8192**0.5  # of 4560


def test_rows_are_uncorrelated():
    draws = signs(rows=range(96), count=8192)
    gram = draws @ draws.T / draws.shape[1]
    assert (gram - torch.eye(96, dtype=torch.float64)).abs().max() < 5.5 / 8192**0.5


def test_products_of_three_and_four_are_fair():
    draws = signs(rows=range(4096), count=12)
    for size in (3, 4):
        for columns in itertools.combinations(range(12), size):
            assert draws[:, columns].prod(dim=1).mean().abs() < 5 / 4096**0.5


@pytest.mark.parametrize("vary", ["seed", "stream"])
def test_neighbouring_seeds_and_streams_are_uncorrelated(vary):
    draws = torch.stack([signs(**{vary: k}, rows=range(64), count=64).flatten() for k in range(64)])
    gram = draws @ draws.T / draws.shape[1]
    assert (gram - torch.eye(64, dtype=torch.float64)).abs().max() < 5.5 / 4096**0.5


def test_seed_and_stream_are_not_interchangeable():
    assert not torch.equal(signs(seed=1, stream=2), signs(seed=2, stream=1))
    assert not torch.equal(signs(seed=1, stream=2), signs(seed=0, stream=3))


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    signs(rows=range(100))
    assert torch.equal(torch.get_rng_state(), before)
