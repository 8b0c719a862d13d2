"""Language models of transformers: dense truths, the streamed head, and the model left alone."""

import functools

import pytest
import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.testing import references

pytest.importorskip("transformers")

from zoo.language_models import FLOAT32_INSIDE, HEADS, TIED, Dense, V, batches, build, head_by_hand

# the keys of BERT have a bias, which softmax leaves without any effect
ATTENTION = ["gpt2", "bert masked", "llama"]
CLOSED = ["head.trace", "head.kappa", "head.lambda_max", "softmax.gini"]


def assert_head(report, name, model, data, rel):
    H, head, gini = head_by_hand(name, model, data)
    expected = {
        "head.trace": float(H.trace()),
        "head.kappa": references.kappa(H, head.weight, references.matrix_view(head)),
        "head.lambda_max": float(torch.linalg.eigvalsh(H)[-1]),
        "softmax.gini": gini,
    }
    for measure, value in expected.items():
        assert report[measure].value == pytest.approx(value, rel=rel), measure


# -- dense truths --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_the_ggn_and_the_head_are_exact(name):
    model, data = build(name), batches(name)
    names = ["curvature.ggn_trace", *CLOSED]
    report = sl.measure(model, data, measures=names, method="exact")
    expected = Dense(name, model, data).ggn_trace()
    rel = 1e-6 if name in FLOAT32_INSIDE else 1e-8
    assert report["curvature.ggn_trace"].value == pytest.approx(expected, rel=rel)
    assert report["head.trace"].settings["head"] == HEADS[name]
    assert_head(report, name, model, data, rel=1e-9)


@functools.cache
def dense_values(name):
    """Trace and κ of the dense Hessian."""
    dense = Dense(name, build(name), batches(name))
    H = dense.hessian()
    return float(H.trace()), dense.kappa(H)


@pytest.mark.parametrize(
    ("name", "probes"),
    [*((name, "weight probes") for name in HEADS), *((n, "sample probes") for n in ATTENTION)],
)
@pytest.mark.sampled(2)
def test_estimates_cover_the_dense_hessian(name, probes):
    model, data = build(name), batches(name)
    names = ["curvature.trace", "relative.kappa"]
    method, most = ("auto", 24) if probes == "weight probes" else ("sample_probes", 64)
    report = sl.measure(model, data, measures=names, method=method, max_passes=most)
    for measure, expected in zip(names, dense_values(name), strict=True):
        found = report[measure]
        assert found.quantity == "Hessian"
        assert f"{probes} of the" in found.text
        assert found.stderr > 0
        # 5: a fixed seed, so no flicker
        assert abs(found.value - expected) < 5 * found.stderr, measure


def record_attention(monkeypatch):
    """The calls of torch's fused attention from now on."""
    calls, fused = [], F.scaled_dot_product_attention

    def recorded(*args, **options):
        calls.append(args)
        return fused(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    return calls


@pytest.mark.parametrize("name", ["gpt2", "bert masked"])
def test_everything_at_its_defaults(name, monkeypatch):
    model, data = build(name), batches(name)
    assert model.config._attn_implementation == "sdpa"  # what transformers takes by itself
    dense_trace, dense_kappa = dense_values(name)
    calls = record_attention(monkeypatch)
    report = sl.measure(model, data)
    assert calls
    assert model.config._attn_implementation == "sdpa"
    trace, kappa = report["curvature.trace"], report["relative.kappa"]
    assert abs(trace.value - dense_trace) < 5 * trace.stderr
    assert abs(kappa.value - dense_kappa) < 5 * kappa.stderr
    assert_head(report, name, model, data, rel=1e-9)


def tied_layers(model):
    """Layers that own a parameter which has a second name."""
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first.rpartition(".")[0] for first, *others in names.values() if others}


@pytest.mark.parametrize("name", HEADS)
def test_tied_weights_are_explained(name):
    model, data = build(name), batches(name)
    names = ["head.trace", "head.kappa", "head.lambda_max", "curvature.trace", "relative.kappa"]
    report = sl.measure(model, data, measures=names, max_passes=4)
    for measure in names:
        assert ("tied" in report[measure].text) == (name in TIED), measure
    for measure in names[:3]:
        assert repr(HEADS[name]) in report[measure].text, measure
    for measure in names[3:]:  # of the layers, those of a tied weight and no other
        layers = report.layers[measure]
        told = {layer for layer, m in layers.items() if "tied" in m.text}
        assert told == tied_layers(model) & set(layers), measure
        assert bool(told) == (name in TIED), measure


