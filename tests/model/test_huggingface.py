"""Models of transformers as they are: which loss is measured, and what is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import spiritlevel as sl
from spiritlevel.model.surface import Surface

pytest.importorskip("transformers")

from zoo.language_models import (
    CAUSAL,
    HEADS,
    MODELS,
    NUM_CLASSES,
    V,
    batches,
    build,
    counted,
    head_by_hand,
    transformers,
)


def mean_loss(model, data, **options):
    """What the library averages, through the part of it that runs models."""
    surface = Surface(model, data, **options)
    value = weight = 0.0
    with torch.no_grad():
        for where, batch in surface.batches():
            outputs, targets = surface.outputs(batch, where=where)
            value += float(surface.loss.values(outputs.double(), targets).sum())
            weight += float(surface.loss.weights(outputs, targets).sum())
    return value / weight


# -- which loss it is ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_loss_is_the_models_own_over_all_tokens(name):
    model, data = build(name), batches(name)
    with torch.no_grad():
        own = [(counted(name, b["labels"]), float(model(**b).loss)) for b in data]
    expected = sum(n * loss for n, loss in own) / sum(n for n, _ in own)
    assert own[0][0] != own[1][0]  # else an average over batches would do
    # transformers computes the loss of a causal model in float32
    assert mean_loss(model, data) == pytest.approx(expected, rel=1e-6)


def test_several_labels_a_sequence_are_not_one_distribution():
    model, data = build("bert sequences"), batches("bert sequences", sizes=(4,))
    data[0]["labels"] = torch.eye(4, NUM_CLASSES).double()  # transformers takes this for BCE
    with torch.no_grad():
        own = float(model(**data[0]).loss)
    model.config.problem_type = None  # which the call above has set
    assert mean_loss(model, data, loss="bce") == pytest.approx(own, rel=1e-9)
    try:
        found = mean_loss(model, data)
    except sl.SpiritlevelError:
        return  # to ask for loss="bce" is as good
    assert found == pytest.approx(own, rel=1e-9)


def test_a_regression_takes_squared_error():
    model, data = build("bert sequences", num_labels=1), batches("bert sequences", sizes=(4,))
    data[0]["labels"] = torch.tensor([0.1, 2.0, -1.0, 0.5]).double()
    with torch.no_grad():
        own = float(model(**data[0]).loss)
    assert mean_loss(model, data, loss="mse") == pytest.approx(own, rel=1e-9)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_padding_token_may_be_what_is_ignored(name):
    model, data = build(name), batches(name)
    rows, following = [], []
    with torch.no_grad():
        for batch in data:
            batch["labels"] = batch["input_ids"].clone()  # 1 where padded
            inputs = {key: value for key, value in batch.items() if key != "labels"}
            rows.append(model(**inputs).logits[:, :-1].reshape(-1, V))
            following.append(batch["labels"][:, 1:].flatten())
    expected = F.cross_entropy(torch.cat(rows), torch.cat(following), ignore_index=1)
    given = nn.CrossEntropyLoss(ignore_index=1)
    assert mean_loss(model, data, loss=given) == pytest.approx(float(expected), rel=1e-9)


def test_every_form_of_batch_is_the_same_data():
    model, data = build("gpt2"), batches("gpt2")
    for batch in data:
        batch["attention_mask"].fill_(1)
    with torch.no_grad():
        own = [(counted("gpt2", b["labels"]), float(model(**b).loss)) for b in data]
    expected = sum(n * loss for n, loss in own) / sum(n for n, _ in own)
    forms = {
        "encoded": [transformers.BatchEncoding(batch) for batch in data],
        "pairs": [(batch["input_ids"], batch["labels"]) for batch in data],
        "nested": [({"input_ids": batch["input_ids"]}, batch["labels"]) for batch in data],
    }
    for form, given in forms.items():
        assert mean_loss(model, given) == pytest.approx(expected, rel=1e-6), form  # float32 above


def next_tokens():
    torch.manual_seed(0)
    tokens = torch.randint(1, V, (3, 9))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@pytest.mark.parametrize("ignored", [0, 2])
def test_a_pair_with_the_next_tokens_is_not_shifted_again(ignored):
    model, (x, y) = build("gpt2"), next_tokens()
    y[:, :ignored] = -100
    with torch.no_grad():
        plain = F.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
    assert mean_loss(model, (x, y)) == pytest.approx(float(plain), rel=1e-9)


def test_a_dict_is_what_the_model_makes_of_it():
    model, (x, y) = build("gpt2"), next_tokens()
    with torch.no_grad():
        own = float(model(input_ids=x, labels=y).loss)
    given = {"input_ids": x, "labels": y}
    assert mean_loss(model, [given]) == pytest.approx(own, rel=1e-6)  # float32 in transformers


@pytest.mark.parametrize("collate", [None, transformers.default_data_collator], ids=["torch", "hf"])
@pytest.mark.parametrize("name", ["gpt2", "bert masked", "bert sequences"])
def test_a_data_loader_of_dicts_is_measured_as_it_is(name, collate):
    model, (data,) = build(name), batches(name, sizes=(5,))
    samples = [{key: values[i] for key, values in data.items()} for i in range(5)]
    loader = DataLoader(samples, batch_size=2, collate_fn=collate)  # 2, 2 and 1
    with torch.no_grad():
        own = float(model(**data).loss)  # of all sequences at once
    assert mean_loss(model, loader) == pytest.approx(own, rel=1e-6)  # float32 in a causal model
    report = sl.measure(model, loader, measures=["head.trace", "softmax.gini"])
    H, _, gini = head_by_hand(name, model, [data])
    assert report["head.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)
    assert report["softmax.gini"].value == pytest.approx(gini, rel=1e-9)
    assert report["head.trace"].settings["head"] == HEADS[name]
    assert report.settings["num_samples"] == 5


@pytest.mark.parametrize("name", ["gpt2", "bert masked", "t5"])
def test_missing_labels_are_named(name):
    data = batches(name)
    for batch in data:
        del batch["labels"]
    match = r"needs its targets under one of labels, .*Got the keys input_ids, attention_mask"
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(build(name), data)


def test_labels_of_another_length_are_refused():
    data = batches("gpt2")
    data[0]["labels"] = data[0]["labels"][:, :-1]
    match = r"to go with outputs of shape \(3, 5, 11\)\. Got \(3, 4\) in batch 0"
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(build("gpt2"), data)


@pytest.mark.parametrize("name", ["gpt2", "bert masked", "t5"])
def test_dropout_in_train_mode_is_refused(name):
    with pytest.raises(sl.SpiritlevelError, match=r"Dropout, p=0.1\) is in train mode.*eval\(\)"):
        sl.measure(build(name).train(), batches(name))


def test_dropout_that_is_no_module_is_found_out():
    model = build("llama", attention_dropout=0.5).train()  # only inside scaled_dot_product
    with pytest.raises(sl.SpiritlevelError, match=r"or on chance.*call model\.eval\(\)"):
        sl.measure(model, batches("llama"), measures="curvature.trace")


def seq2seq(kind):
    """A small encoder–decoder, and a batch for it."""
    common = {
        "vocab_size": 12,
        "d_model": 4,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 6,
        "decoder_ffn_dim": 6,
        "dropout": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    labels = torch.randint(3, 12, (3, 4))
    labels[0, -1] = -100
    if kind == "whisper":
        config = transformers.WhisperConfig(
            **common, num_mel_bins=4, max_source_positions=6, max_target_positions=6
        )
        inputs = {"input_features": torch.randn(3, 4, 12, dtype=torch.float64)}
        return transformers.WhisperForConditionalGeneration(config), inputs | {"labels": labels}
    inputs = {"input_ids": torch.randint(3, 12, (3, 5)), "labels": labels}
    if kind == "bart":
        inputs["decoder_inputs_embeds"] = torch.randn(3, 4, 4, dtype=torch.float64)
        config = transformers.BartConfig(**common, max_position_embeddings=8)
        return transformers.BartForConditionalGeneration(config), inputs
    config = transformers.M2M100Config(**common, max_position_embeddings=8)
    return transformers.M2M100ForConditionalGeneration(config), inputs


@pytest.mark.parametrize("kind", ["whisper", "m2m100", "bart"])
def test_products_of_encoder_decoders_are_those_of_their_own_loss(kind):
    """The first two have no method that shifts labels; the last one gets embeddings."""
    torch.manual_seed(0)
    model, batch = seq2seq(kind)
    model = model.double().eval()
    operator = sl.operator(model, [batch])
    vector = torch.randn(operator.shape[0], dtype=torch.float64)
    parameters = [dict(model.named_parameters())[name] for name in operator.names]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        gradients = torch.autograd.grad(model(**batch).loss, parameters, create_graph=True)
        slope = torch.cat([g.flatten() for g in gradients]) @ vector
        truth = torch.autograd.grad(slope, parameters)
    flat = torch.cat([part.flatten() for part in truth])
    # some of these models compute in float32 inside
    torch.testing.assert_close(operator @ vector, flat, rtol=1e-5, atol=1e-7 * float(flat.norm()))
