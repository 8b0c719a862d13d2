import re
import sys

import pytest
import torch

from spiritlevel.ground.errors import MissingExtra, SpiritlevelError
from spiritlevel.inputs.data import load, read_folder

Image = pytest.importorskip("PIL.Image", reason="PIL writes the images these tests read")


def save(path, pixels, mode="RGB", **options):
    """`pixels` is (height, width, channels) or (height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensor = torch.as_tensor(pixels, dtype=torch.uint8)
    size = (tensor.shape[1], tensor.shape[0])
    Image.frombytes(mode, size, bytes(tensor.flatten().tolist())).save(path, **options)


def pixels(seed, *shape):
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed)).byte()


@pytest.fixture
def folder(tmp_path):
    """Two classes, three images of 4×5; names that sort otherwise than they were made."""
    save(tmp_path / "dog" / "b.png", pixels(2, 4, 5, 3))
    save(tmp_path / "cat" / "x.png", pixels(1, 4, 5, 3))
    save(tmp_path / "dog" / "a.PNG", pixels(3, 4, 5, 3))
    return tmp_path


def refused(read, *parts):
    with pytest.raises(SpiritlevelError, match=re.compile(".*".join(parts), re.DOTALL)):
        read()


def test_images_in_the_order_of_names(folder):
    x, y = read_folder(folder)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert y.tolist() == [0, 1, 1]
    wanted = torch.stack([pixels(seed, 4, 5, 3) for seed in (1, 3, 2)]).permute(0, 3, 1, 2)
    assert torch.equal(x, wanted.float() / 255)


def test_load_and_splits_of_a_plain_folder(folder):
    for split in ("train", "all"):
        assert load(f"folder:{folder}", split)[1].tolist() == [0, 1, 1]
    refused(lambda: load(f"folder:{folder}", "test"), "which has no folder 'test'. Got 'test'")


def test_splits_share_the_numbers_of_their_classes(tmp_path):
    save(tmp_path / "train" / "b" / "1.png", pixels(1, 4, 4, 3))
    save(tmp_path / "test" / "a" / "1.png", pixels(2, 4, 4, 3))
    save(tmp_path / "test" / "b" / "1.png", pixels(3, 4, 4, 3))
    assert load(f"folder:{tmp_path}", "train")[1].tolist() == [1]
    assert load(f"folder:{tmp_path}", "test")[1].tolist() == [0, 1]
    assert load(f"folder:{tmp_path}", "all")[1].tolist() == [1, 0, 1]


def test_grey_images_have_one_channel_unless_there_are_others(tmp_path):
    grey = pixels(1, 4, 4)
    save(tmp_path / "a" / "1.png", grey, "L")
    x, _ = read_folder(tmp_path)
    assert torch.equal(x, grey.view(1, 1, 4, 4).float() / 255)
    save(tmp_path / "b" / "1.png", pixels(2, 4, 4, 4), "RGBA")
    x, _ = read_folder(tmp_path)
    assert torch.equal(x[0], grey.expand(3, 4, 4).float() / 255)
    assert torch.equal(x[1], pixels(2, 4, 4, 4)[..., :3].permute(2, 0, 1).float() / 255)


def test_other_files_are_left_alone(folder):
    (folder / "cat" / "Thumbs.db").write_bytes(b"x")
    (folder / "cat" / ".hidden.png").write_bytes(b"x")
    (folder / ".git").mkdir()
    (folder / "README.txt").write_text("about")
    assert read_folder(folder)[1].tolist() == [0, 1, 1]


def test_sizes_must_agree_or_be_given(folder):
    save(folder / "dog" / "c.png", pixels(5, 6, 7, 3))
    refused(lambda: read_folder(folder), "4×5", "6×7", "c.png", "Give size=, for example size=6")
    assert load(f"folder:{folder}", size=8)[0].shape == (4, 3, 8, 8)
    x, _ = read_folder(folder, size=(4, 5))
    assert x.shape == (4, 3, 4, 5)
    assert torch.equal(x[:3], read_folder_without_last(folder))


def read_folder_without_last(folder):
    (folder / "dog" / "c.png").unlink()
    return read_folder(folder)[0]


def test_resizing_keeps_flat_colours(tmp_path):
    save(tmp_path / "a" / "1.png", torch.full((9, 6, 3), 77))
    x, _ = read_folder(tmp_path, size=(3, 2))
    assert torch.equal(x, torch.full((1, 3, 3, 2), 77 / 255))


@pytest.mark.parametrize("size", [0, -3, (4,), (4, 0), 2.5, "32"])
def test_odd_sizes(folder, size):
    refused(
        lambda: read_folder(folder, size=size),
        r"positive integer or \(height, width\)",
        f"Got {re.escape(repr(size))}",
    )


def test_damaged_and_unusual_images(folder):
    path = folder / "cat" / "y.png"
    whole = (folder / "cat" / "x.png").read_bytes()
    path.write_bytes(whole[: len(whole) - 40])
    refused(
        lambda: read_folder(folder), re.escape(repr(str(path))), f"It has {len(whole) - 40} bytes"
    )
    path.write_bytes(b"not an image")
    refused(lambda: read_folder(folder), "cannot be read: UnidentifiedImageError")
    Image.new("I;16", (5, 4)).save(path)
    refused(lambda: read_folder(folder), "8 bits a channel. Got mode 'I;16'")


def test_empty_and_missing_folders(tmp_path):
    refused(lambda: read_folder(tmp_path), "one folder a class", "Got none")
    (tmp_path / "cat").mkdir()
    refused(lambda: read_folder(tmp_path), "must have images", "Got none in")
    refused(lambda: read_folder(tmp_path / "none"), "nothing there")
    (tmp_path / "file").write_text("x")
    refused(lambda: read_folder(tmp_path / "file"), "a file")


def test_without_pillow_the_pip_line_is_given(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    message = r"^Reading image folders needs PIL: pip install 'spiritlevel\[images\]'$"
    with pytest.raises(MissingExtra, match=message):
        read_folder(folder)
