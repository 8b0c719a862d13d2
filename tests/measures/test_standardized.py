"""κ after standardizing the features, against dense Hessians of networks standardized by hand."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.analysis import reference_problems as problems
from zoo import references
from zoo.cases import CASES
from zoo.losses import LOSSES

NAMES = {"relative.kappa_std": 1, "relative.kappa_var": 2}  # and the power of the deviation
# their weight is used past the module that owns it
REFUSED = {
    "tied_in_two_modules": "a",
    "embedding_tied_with_decoder": "embedding",
    "borrowed_weight": "a",
    "attention_batch_first": "attention.out_proj",
    "attention_sequence_first": "attention.out_proj",
    "transformer_block": "block.self_attn.out_proj",
    "transformer_block_sequence_first": "block.self_attn.out_proj",
}


# -- the reference: what went in by hooks, all at once, and the definition on a dense matrix -----


def inputs_of(model, batches, call=None):
    """Rows (positions, features) of what goes into each layer that is a matrix, by layer."""
    found, handles = {}, []
    for name, module in model.named_modules():
        if references.matrix_view(module) is None:
            continue

        def note(m, args, kwargs, name=name):
            a = (*args, *kwargs.values())[0]
            if isinstance(m, nn.Embedding):
                a = F.one_hot(a, m.num_embeddings).double()
            elif not isinstance(m, nn.Linear):
                a = a.movedim(1, -1)
            found.setdefault(name or references.ROOT, []).append(a.reshape(-1, a.shape[-1]))

        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    x, _ = references.concatenated(batches)
    with torch.no_grad():
        (call or (lambda m, x: m(x)))(model, x)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def scale_of(rows, power):
    """Standard deviation or variance; |mean| or its square for what is constant."""
    v = rows.std(dim=0, unbiased=False)
    v = torch.where(v <= 1e-12 * rows.mean(dim=0).abs(), rows.mean(dim=0).abs(), v)
    return v**power


def standardized_kappa(H, weight, view, v):
    """κ with w' = w·v and H' = H/vv' entry by entry; entries of dead features take no part."""
    d = torch.zeros(weight.numel(), dtype=torch.float64)
    for j, entries in enumerate(view.neurons):
        d[entries] = v[j]
    inverse = torch.where(d > 0, 1 / d, torch.zeros_like(d))
    scaled = H * inverse[:, None] * inverse[None, :]
    return references.kappa(scaled, weight.detach().flatten() * d, view)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_layer_against_dense_matrices(name):
    case = CASES[name]
    model, batches = case.make()
    loss = LOSSES[case.loss]
    options = {"loss": loss.given, "measures": list(NAMES), "method": "exact"}
    if name in REFUSED:
        with pytest.raises(sl.SpiritlevelError, match=REFUSED[name]):
            sl.measure(model, batches, **options)
        return
    call = (lambda m, x: m(*x)) if isinstance(batches[0][0], tuple) else None
    truth = references.Truth(model, batches, loss.plain, call)
    rows = inputs_of(model, batches, call)
    report = sl.measure(model, batches, **options)
    for measure, power in NAMES.items():
        total = 0.0
        for layer, found in report.layers[measure].items():
            module = truth.model if layer == references.ROOT else model.get_submodule(layer)
            weight = "weight" if layer == references.ROOT else f"{layer}.weight"
            bends = layer in case.bends
            assert found.quantity == ("GGN" if bends else "Hessian")
            H = truth.matrix(found.quantity, [weight])
            expected = 0.0
            if layer in rows:
                v = scale_of(rows[layer], power)
                expected = standardized_kappa(H, module.weight, references.matrix_view(module), v)
            assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-13), (measure, layer)
            total += expected
        assert report[measure].value == pytest.approx(total, rel=1e-9, abs=1e-13)


# -- the same from a network written out by hand -------------------------------------------------


class Divided(nn.Module):
    """A layer with W V, that divides what goes in by V."""

    def __init__(self, layer, v):
        super().__init__()
        self.layer, shape = copy.deepcopy(layer), [1, -1] + [1] * (layer.weight.dim() - 2)
        self.v = v.reshape(shape)
        with torch.no_grad():
            self.layer.weight.mul_(self.v)

    def forward(self, a):
        return self.layer(a / self.v)


