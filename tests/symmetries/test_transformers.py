"""Moves of language models as the transformers package builds them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.symmetries import FUNCTION_PRESERVING, FoundMoves, find_moves

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

VOCABULARY, LAYERS = 11, 2
TOKENS = torch.randint(VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(0))
OTHERS = torch.randint(VOCABULARY, (8, 6), generator=torch.Generator().manual_seed(1))
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def gpt2(*, tied: bool) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=12,
        n_layer=LAYERS,
        n_head=2,
        n_positions=8,
        tie_word_embeddings=tied,
        **SPECIAL,
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,  # two heads read the same values
        tie_word_embeddings=False,
        **SPECIAL,
    )
    return transformers.LlamaForCausalLM(config)


def found_in(model: nn.Module) -> FoundMoves:
    generator = torch.Generator().manual_seed(0)
    return find_moves(model, lambda m: m(TOKENS).logits, head="lm_head", generator=generator)


def assert_kept(model: nn.Module, found: FoundMoves) -> None:
    def logits(network: nn.Module) -> Tensor:
        with torch.no_grad():
            return network(OTHERS).logits

    then = logits(model)
    for name in FUNCTION_PRESERVING:
        if name in found.moves:
            moved = found.moves[name].apply(model, torch.Generator().manual_seed(1))
            assert float((logits(moved) - then).abs().max() / then.abs().max()) < found.tolerance


def build(make) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


def test_gpt2():
    model = build(lambda: gpt2(tied=False))
    found = found_in(model)
    counts = {name: len(found.moves[name].groups) for name in found.moves}
    assert counts["neuron_rescale"] == 2 * LAYERS + 1  # every norm
    assert counts["unit_permute"] == LAYERS + 1  # hidden layers and the residual stream
    assert counts["attention_rescale"] == LAYERS
    assert "logit_temperature" in counts
    assert found.tolerance == 1e-9
    assert_kept(model, found)


def test_gpt2_with_tied_embeddings():
    model = build(lambda: gpt2(tied=True))
    found = found_in(model)
    counts = {name: len(found.moves[name].groups) for name in found.moves}
    assert counts["neuron_rescale"] == 2 * LAYERS  # the last norm feeds the tied head
    assert counts["unit_permute"] == LAYERS
    assert counts["attention_rescale"] == LAYERS
    assert "is shared by 'transformer.wte' and 'lm_head'" in found.absent["logit_temperature"]
    assert_kept(model, found)


def test_only_the_values_of_a_fused_projection_move():
    model = build(lambda: gpt2(tied=False))
    moved = (
        found_in(model).moves["attention_rescale"].apply(model, torch.Generator().manual_seed(1))
    )
    then, now = (m.transformer.h[0].attn for m in (model, moved))
    factors = (now.c_attn.weight / then.c_attn.weight).detach()
    assert torch.equal(factors[:, :24], torch.ones(12, 24, dtype=torch.float64))
    assert (factors[:, 24:] >= 4.99).all()
    ratios = (then.c_proj.weight / now.c_proj.weight).detach()
    assert torch.allclose(ratios[:, 0], factors[0, 24:])


def test_llama():
    model = build(llama)
    found = found_in(model)
    counts = {name: len(found.moves[name].groups) for name in found.moves}
    assert counts["neuron_rescale"] == 2 * LAYERS + 1 + LAYERS  # norms, and what is gated
    assert counts["unit_permute"] == LAYERS + 1
    assert counts["attention_rescale"] == LAYERS
    assert 1e-5 < found.tolerance < 1e-3  # its norms compute in float32 whatever its weights are
    assert_kept(model, found)
