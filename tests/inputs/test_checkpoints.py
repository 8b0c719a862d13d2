"""Checkpoints load completely or not at all, run nothing, and say what does not fit."""

import os
import pickle
import stat

import pytest
import safetensors.torch
import torch
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.ground.files import write_atomically
from spiritlevel.inputs.checkpoints import load_checkpoint, save_checkpoint


def small(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def trained() -> nn.Sequential:
    torch.manual_seed(1)
    return small()


def assert_equal_weights(a: nn.Module, b: nn.Module) -> None:
    ours, theirs = a.state_dict(), b.state_dict()
    assert list(ours) == list(theirs)
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def prefixed(model: nn.Module, prefix: str) -> dict:
    return {prefix + key: value for key, value in model.state_dict().items()}


# -- files that load -------------------------------------------------------------------------


def test_safetensors(tmp_path, trained):
    path = tmp_path / "net.safetensors"
    safetensors.torch.save_file(trained.state_dict(), path)
    model = small()
    loaded = load_checkpoint(model, path)
    assert_equal_weights(model, trained)
    assert str(loaded) == f"{path} (4 tensors)"


def test_torch_state_dict_old_and_new_format(tmp_path, trained):
    for zipped in (True, False):
        path = tmp_path / f"net{zipped}.pt"
        torch.save(trained.state_dict(), path, _use_new_zipfile_serialization=zipped)
        model = small()
        load_checkpoint(model, path)
        assert_equal_weights(model, trained)


def test_format_is_found_by_content_not_by_name(tmp_path, trained):
    torch.save(trained.state_dict(), tmp_path / "a.safetensors")
    safetensors.torch.save_file(trained.state_dict(), tmp_path / "b.pt")
    for name in ("a.safetensors", "b.pt"):
        model = small()
        load_checkpoint(model, tmp_path / name)
        assert_equal_weights(model, trained)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_nested_weights_are_found(tmp_path, trained, key):
    path = tmp_path / "run.pt"
    torch.save({key: trained.state_dict(), "epoch": 7, "optimizer": {"state": {}}}, path)
    model = small()
    loaded = load_checkpoint(model, path)
    assert_equal_weights(model, trained)
    assert loaded.container == key
    assert f"found under '{key}'" in str(loaded)


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_removed(tmp_path, trained, prefix):
    path = tmp_path / "net.pt"
    torch.save({"state_dict": prefixed(trained, prefix)}, path)
    model = small()
    loaded = load_checkpoint(model, path)
    assert_equal_weights(model, trained)
    assert loaded.prefix == prefix


def test_a_prefix_that_belongs_to_the_model_stays(tmp_path):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = small()

    source, model = Wrapper(), Wrapper()
    torch.save(source.state_dict(), tmp_path / "net.pt")
    assert load_checkpoint(model, tmp_path / "net.pt").prefix == ""
    assert_equal_weights(model, source)


def test_tied_weights_are_saved_once_and_restored(tmp_path):
    source, model = Tied(), Tied()
    save_checkpoint(source, tmp_path / "tied.safetensors")
    assert list(safetensors.torch.load_file(tmp_path / "tied.safetensors")) == ["embed.weight"]
    load_checkpoint(model, tmp_path / "tied.safetensors")
    assert_equal_weights(model, source)
    assert model.head.weight is model.embed.weight


def test_save_and_load_round_trip(tmp_path, trained):
    model = small()
    save_checkpoint(trained, tmp_path / "deep" / "net.safetensors")
    load_checkpoint(model, tmp_path / "deep" / "net.safetensors")
    assert_equal_weights(model, trained)


# -- files that do not fit -------------------------------------------------------------------


def refusal(model: nn.Module, path) -> str:
    """The error text; the model must be as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(SpiritlevelError) as caught:
        load_checkpoint(model, path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was changed"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wrong_shapes_are_listed(tmp_path):
    torch.save(small(outputs=7).state_dict(), tmp_path / "net.pt")
    text = refusal(small(), tmp_path / "net.pt")
    assert "shapes differ: 2.weight is (7, 5) in the file and (3, 5) in the model" in text
    assert "2.bias is (7,) in the file and (3,) in the model" in text
    assert text.endswith("Build the model with the options it was trained with.")


def test_missing_and_unknown_names_are_listed(tmp_path, trained):
    state = trained.state_dict()
    state["stem.weight"] = state.pop("0.weight")
    torch.save(state, tmp_path / "net.pt")
    text = refusal(small(), tmp_path / "net.pt")
    assert "missing in the file: 0.weight." in text
    assert "unknown to the model: stem.weight." in text


def test_long_lists_are_cut(tmp_path):
    torch.save({f"w{i}": torch.zeros(1) for i in range(9)}, tmp_path / "net.pt")
    text = refusal(small(), tmp_path / "net.pt")
    assert "unknown to the model: w0, w1, w2, w3, w4 and 4 more" in text


@pytest.mark.parametrize(
    ("content", "came"),
    [
        ([1, 2], "an object of type list"),
        ({"epoch": 3}, "a dict with 'epoch'"),
        ({"model": {"lr": 0.1}}, "a dict with 'lr' under 'model'"),
        ({}, "a dict with nothing"),
    ],
)
def test_files_without_weights_say_what_they_hold(tmp_path, content, came):
    torch.save(content, tmp_path / "net.pt")
    text = refusal(small(), tmp_path / "net.pt")
    assert f"Got {came}. Save model.state_dict()." in text


def test_missing_file(tmp_path):
    path = tmp_path / "none.pt"
    assert f"The checkpoint {str(path)!r} must exist." in refusal(small(), path)


def test_folder(tmp_path):
    assert "is a folder without weights" in refusal(small(), tmp_path)


# -- damaged and malicious files -------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("kept", [0, 5, 40, 0.5, 0.99])
def test_truncated_files(tmp_path, trained, suffix, kept):
    whole = tmp_path / f"whole.{suffix}"
    if suffix == "pt":
        torch.save(trained.state_dict(), whole)
    else:
        safetensors.torch.save_file(trained.state_dict(), whole)
    data = whole.read_bytes()
    size = kept if isinstance(kept, int) else int(kept * len(data))
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(data[:size])
    text = refusal(small(), cut)
    assert f"The checkpoint {str(cut)!r} cannot be read as" in text
    assert f"({size} bytes; " in text
    assert text.endswith("Copy or save it again.")


def test_bytes_that_are_no_checkpoint(tmp_path):
    for name in ("noise.pt", "noise.safetensors"):
        path = tmp_path / name
        path.write_bytes(bytes(range(256)) * 4)
        assert "it is damaged, cut short or something else (1024 bytes" in refusal(small(), path)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("way", ["torch", "pickle"])
def test_malicious_pickle_is_refused_and_not_executed(tmp_path, way):
    trap, path = tmp_path / "trap", tmp_path / "net.pt"
    content = {"state_dict": small().state_dict(), "hook": Malicious(trap)}
    if way == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content["hook"], protocol=2))
    text = refusal(small(), path)
    assert not trap.exists()
    assert "was refused: it holds Python objects beside tensors (posix.mkdir)" in text


def test_the_trap_does_work():
    # Meta-test: plain unpickling of the same object does execute it.
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        trap = os.path.join(folder, "trap")
        pickle.loads(pickle.dumps(Malicious(trap)))
        assert os.path.isdir(trap)


def test_a_pickled_module_is_refused_by_name(tmp_path):
    torch.save(small(), tmp_path / "net.pt")
    text = refusal(small(), tmp_path / "net.pt")
    assert "(torch.nn.modules.container.Sequential)" in text
    assert "save the weights alone: torch.save(model.state_dict(), path)." in text


# -- writing ---------------------------------------------------------------------------------


def test_writing_replaces_the_whole_file(tmp_path):
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_written_files_have_ordinary_permissions(tmp_path):
    write_atomically(tmp_path / "a", b"")
    (tmp_path / "b").touch()
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"}
    assert len(modes) == 1


def test_failed_writing_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(SpiritlevelError, match=r"out\.json' cannot be written: No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SpiritlevelError, match=r"cannot be written: (Not a directory|File exists)"):
        write_atomically(tmp_path / "file" / "out.json", b"")