def tanh_net():
    problem = problems.relu_mlp()
    for i in (1, 3):
        problem.model[i] = nn.Tanh()
    return problem


@pytest.mark.parametrize("make", [problems.relu_mlp, problems.relu_convnet, tanh_net])
def test_network_standardized_by_hand(make):
    problem = make()
    model = problem.model
    rows = inputs_of(model, problem.data)
    for measure, power in NAMES.items():
        made = nn.Sequential(
            *(
                Divided(m, scale_of(rows[str(i)], power) + (rows[str(i)] == 0).all(dim=0))
                if references.matrix_view(m)
                else m
                for i, m in enumerate(model)
            )
        )
        x, y = problem.inputs(), problem.targets()
        torch.testing.assert_close(made(x), model(x), rtol=1e-12, atol=1e-14)  # the same function
        with torch.no_grad():  # dead inputs: no weight, so that they take no part
            for i, m in enumerate(made):
                if isinstance(m, Divided):
                    m.layer.weight[:, (rows[str(i)] == 0).all(dim=0)] = 0
        truth = references.Truth(made, [(x, y)], F.cross_entropy)
        expected = 0.0
        for i, m in enumerate(made):
            if isinstance(m, Divided):
                H = truth.hessian([f"{i}.layer.weight"])
                view = references.matrix_view(m.layer)
                expected += references.kappa(H, m.layer.weight, view)
        found = sl.measure(model, problem.data, measures=measure)[measure]
        if make is tanh_net:  # by probes: 5 standard errors
            assert not found.exact
            assert abs(found.value - expected) <= 5 * found.stderr
        else:
            assert found.exact
            assert found.value == pytest.approx(expected, rel=1e-10)


# -- Theorem 4 of the paper, as printed and as meant ---------------------------------------------


@pytest.mark.parametrize("make", [problems.relu_mlp, problems.relu_convnet])
def test_theorem_holds_with_the_standard_deviation_and_not_with_the_variance(make):
    """Neuron j times α: its variance times α², its outgoing weights over α; WV then moves by α."""
    problem = make()
    model, generator = problem.model, torch.Generator().manual_seed(3)
    for producer, consumer in problem.pairs:
        width = len(model.get_submodule(producer).weight)
        factors = 5 + 20 * torch.rand(width, generator=generator, dtype=torch.float64)
        model = symmetries.rescale_neurons(model, producer, consumer, factors)
    before = sl.measure(problem.model, problem.data, measures=list(NAMES))
    after = sl.measure(model, problem.data, measures=list(NAMES))
    for layer, found in before.layers["relative.kappa_std"].items():
        now = after.layers["relative.kappa_std"][layer].value
        assert now == pytest.approx(found.value, rel=1e-12)
    name = "relative.kappa_var"
    assert abs(after[name].value / before[name].value - 1) > 0.02


def test_a_mean_far_from_zero_leaves_the_deviation_its_digits():
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    shift = torch.tensor([1e6, 0.0, 0.0, 0.0], dtype=torch.float64)
    moved = copy.deepcopy(problem.model)
    with torch.no_grad():
        moved[0].bias.sub_(moved[0].weight @ shift)
    rows = inputs_of(moved, [(x + shift, y)])["0"]
    expected = rows.numpy().std(axis=0)
    workspace = sl.api.open_workspace(moved, [(x[:3] + shift, y[:3]), (x[3:] + shift, y[3:])])
    spreads, cost = workspace.spreads
    v = spreads["0"].scale(1)
    torch.testing.assert_close(
        v / v[1], torch.from_numpy(expected / expected[1]), rtol=1e-8, atol=0
    )
    assert cost.forwards == 8


# -- features that do not vary -------------------------------------------------------------------


def network_with(feature):
    """A column of the data that is constant."""
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    x[:, 2] = feature
    return problem.model, [(x[:5], y[:5]), (x[5:], y[5:])]


def test_a_constant_feature_is_divided_by_its_size_so_its_scale_cancels():
    model, data = network_with(0.7)
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled[0].weight[:, 2] /= 13.0
    _, more = network_with(0.7 * 13.0)
    for measure in NAMES:
        before = sl.measure(model, data, measures=measure)[measure]
        after = sl.measure(scaled, more, measures=measure)[measure]
        assert math.isfinite(before.value)
        if measure == "relative.kappa_std":
            assert after.value == pytest.approx(before.value, rel=1e-12)
        else:
            assert after.value != pytest.approx(before.value, rel=1e-3)


