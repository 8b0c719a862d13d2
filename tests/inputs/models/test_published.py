"""Models with published weights: loaded by their folder, with their text, or refused in words."""

import json
import pathlib

import pytest
import torch

from command_line import run
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs import build, read_labelled_text, read_text
from spiritlevel.inputs.models.published import tokenizer_of

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = [
    "<unk>",
    "<pad>",
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "then",
    "it",
    "went",
    "home",
]
WORDS += ["to", "sleep"]


def save(folder, model):
    """A model and a tokenizer that splits words, as save_pretrained writes them."""
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", model_max_length=16
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=8, n_layer=1, n_head=2
    )
    return save(tmp_path_factory.mktemp("causal"), transformers.GPT2LMHeadModel(config))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
        label2id={"bad": 0, "good": 1, "fair": 2},
        id2label={0: "bad", 1: "good", 2: "fair"},
    )
    model = transformers.BertForSequenceClassification(config)
    return save(tmp_path_factory.mktemp("classifier"), model)


def gini(logits):
    p = logits.double().softmax(dim=-1)
    return float((1 - p.square().sum(dim=-1)).mean())


def measured(*arguments):
    result = run("measure", *arguments, "--measures", "softmax.gini", "--json", "-")
    return json.loads(result.stdout)


def test_a_language_model_and_a_text(causal, tmp_path):
    text = tmp_path / "story.txt"
    text.write_text("the cat sat on a mat and then it went home to sleep on the mat")
    found = measured("--model", f"hf:{causal}", "--data", f"text:{text}", "--block", "5")
    ids = [WORDS.index(word) for word in text.read_text().split()]
    blocks = torch.tensor([ids[0:5], ids[5:10], ids[10:15]])
    with torch.no_grad():
        logits = transformers.GPT2LMHeadModel.from_pretrained(causal)(blocks).logits
    assert found["measures"]["softmax.gini"]["value"] == pytest.approx(gini(logits), rel=1e-6)
    subject = found["settings"]["subject"]
    following = torch.tensor(ids[1:16]).view(3, 5)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
    assert subject["mean_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert subject["trained"] is True


def test_a_classifier_and_labelled_text(classifier, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "the cat sat", "label": "good"}\n\n{"text": "a mat", "label": 2}\n')
    found = measured("--model", f"hf:{classifier}", "--data", f"jsonl:{rows}")
    ids = [[WORDS.index(w) for w in text.split()] for text in ("the cat sat", "a mat")]
    model = transformers.BertForSequenceClassification.from_pretrained(classifier).eval()
    with torch.no_grad():  # one by one, so that nothing is padded
        logits = torch.cat([model(torch.tensor([each])).logits for each in ids])
    assert found["measures"]["softmax.gini"]["value"] == pytest.approx(gini(logits), rel=1e-6)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2]))
    assert found["settings"]["subject"]["mean_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_text_from_python(causal, classifier, tmp_path):
    model = build(f"hf:{causal}", attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "the cat"}\n{"text": "sat on a mat"}\n')
    x, y = read_text(rows, tokenizer_of(model), block=2)
    words = [[WORDS[i] for i in row] for row in x]
    assert words == [["the", "cat"], ["sat", "on"]]
    assert [[WORDS[i] for i in row] for row in y] == [["cat", "sat"], ["on", "a"]]
    rows.write_text('{"text": "the cat", "label": 1}\n')
    x, y = read_labelled_text(rows, tokenizer_of(model))
    assert set(x) >= {"input_ids", "attention_mask"}
    assert y.tolist() == [1]


def test_a_block_is_as_long_as_the_model_takes(causal, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("the cat sat on a mat " * 20)
    assert read_text(text, tokenizer_of(build(f"hf:{causal}")))[0].shape == (7, 16)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "text:none.txt"], "cannot be read: No such file"),
        (["--data", "text:short.txt"], "Got 3. Give a longer text, or a smaller block: --block 1"),
        (["--data", "text:bytes.txt"], "must be in UTF-8. Got the byte 0xff"),
        (["--data", "text:empty.txt"], "must have text in it"),
        (["--data", "text:short.txt", "--split", "test"], "Leave --split out"),
        (["--data", "digits", "--block", "4"], "must be left out unless the data are a text"),
        (["--data", "jsonl:short.txt"], "must be a file that ends in .jsonl"),
        (["--data", "jsonl:short.jsonl"], "must be a JSON object"),
    ],
)
def test_wrong_text_is_refused(causal, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("the cat sat")
    (tmp_path / "short.jsonl").write_text("the cat sat")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "bytes.txt").write_bytes(b"ab\xff")
    result = run("measure", "--model", f"hf:{causal}", *arguments, code=1)
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("row", "said"),
    [('{"text": "the cat", "label": "great"}', "bad, good, fair. Got 'great'"),
     ('{"text": "the cat", "label": 3}', "Got 3"), ('{"label": 1}', 'with a "text"')],
)  # fmt: skip
def test_wrong_labels_are_refused(classifier, tmp_path, row, said):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(row)
    result = run("measure", "--model", f"hf:{classifier}", "--data", f"jsonl:{rows}", code=1)
    assert said in " ".join(result.stderr.split())


def test_blocks_need_a_causal_model(classifier, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat")
    result = run("measure", "--model", f"hf:{classifier}", "--data", f"text:{text}", code=1)
    assert "need a causal language model" in " ".join(result.stderr.split())


def test_text_needs_a_published_model(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat")
    result = run("measure", "--model", "mlp", "--data", f"text:{text}", code=1)
    assert "Give --model hf:FOLDER" in " ".join(result.stderr.split())


def changed(folder, into, **entries):
    """A copy of a model's folder with other entries in its configuration."""
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    config = json.loads((into / "config.json").read_text()) | entries
    (into / "config.json").write_text(json.dumps(config))
    return f"hf:{into}"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized by 'gptq'"),
        ({"architectures": ["SomebodysOwnModel"]}, "never run unasked"),
        ({"model_type": "theirs", "auto_map": {"AutoConfig": "evil.C"}}, "never run unasked"),
        ({"architectures": None}, "must name one architecture"),
        ({"n_layer": 2}, "must hold every parameter"),
    ],
)
def test_what_cannot_be_measured_is_refused(causal, tmp_path, entries, said):

    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(SpiritlevelError, match=said):
        build(changed(pathlib.Path(causal), tmp_path, **entries))


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    with pytest.raises(SpiritlevelError, match="Got a folder with nothing"):
        build(f"hf:{tmp_path}")
    with pytest.raises(SpiritlevelError, match="Got no folder"):
        build(f"hf:{tmp_path}/none")
    with pytest.raises(SpiritlevelError, match="nothing behind the colon"):
        build("hf:")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: True)
    with pytest.raises(SpiritlevelError, match="no folder here and is not in the local cache"):
        build("hf:no-such-owner/no-such-model")
