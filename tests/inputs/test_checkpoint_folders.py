"""Checkpoints as Hugging Face and Lightning leave them, and masks in data files."""

import json
import textwrap

import numpy
import pytest
import safetensors.torch
import torch
from torch import nn
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli.app import app
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.inputs.data.loading import read_attention_mask


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.fixture
def trained():
    torch.manual_seed(1)
    return small()


def equal(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def sharded(folder, state, *, name="model-{}.safetensors"):
    folder.mkdir()
    files = {key: name.format(number) for number, key in enumerate(state)}
    for key, file in files.items():
        safetensors.torch.save_file({key: state[key]}, folder / file)
    index = json.dumps({"metadata": {}, "weight_map": files})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


def test_a_folder_with_one_file(tmp_path, trained):
    safetensors.torch.save_file(trained.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    model = small()
    assert "4 tensors" in str(load_checkpoint(model, tmp_path))
    assert equal(model, trained)


def test_a_folder_with_parts(tmp_path, trained):
    model = small()
    load_checkpoint(model, sharded(tmp_path / "parts", trained.state_dict()))
    assert equal(model, trained)


def test_a_folder_without_weights_says_what_it_needs(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(sl.SpiritlevelError, match=r"without weights.*It has: notes\.txt"):
        load_checkpoint(small(), tmp_path)


def test_an_index_leads_to_no_other_folder(tmp_path, trained):
    folder = tmp_path / "parts"
    folder.mkdir()
    index = {"weight_map": {"0.weight": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(sl.SpiritlevelError, match="does not lie beside it"):
        load_checkpoint(small(), folder)


@pytest.mark.parametrize("prefix", ["net.", "backbone.encoder."])
def test_the_attribute_of_a_lightning_module_is_removed(tmp_path, trained, prefix):
    state = {f"{prefix}{key}": value for key, value in trained.state_dict().items()}
    path = tmp_path / "last.ckpt"
    torch.save({"epoch": 3, "state_dict": state, "global_step": 10}, path)
    model = small()
    loaded = load_checkpoint(model, path)
    assert loaded.prefix == prefix
    assert equal(model, trained)


def test_weights_beside_the_network_are_not_dropped_silently(tmp_path, trained):
    state = {f"net.{key}": value for key, value in trained.state_dict().items()}
    torch.save({"state_dict": state | {"loss.weight": torch.ones(3)}}, tmp_path / "last.ckpt")
    with pytest.raises(sl.SpiritlevelError, match=r"unknown to the model: .*loss\.weight"):
        load_checkpoint(small(), tmp_path / "last.ckpt")


# -- masks -----------------------------------------------------------------------------------


def test_a_mask_is_checked(tmp_path):
    x = torch.arange(6).reshape(2, 3)

    def saved(mask):
        numpy.savez(tmp_path / "data.npz", x=x.numpy(), y=[0, 1], attention_mask=mask)
        return tmp_path / "data.npz"

    assert read_attention_mask(saved([[1, 1, 0], [1, 0, 0]]), "train", x).sum() == 3
    for wrong in ([[1, 1], [1, 0]], [[1, 2, 0], [1, 0, 0]], [[0.5, 1, 0], [1, 0, 0]]):
        with pytest.raises(sl.SpiritlevelError, match="must hold 0 and 1 in the shape"):
            read_attention_mask(saved(wrong), "train", x)
    numpy.savez(tmp_path / "data.npz", x=x.numpy(), y=[0, 1])
    assert read_attention_mask(tmp_path / "data.npz", "train", x) is None


def test_a_bert_from_its_folder_with_masked_tokens(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, intermediate_size=8, num_labels=3, **sizes)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path / "bert")
    lines = f"""
        import transformers
        def make():
            config = transformers.BertConfig.from_pretrained({str(tmp_path / "bert")!r})
            return transformers.BertForSequenceClassification(config)
    """
    (tmp_path / "tiny_bert.py").write_text(textwrap.dedent(lines))
    monkeypatch.syspath_prepend(tmp_path)
    x = torch.randint(1, 20, (12, 6))
    mask = torch.ones(12, 6).long()
    mask[:, 4:] = 0
    y = torch.arange(12) % 3
    numpy.savez(
        tmp_path / "val.npz", x=x.numpy(), y=y.numpy(), attention_mask=mask.numpy().astype("int8")
    )
    command = ["measure", "--model", "tiny_bert:make", "--checkpoint", tmp_path / "bert"]
    command += ["--data", tmp_path / "val.npz", "--measures", "head.kappa", "--json", "-"]
    result = CliRunner().invoke(app, [*map(str, command)])
    assert result.exit_code == 0, result.output
    found = sl.Report.from_json(result.stdout)["head.kappa"].value
    batch = {"input_ids": x, "attention_mask": mask, "labels": y}
    expected = sl.measure(model, batch, measures="head.kappa")["head.kappa"].value
    assert found == pytest.approx(expected, rel=1e-5)
    unmasked = sl.measure(model, (x, y), measures="head.kappa")["head.kappa"].value
    assert found != pytest.approx(unmasked, rel=1e-5)


def mixture(**sizes):
    transformers = pytest.importorskip("transformers", minversion="5")
    sizes = {"num_local_experts": 3, "num_experts_per_tok": 2, "num_hidden_layers": 1} | sizes
    sizes |= {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.MixtralConfig(vocab_size=20, intermediate_size=6, **sizes)
    return transformers.MixtralForCausalLM(config)


@pytest.fixture
def experts(tmp_path):
    """A mixture of experts, and the folder with its weights, in which they have other names."""
    torch.manual_seed(1)
    model = mixture().double()
    model.save_pretrained(tmp_path / "mixture")
    stored = safetensors.torch.load_file(tmp_path / "mixture" / "model.safetensors")
    assert stored.keys() - model.state_dict().keys()
    return model, tmp_path / "mixture"


def test_weights_that_transformers_wrote_under_other_names(experts, capfd):
    model, folder = experts
    torch.manual_seed(2)
    fresh = mixture().double()
    load_checkpoint(fresh, folder)
    assert equal(model, fresh)  # in every bit: none was rounded to float32
    assert capfd.readouterr() == ("", "")


def test_other_names_and_another_size(experts):
    _, folder = experts
    with pytest.raises(
        sl.SpiritlevelError, match=r"must fit the model.*missing in the file: model"
    ):
        load_checkpoint(mixture(num_hidden_layers=2), folder)
