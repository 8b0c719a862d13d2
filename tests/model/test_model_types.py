"""Tiny models of many types of transformers: products and the GGN against plain autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import spiritlevel as sl

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.nightly

V, LENGTH = 12, 5
TEXT = {
    "vocab_size": V,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 1, "head_dim": 4}
IMAGES = {"image_size": 16, "patch_size": 2, "embed_dim": 4, "depths": [2, 1], "num_heads": [1, 2]}
STATES = {"vocab_size": V, "hidden_size": 8, "num_hidden_layers": 1, "expand": 1}
# class, options of its config
TYPES = {
    "albert, one layer three times": ("AlbertForMaskedLM", TEXT | {"embedding_size": 4}),
    "fnet, complex inside": ("FNetForMaskedLM", TEXT),
    "yoso, a backward of its own": ("YosoForMaskedLM", TEXT),
    "gemma3": ("Gemma3ForCausalLM", TEXT | GROUPED | {"sliding_window": 3}),
    "olmo2": ("Olmo2ForCausalLM", TEXT),
    "mamba": ("MambaForCausalLM", STATES | {"state_size": 3, "time_step_rank": 2}),
    "recurrent_gemma, a state on its modules": (
        "RecurrentGemmaForCausalLM",
        TEXT
        | {"num_key_value_heads": 1, "attention_window_size": 4, "lru_width": 8}
        | {"block_types": ["recurrent", "attention"]},
    ),
    "swinv2, a table that all samples share": (
        "Swinv2ForImageClassification",
        IMAGES | {"window_size": 4, "mlp_ratio": 1.0},
    ),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"},
    ),
}


def build(name):
    kind, options = TYPES[name]
    kind = getattr(transformers, kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(kind.config_class(**options)).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batches(model, generator):
    """Two batches, the last of one sample; no padding, whose row has no gradient."""
    found = []
    for size in (3, 1):
        if model.main_input_name == "pixel_values":
            x = torch.randn(size, 3, 16, 16, generator=generator, dtype=torch.float64)
            found.append({"pixel_values": x, "labels": torch.arange(size) % 2})
        else:
            ids = torch.randint(1, V, (size, LENGTH), generator=generator)
            found.append({"input_ids": ids, "labels": ids.clone()})
    return found


def rows_and_labels(model, data):
    """All outputs that count, one row each."""
    rows, labels = [], []
    for batch in data:
        (inputs, x), (_, y) = batch.items()
        z = model(**{inputs: x}).logits
        if type(model).__name__.endswith("CausalLM"):
            z, y = z[:, :-1], y[:, 1:]
        rows.append(z.reshape(-1, z.shape[-1]))
        labels.append(y.flatten())
    return torch.cat(rows).double(), torch.cat(labels)


def ggn_trace(rows, parameters):
    """Σ ‖Jᵀs‖² over the square roots s of the softmax's Hessian."""
    p = rows.detach().softmax(dim=1)
    values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
    total = 0.0
    for n, roots in enumerate(vectors * values.clamp(min=0).sqrt()[:, None]):
        for s in roots.T:
            gradients = torch.autograd.grad(
                rows[n], parameters, s, retain_graph=True, allow_unused=True
            )
            total += sum(float(g.double().square().sum()) for g in gradients if g is not None)
    return total / len(rows)


def differences(model, data, parameters, v, step=1e-4):
    """The Hessian's product with v, from gradients at two places, as every model has them."""
    sizes = [p.numel() for p in parameters]
    parts = [x.view_as(p) for x, p in zip(v.split(sizes), parameters, strict=True)]
    found = torch.zeros_like(v)
    for sign in (1, -1):
        for p, x in zip(parameters, parts, strict=True):
            p.data.add_(sign * step * x)
        gradients = torch.autograd.grad(
            F.cross_entropy(*rows_and_labels(model, data)), parameters, materialize_grads=True
        )
        found += sign / (2 * step) * torch.cat([g.flatten() for g in gradients])
        for p, x in zip(parameters, parts, strict=True):
            p.data.sub_(sign * step * x)
    return found


@pytest.mark.parametrize("name", TYPES)
def test_products_and_the_ggn(name, generator):
    model = build(name)
    data = batches(model, generator)
    parameters = list(model.parameters())
    report = sl.measure(model, data, measures="curvature.ggn_trace", method="exact")
    H = sl.operator(model, data)
    v = torch.randn(H.shape[0], generator=generator, dtype=torch.float64)
    v /= v.norm()
    product = H @ v
    with sdpa_kernel(SDPBackend.MATH):
        rows, _ = rows_and_labels(model, data)
        expected = ggn_trace(rows, parameters)
        change = differences(model, data, parameters, v)
    # 1e-6: some of them compute in float32 inside, which rounds sums in another order
    assert report["curvature.ggn_trace"].value == pytest.approx(expected, rel=1e-6)
    # the rounding of float32 over the step
    assert float((product - change).norm()) <= 2e-2 * float(change.norm())
