"""Standardized κ of padded sequences and GPT-2, its record, its cost, and what it refuses."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from measures.relative.standardized_by_hand import NAMES, scale_of
from spiritlevel.verbs import reference_problems as problems
from zoo.cases import CASES

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
    assert both.cost == one.cost == plain.cost + sl.results.Cost(forwards=8 + 1)
    assert both_seen == one_seen == plain_seen + 8 + 1
    for measure in NAMES:
        assert both[measure].cost == plain["relative.kappa"].cost + sl.results.Cost(forwards=8)
        assert both[measure].settings == plain["relative.kappa"].settings
    assert both["relative.kappa"].cost == plain["relative.kappa"].cost
    assert both["relative.kappa"].value == plain["relative.kappa"].value


def test_the_plan_counts_the_look_at_the_features():
    problem = problems.relu_mlp()
    plan = sl.preflight(problem.model, problem.data, measures=list(NAMES))
    assert plan.cost_per_sample == sl.results.Cost(forwards=2, backwards=2)


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
    assert "The weight of embedding is also used outside its module" in text
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