def test_layers_that_name_a_tied_head_are_told_its_other_name():
    match = r"'lm_head\.weight' is the same tensor as 'transformer\.wte\.weight' \(tied\)"
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(build("gpt2"), batches("gpt2"), layers="lm_head")


# -- the streamed head ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "memory"), [*((name, 1) for name in HEADS), ("gpt2", 4000)])
def test_a_streamed_head_has_the_values_of_a_dense_one(name, memory):
    model, data = build(name), batches(name)
    report = sl.measure(model, data, measures=CLOSED, memory=memory)
    assert_head(report, name, model, data, rel=1e-10)


@pytest.mark.parametrize("name", HEADS)
def test_a_streamed_head_in_single_precision(name):
    model, data = build(name, torch.float32), batches(name)
    report = sl.measure(model, data, measures=CLOSED, memory=1)
    # 1e-5: what float32 features and logits leave; the truth continues from the same weights
    assert_head(report, name, build(name, torch.float32).double(), data, rel=1e-5)


def record_outputs(head):
    """(sequences, bytes that are really there) of every output of the head from now on."""
    made = []
    head.register_forward_hook(
        lambda _, args, out: made.append((len(out), out.untyped_storage().nbytes()))
    )
    return made


@pytest.mark.parametrize("name", ["gpt2", "bert masked", "t5"])
def test_a_streamed_head_forms_no_outputs_over_the_data(name):
    model, data = build(name), batches(name, sizes=(6,))
    one = data[0]["input_ids"].shape[1] * V * 8  # bytes of a sequence's outputs
    made = record_outputs(model.get_submodule(HEADS[name]))
    sl.measure(model, data, measures=CLOSED, memory=1)
    streamed = sum(count for count, size in made if size <= 8)
    assert streamed >= 6  # every sequence went past the head without its outputs
    planned = [(count, size) for count, size in made if size > 8]
    assert max(size for _, size in planned) <= 5 * one  # what the plan tries first
    made.clear()
    sl.measure(model, data, measures=CLOSED)
    assert max(size for _, size in made) == 6 * one  # so the recorder sees them where they are


# -- the model afterwards ------------------------------------------------------------------------


def state(model, head):
    hooks = [
        len(hooks)
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    ]
    return {
        "hooks": hooks,
        "head.forward": "forward" in vars(head),
        "use_cache": getattr(model.config, "use_cache", None),
        "config": model.config.to_dict(),
        "training": [module.training for module in model.modules()],
        "grad": [p.grad for p in model.parameters()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "random": torch.get_rng_state().tolist(),
    }


@pytest.mark.parametrize("fails", [False, True], ids=["runs", "raises"])
@pytest.mark.parametrize(
    ("name", "memory"),
    [("gpt2", 1), ("gpt2", None), ("t5", 1)],
    ids=["gpt2-streamed", "gpt2-whole", "t5-streamed"],
)
def test_the_model_and_the_data_are_left_as_they_were(name, memory, fails):
    model, data = build(name), batches(name)
    if fails:
        data[1]["labels"][0, 1] = V + 5
    head = model.get_submodule(HEADS[name])
    before, weights = state(model, head), {k: v.clone() for k, v in model.state_dict().items()}
    copies = [{key: value.clone() for key, value in batch.items()} for batch in data]
    if fails:  # T5 reads its labels, and fails on them itself
        kind = IndexError if name == "t5" else sl.SpiritlevelError
        with pytest.raises(kind, match=r"Got 16 in batch 1|index out of range"):
            sl.measure(model, data, measures=CLOSED, memory=memory)
    else:
        sl.measure(model, data, measures=CLOSED, memory=memory)
    assert state(model, head) == before
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    for batch, copy in zip(data, copies, strict=True):
        assert all(torch.equal(batch[key], copy[key]) for key in copy)


def test_a_head_with_a_forward_of_its_own_keeps_it():
    model, data = build("gpt2"), batches("gpt2")
    own = model.lm_head.forward  # bound to the instance, as accelerate's hooks do it
    model.lm_head.forward = own
    sl.measure(model, data, measures="head.trace", memory=1)
    assert vars(model.lm_head)["forward"] is own


def test_an_exception_inside_the_network_leaves_the_head_in_place():
    model, data = build("gpt2"), batches("gpt2", sizes=(3, 3, 3))
    calls = 0

    def fail(*_):
        nonlocal calls
        calls += 1
        if "forward" in vars(model.lm_head):  # the head is replaced just now
            raise KeyboardInterrupt

    model.transformer.ln_f.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        sl.measure(model, data, measures="head.trace", memory=1)
    assert calls > 1
    assert "forward" not in vars(model.lm_head)
    assert not model.lm_head._forward_pre_hooks
