"""Moves of language models as the transformers package builds them."""

from __future__ import annotations

import functools

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


def gpt2(*, tied: bool, layers: int = LAYERS) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=12,
        n_layer=layers,
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


@functools.cache
def found_in(name: str) -> FoundMoves:
    generator = torch.Generator().manual_seed(0)
    model = build(name)
    return find_moves(model, lambda m: m(TOKENS).logits, head="lm_head", generator=generator)


def assert_kept(model: nn.Module, found: FoundMoves) -> None:
    def logits(network: nn.Module) -> Tensor:
        with torch.no_grad():
            return network(OTHERS).logits

    then = logits(model)
    for name in FUNCTION_PRESERVING:
        if name in found.moves:
            moved = found.moves[name].apply(model, torch.Generator().manual_seed(1))
            apart = float((logits(moved) - then).abs().max() / then.abs().max())
            assert apart < max(found.tolerance, found.moves[name].remainder), name


MODELS = {
    "gpt2": lambda: gpt2(tied=False),
    "gpt2 of one layer": lambda: gpt2(tied=False, layers=1),
    "gpt2_tied": lambda: gpt2(tied=True),
    "llama": llama,
}


def build(name: str) -> nn.Module:
    """With weights of a usual size: at initialization the attention would hardly matter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[name]().double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter *= 10
    return model


@pytest.mark.parametrize(
    ("name", "layers"),
    [("gpt2 of one layer", 1), pytest.param("gpt2", LAYERS, marks=pytest.mark.nightly)],
)
def test_gpt2(name, layers):
    model, found = build(name), found_in(name)
    counts = {name: len(found.moves[name].groups) for name in found.moves}
    assert counts["neuron_rescale"] == 2 * layers + 1  # every norm
    assert counts["unit_permute"] == layers + 1  # hidden layers and the residual stream
    assert counts["attention_rescale"] == layers
    assert "logit_temperature" in counts
    assert found.tolerance == 1e-9
    assert_kept(model, found)


@pytest.mark.nightly
def test_gpt2_with_tied_embeddings():
    model, found = build("gpt2_tied"), found_in("gpt2_tied")
    counts = {name: len(found.moves[name].groups) for name in found.moves}
    assert counts["neuron_rescale"] == 2 * LAYERS  # the last norm feeds the tied head
    assert counts["unit_permute"] == LAYERS
    assert counts["attention_rescale"] == LAYERS
    sites = found.moves["logit_temperature"].groups[0].sites
    assert {site.module for site in sites} == {"transformer.ln_f"}  # the head itself is tied
    assert_kept(model, found)


@pytest.mark.nightly
def test_only_the_values_of_a_fused_projection_move():
    model, move = build("gpt2"), found_in("gpt2").moves["attention_rescale"]
    moved = move.apply(model, torch.Generator().manual_seed(1))
    then, now = (m.transformer.h[0].attn for m in (model, moved))
    factors = (now.c_attn.weight / then.c_attn.weight).detach()
    assert torch.equal(factors[:, :24], torch.ones(12, 24, dtype=torch.float64))
    assert (factors[:, 24:] >= 4.99).all()
    ratios = (then.c_proj.weight / now.c_proj.weight).detach()
    assert torch.allclose(ratios[:, 0], factors[0, 24:])


@pytest.mark.nightly
def test_llama():
    model, found = build("llama"), found_in("llama")
    counts = {name: len(found.moves[name].groups) for name in found.moves}
    assert counts["neuron_rescale"] == 2 * LAYERS + 1 + LAYERS  # norms, and what is gated
    assert counts["unit_permute"] == LAYERS + 1
    assert counts["attention_rescale"] == LAYERS
    assert 1e-5 < found.tolerance < 1e-3  # its norms compute in float32 whatever its weights are
    assert_kept(model, found)


@pytest.mark.nightly
def test_heads_mix_by_any_invertible_matrix_where_positions_allow_it():
    """GPT-2 mixes queries with keys and values with outputs; rotary positions forbid the first."""
    mixed = found_in("gpt2").moves["unit_mix"].groups
    assert [(group.width, len(set(group.blocks))) for group in mixed] == [(12, 2)] * 2 * LAYERS
    found = found_in("llama")
    mixed = found.moves["unit_mix"].groups
    assert [{site.name.split(".")[-2] for site in group.sites} for group in mixed] == [
        {"v_proj", "o_proj"}
    ] * LAYERS
    assert [(group.width, len(set(group.blocks))) for group in mixed] == [(4, 2)] * LAYERS
    turned = found.moves["unit_turn"].groups
    # 2 heads of keys with one frequency each, turned in the queries of both heads that read them
    assert [group.width for group in turned] == [2] * LAYERS
    for group in turned:
        entries = {s.name.split(".")[-2]: sum(u >= 0 for u in s.units) for s in group.sites}
        assert entries == {"q_proj": 8, "k_proj": 4}


@pytest.mark.nightly
def test_a_fused_projection_mixes_queries_with_keys():
    model, move = build("gpt2"), found_in("gpt2").moves["unit_mix"]
    moved = move.apply(model, torch.Generator().manual_seed(1))
    then, now = (m.transformer.h[0].attn.c_attn.weight.detach() for m in (model, moved))
    head = 6
    query, key = (slice(start, start + head) for start in (0, 12))
    # the head's query now is its old one times a matrix A, its key the old one times A⁻ᵀ
    first = torch.linalg.lstsq(then[:, query], now[:, query]).solution
    second = torch.linalg.lstsq(then[:, key], now[:, key]).solution
    torch.testing.assert_close(first @ second.T, torch.eye(head, dtype=torch.float64))
    assert float((first - torch.eye(head, dtype=torch.float64)).abs().max()) > 0.5
