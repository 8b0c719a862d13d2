"""Penalties of language models: the labels are read as the model itself reads them."""

import pytest
import torch
from torch.nn import functional as F

import spiritlevel as sl
from training.penalties.penalty_zoo import PENALTIES, make_penalty

transformers = pytest.importorskip("transformers")


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11,
        n_embd=8,
        n_layer=1,
        n_head=2,
        n_positions=8,
        tie_word_embeddings=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    return transformers.GPT2LMHeadModel(config).double().train()


def tokens():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(11, (4, 6), generator=generator)


def penalty_of(name, model, weight=1.0):
    generator = torch.Generator().manual_seed(2)
    return make_penalty(name, model, weight, layer="lm_head", generator=generator)


@pytest.mark.parametrize("kind", ["trace", "kappa"])
def test_the_penalty_is_the_measure_of_the_batch(kind):
    model, ids = gpt2(), tokens()
    penalty = sl.HeadPenalty(model, kind=kind)
    penalty({"input_ids": ids}, ids)
    batch = {"input_ids": ids, "labels": ids}
    measured = sl.measure(model.eval(), [batch], measures=f"head.{kind}")[f"head.{kind}"]
    assert float(penalty.value) == pytest.approx(measured.value, rel=1e-9)


# The user's penalty of the tests is made for one output per sample.
@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "own"])
def test_the_call_and_the_shared_forward_agree(name):
    model, ids = gpt2(), tokens()
    inputs = {"input_ids": ids}
    alone = penalty_of(name, model)(inputs, ids)
    shared = penalty_of(name, model)
    with shared.shared_forward():
        loss = model(**inputs, labels=ids).loss
    term = shared(inputs, ids, loss=loss)
    torch.testing.assert_close(term, alone)
    without_labels = penalty_of(name, model)
    with without_labels.shared_forward():
        logits = model(**inputs).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(without_labels(inputs, ids, loss=loss), alone)