def test_a_constant_feature_is_noticed_through_round_off():
    model, data = network_with(0.1)  # not a binary fraction: its mean is not exactly itself
    single = copy.deepcopy(model).float()
    data32 = [(x.float(), y) for x, y in data]
    for measure in NAMES:
        double = sl.measure(model, data, measures=measure)[measure].value
        assert sl.measure(single, data32, measures=measure)[measure].value == pytest.approx(
            double, rel=1e-4
        )


def test_a_feature_that_is_always_zero_takes_no_part():
    model, data = network_with(0.0)
    narrow = copy.deepcopy(model)
    narrow[0] = nn.Linear(3, 6).double()
    with torch.no_grad():
        narrow[0].weight.copy_(model[0].weight[:, [0, 1, 3]])
        narrow[0].bias.copy_(model[0].bias)
    without = [(x[:, [0, 1, 3]], y) for x, y in data]
    for measure in NAMES:
        found = sl.measure(model, data, measures=measure)[measure].value
        expected = sl.measure(narrow, without, measures=measure)[measure].value
        assert found == pytest.approx(expected, rel=1e-12)


# -- sequences with padding ----------------------------------------------------------------------


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mix = nn.Embedding(7, 4), nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask):
        h = self.mix(self.embedding(input_ids)).relu()
        weights = attention_mask.to(h.dtype)
        return self.head((h * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True))


def padded(lengths, generator):
    found = []
    for length in lengths:
        ids = torch.randint(1, 7, (1, length), generator=generator)
        found.append((ids, torch.randint(3, (1,), generator=generator)))
    return found


def as_batches(samples, cuts):
    start, batches = 0, []
    for cut in cuts:
        part = samples[start : start + cut]
        longest = max(ids.shape[1] for ids, _ in part)
        ids = torch.cat([F.pad(ids, (0, longest - ids.shape[1])) for ids, _ in part])
        batches.append(
            {
                "input_ids": ids,
                "attention_mask": ids != 0,
                "labels": torch.cat([y for _, y in part]),
            }
        )
        start += cut
    return batches


def test_only_tokens_that_exist_count(generator):
    torch.manual_seed(0)
    model = Tagger().double().eval()
    samples = padded([3, 6, 4, 2, 5], generator)
    options = {
        "forward": lambda m, b: (m(b["input_ids"], b["attention_mask"]), b["labels"]),
        "measures": list(NAMES),
    }
    alone = sl.measure(model, as_batches(samples, [1] * 5), **options)  # no padding at all
    together = sl.measure(model, as_batches(samples, [2, 3]), **options)
    for measure in NAMES:
        for layer, found in alone.layers[measure].items():
            now = together.layers[measure][layer].value
            assert now == pytest.approx(found.value, rel=1e-12), (measure, layer)


def test_gpt2_keeps_its_weights_transposed():
    """κ by the definition from the Jacobian of every sample, tokens that exist alone in V."""
    language_models = pytest.importorskip("zoo.language_models")
    model, data = (f("gpt2 sequences") for f in (language_models.build, language_models.batches))
    layer, name = "transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_fc.weight"
    module, taken = model.get_submodule(layer), []
    handle = module.register_forward_pre_hook(lambda m, args: taken.append(args[0].detach()))
    expected, count = [0.0, 0.0], 0
    weight = module.weight.detach()  # (in, out)
    for b in data:
        model(input_ids=b["input_ids"], attention_mask=b["attention_mask"])
    handle.remove()
    real = torch.cat([a[b["attention_mask"] != 0] for a, b in zip(taken, data, strict=True)])
    for b in data:
        inputs = {key: b[key] for key in ("input_ids", "attention_mask")}

        def logits(w, inputs=inputs):
            return torch.func.functional_call(model, {name: w}, (), inputs).logits

        J = torch.autograd.functional.jacobian(logits, weight)  # (N, C, in, out)
        p = logits(weight).detach().softmax(dim=1)
        for n in range(len(p)):
            A = torch.diag(p[n]) - torch.outer(p[n], p[n])
            for i, v in enumerate((scale_of(real, 1), scale_of(real, 2))):
                blocks = [torch.diag(v) @ weight @ G.T @ torch.diag(1 / v) for G in J[n]]
                flat = torch.stack(blocks).flatten(1)
                expected[i] += float((A * (flat @ flat.T)).sum())
            count += 1
    found = sl.measure(model, data, measures=list(NAMES), layers=layer, method="exact")
    for value, measure in zip(expected, NAMES, strict=True):
        assert found[measure].value == pytest.approx(value / count, rel=1e-9)


# -- the record, the cost, and what is refused ---------------------------------------------------


def counted(measures):
    """The report of a call, and the samples that went through the model and back."""
    problem = problems.relu_mlp()
    seen = []
    problem.model.register_forward_hook(lambda m, args, out: seen.append(len(out)))
    return sl.measure(problem.model, problem.data, measures=measures), sum(seen)


def test_all_kinds_of_kappa_come_from_one_plan_certificate_and_sweep():
    """Beside what κ takes the others take one forward pass, in which the features are seen."""
    plain, plain_seen = counted("relative.kappa")
    both, both_seen = counted(["relative.kappa", *NAMES])
    one, one_seen = counted("relative.kappa_std")
    # whether all inputs can be seen is looked up on one sample
    assert both.cost == one.cost == plain.cost + sl.Cost(forwards=8 + 1)
    assert both_seen == one_seen == plain_seen + 8 + 1
    for measure in NAMES:
        assert both[measure].cost == plain["relative.kappa"].cost + sl.Cost(forwards=8)
        assert both[measure].settings == plain["relative.kappa"].settings
    assert both["relative.kappa"].cost == plain["relative.kappa"].cost
    assert both["relative.kappa"].value == plain["relative.kappa"].value


def test_the_plan_counts_the_look_at_the_features():
    problem = problems.relu_mlp()
    plan = sl.preflight(problem.model, problem.data, measures=list(NAMES))
    assert plan.cost_per_sample == sl.Cost(forwards=2, backwards=2)


def test_layers_may_be_chosen():
    problem = problems.relu_mlp()
    every = sl.measure(problem.model, problem.data, measures="relative.kappa_std")
    some = sl.measure(problem.model, problem.data, measures="relative.kappa_std", layers="2")
    assert set(some.layers["relative.kappa_std"]) == {"2"}
    expected = every.layers["relative.kappa_std"]["2"].value
    assert some["relative.kappa_std"].value == pytest.approx(expected, rel=1e-13)


def test_output_probes_and_weight_probes_agree_with_the_exact_value():
    problem = problems.relu_mlp()
    for measure in NAMES:
        exact = sl.measure(problem.model, problem.data, measures=measure)[measure]
        for method in ("output_probes", "hutchinson"):
            found = sl.measure(
                problem.model, problem.data, measures=measure, method=method, rtol=0.2
            )[measure]
            assert found.stderr is not None
            assert abs(found.value - exact.value) <= 5 * found.stderr  # once in a million


def test_tied_weights_are_left_out_by_a_pattern_and_refused_by_name():
    model, batches = CASES["embedding_tied_with_decoder"].make()
    report = sl.measure(model, batches, measures="relative.*")
    assert set(report) == {"relative.kappa", "relative.kappa_max"}
    with pytest.raises(sl.SpiritlevelError) as caught:
        sl.measure(model, batches, measures="relative.kappa_std")
    text = str(caught.value)
    assert "relative.kappa_std" in text
    assert "The weight of embedding is also used past its module" in text
    assert "Choose other 'layers'" in text


def test_no_copy_of_the_model_is_needed():
    """Neither a model that cannot be copied nor a forward that brings its own is in the way."""
    problem = problems.relu_mlp()
    expected = sl.measure(problem.model, problem.data, measures="relative.kappa_std")
    problem.model[0].extra = problem.model[0].weight * 2  # not a leaf: torch refuses to copy it
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(problem.model)
    found = sl.measure(
        problem.model,
        problem.data,
        measures="relative.kappa_std",
        forward=lambda _, batch: (problem.model(batch[0]), batch[1]),
    )
    assert found["relative.kappa_std"].value == expected["relative.kappa_std"].value


def test_the_model_is_left_as_it_was():
    problem = problems.relu_convnet()
    before = copy.deepcopy(problem.model.state_dict())
    sl.measure(problem.model, problem.data, measures=list(NAMES))
    for name, value in problem.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(m._forward_pre_hooks for m in problem.model.modules())
