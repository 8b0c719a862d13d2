"""Masks that forward returns, and which outputs and targets are refused for what reason."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.model.losses import CrossEntropy
from spiritlevel.testing import references

pytestmark = pytest.mark.sampled(3)  # the others at night

N, T, C = 5, 4, 3
MEASURES = ["curvature.trace", "curvature.ggn_trace", "relative.kappa", "head.trace", "head.kappa"]
NOTHING_COUNTS = r"at least one target that counts\. All of .* are ignored, masked or have class"


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, C)).double().eval()


@pytest.fixture
def x(generator):
    return torch.randn(N, T, 2, generator=generator, dtype=torch.float64)


@pytest.fixture
def y(generator):
    return torch.randint(C, (N, T), generator=generator)


def masked_forward(model, batch):
    return model(batch["x"]), batch["y"], batch["mask"]


def cut(*sizes, **tensors):
    """A dict batch for each size."""
    parts = {key: tensor.split(list(sizes)) for key, tensor in tensors.items()}
    return [{key: parts[key][i] for key in parts} for i in range(len(sizes))]


def measured(model, batches, **options):
    options = {"measures": MEASURES, "method": "exact", "forward": masked_forward, **options}
    return sl.measure(model, batches, **options)


def assert_dense(report, model, x, targets, mean):
    truth = references.Truth(model, [(x, targets)], mean)
    H = truth.hessian(list(truth.parameters))
    assert report["curvature.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)
    assert report["curvature.ggn_trace"].value == pytest.approx(float(H.trace()), rel=1e-9)
    kappas = []
    for layer in ("0", "2"):
        module = model.get_submodule(layer)
        H = truth.hessian([f"{layer}.weight"])
        kappas.append(references.kappa(H, module.weight, references.matrix_view(module)))
    assert report["relative.kappa"].value == pytest.approx(sum(kappas), rel=1e-9)
    assert report["head.kappa"].value == pytest.approx(kappas[-1], rel=1e-9)
    assert report["head.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)


def a_mask(kind):
    """Per position or per sample, in the types that loaders have."""
    shown = torch.rand(N, T, generator=torch.Generator().manual_seed(6)) < 0.6
    shown[1] = False  # one sample counts for nothing
    if "sample" in kind:
        shown = shown.any(dim=1)
    return shown.double() if "float" in kind else shown.long() if "whole" in kind else shown


MASKS = ["position", "position, whole numbers", "sample", "sample, float"]


def spread(mask, shape):
    """The mask over all dimensions of the targets."""
    return (mask != 0).reshape(mask.shape + (1,) * (len(shape) - mask.dim())).expand(shape)


@pytest.mark.parametrize("kind", MASKS)
def test_cross_entropy_leaves_out_what_a_mask_hides_whatever_stands_there(model, x, y, kind):
    mask = a_mask(kind)
    shown = spread(mask, y.shape)
    targets = torch.where(shown, y, torch.tensor(10**6))
    targets[1] = -7
    report = measured(model, cut(3, 2, x=x, y=targets, mask=mask))
    ignored = torch.where(shown, y, torch.tensor(-100))
    assert_dense(report, model, x, ignored, lambda z, t: F.cross_entropy(z.movedim(-1, 1), t))


def test_a_mask_adds_to_what_is_ignored_by_its_value(model, x, y):
    mask = a_mask("position")
    given = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]).double(), ignore_index=2)
    report = measured(model, cut(3, 2, x=x, y=y, mask=mask), loss=given)
    ignored = torch.where(mask, y, torch.tensor(2))

    def mean(z, t):
        return F.cross_entropy(z.movedim(-1, 1), t, given.weight, ignore_index=2)

    assert_dense(report, model, x, ignored, mean)


def elementwise(loss):
    function = {"mse": F.mse_loss, "bce": F.binary_cross_entropy_with_logits}[loss]

    def mean(z, t):
        shown = ~t.isnan()
        return (function(z, t.nan_to_num(), reduction="none") * shown).sum() / shown.sum()

    return mean


@pytest.mark.parametrize("junk", [math.nan, math.inf, -5.0])
@pytest.mark.parametrize("kind", [*MASKS, "output"])
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_elementwise_losses_leave_out_what_a_mask_hides(model, x, generator, loss, kind, junk):
    known = torch.rand(N, T, C, generator=generator, dtype=torch.float64)
    mask = a_mask(kind) if kind != "output" else known > 0.4
    shown = spread(mask, known.shape)
    targets = torch.where(shown, known, junk)
    report = measured(model, cut(3, 2, x=x, y=targets, mask=mask), loss=loss)
    assert_dense(report, model, x, torch.where(shown, known, math.nan), elementwise(loss))


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_masked_targets_may_be_prepared_in_forward(model, x, generator, loss):
    # A copy of the targets, as every rescaling or change of type makes one.
    known = torch.rand(N, T, C, generator=generator, dtype=torch.float64)
    mask = a_mask("position")
    targets = torch.where(mask[..., None], known, math.nan)

    def forward(model, batch):
        return model(batch["x"]), batch["y"] / 2, batch["mask"]

    report = measured(model, cut(3, 2, x=x, y=targets, mask=mask), loss=loss, forward=forward)
    assert_dense(report, model, x, targets / 2, elementwise(loss))


def test_a_mask_and_weight_probes(model, x, y):
    mask = a_mask("position")
    targets = torch.where(mask, y, torch.tensor(99))
    options = {"measures": "curvature.trace", "method": "hutchinson", "max_passes": 60}
    found = measured(model, cut(3, 2, x=x, y=targets, mask=mask), **options)["curvature.trace"]
    ignored = torch.where(mask, y, torch.tensor(-100))
    truth = references.Truth(
        model, [(x, ignored)], lambda z, t: F.cross_entropy(z.movedim(-1, 1), t)
    )
    expected = float(truth.hessian(list(truth.parameters)).trace())
    assert abs(found.value - expected) < 5 * found.stderr  # 5: a fixed seed, so no flicker


# -- what is refused -----------------------------------------------------------------------------


def refused(match, model, batches, **options):
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(model, batches, **options)


@pytest.mark.parametrize("shape", [(N, T + 1), (T,), (N, T, C), (N, 1)], ids=str)
def test_a_mask_of_another_shape_is_refused(model, x, y, shape):
    batch = {"x": x, "y": y, "mask": torch.ones(shape)}
    got = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    match = rf"shape \(5, 4\), or one entry per sample\. Got \({got}\) .* in batch 0\. Reshape"
    refused(match, model, [batch], forward=lambda m, b: (m(x), y, batch["mask"]))


def test_a_mask_of_another_shape_is_refused_for_squared_error(model, x):
    batch = {"x": x, "y": torch.zeros(N, T, C).double(), "mask": torch.ones(N, C)}
    match = r"shape \(5, 4, 3\) or its leading dimensions\. Got \(5, 3\) in batch 0"
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(model, [batch], loss="mse", forward=masked_forward)


def test_probabilities_take_no_mask(model, x):
    p = torch.full((N, T, C), 1 / C).double()
    batch = {"x": x, "y": p, "mask": torch.ones(N)}
    options = {"loss": CrossEntropy(class_dim=-1), "forward": masked_forward}
    refused(r"goes with class numbers .* Got \(5,\) with torch\.float64", model, [batch], **options)


def test_a_label_out_of_range_is_named_and_the_hidden_ones_are_not(model, x, y):
    y[0, 0], y[2, 1] = -7, 99
    mask = torch.ones(N, T, dtype=torch.bool)
    mask[0, 0] = False
    batch = {"x": x, "y": y, "mask": mask}
    match = r"must lie in \[0, 2\].* Got 99 in batch 0"
    refused(match, model, [batch], forward=masked_forward)


def test_a_target_out_of_range_is_named_beside_hidden_ones_that_are_no_numbers(model, x):
    y = torch.full((N, T, C), 0.5).double()
    y[0, 0], y[2, 1] = math.nan, 7.0
    mask = torch.ones(N, T, dtype=torch.bool)
    mask[0, 0] = False
    batch = {"x": x, "y": y, "mask": mask}
    match = r"'bce' must lie in \[0, 1\]\. Got values from 0\.5 to 7 in batch 0"
    refused(match, model, [batch], loss="bce", forward=masked_forward)


EVERYTHING = [
    ("curvature.trace", "exact"),
    ("curvature.trace", "output_probes"),
    ("curvature.trace", "hutchinson"),
    ("curvature.lambda_max", "auto"),
    ("scaled.lambda_max", "auto"),
    ("relative.kappa", "auto"),
    ("head.kappa", "auto"),
    ("head.lambda_max", "auto"),
    ("softmax.gini", "auto"),
]


@pytest.mark.parametrize(("name", "method"), EVERYTHING, ids=str)
def test_data_of_which_nothing_counts_is_refused(model, x, y, name, method):
    nothing = torch.full_like(y, -100)
    refused(NOTHING_COUNTS, model, (x, nothing), measures=name, method=method)
    batch = {"x": x, "y": y, "mask": torch.zeros(N)}
    options = {"measures": name, "method": method, "forward": masked_forward}
    refused(NOTHING_COUNTS, model, [batch], **options)


@pytest.mark.parametrize("name", ["head.trace", "softmax.gini"])
def test_data_of_which_nothing_counts_is_refused_by_a_streamed_head(model, x, y, name):
    nothing = torch.full_like(y, -100)
    refused(NOTHING_COUNTS, model, (x, nothing), measures=name, memory=1)


def test_as_many_tokens_as_classes_need_a_class_dim(generator):
    # The same numbers read in two ways give two losses: nobody guesses.
    model = nn.Linear(2, C).double().eval()
    x = torch.randn(N, C, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(C, (N, C), generator=generator)
    match = (
        r"shape \(5, 3, 3\) with targets \(5, 3\) in batch 0 are ambiguous.*"
        r"loss=spiritlevel\.model\.losses\.CrossEntropy\(class_dim=1\), or class_dim=-1"
    )
    refused(match, model, (x, y))
    values = {}
    for class_dim in (1, -1):
        loss = CrossEntropy(class_dim=class_dim)
        report = sl.measure(model, (x, y), loss=loss, measures="curvature.trace", method="exact")
        truth = references.Truth(
            model, [(x, y)], lambda z, t, d=class_dim: F.cross_entropy(z.movedim(d, 1), t)
        )
        values[class_dim] = report["curvature.trace"].value
        expected = float(truth.hessian(["weight", "bias"]).trace())
        assert values[class_dim] == pytest.approx(expected, rel=1e-9)
    assert values[1] != pytest.approx(values[-1], rel=1e-3)  # so the question mattered


@pytest.mark.parametrize("class_dim", [0, 3, -4, 7])
def test_a_class_dim_that_is_none_of_the_outputs_is_refused(model, x, y, class_dim):
    loss = CrossEntropy(class_dim=class_dim)
    refused("class_dim", model, (x, y), loss=loss, measures="curvature.trace")


def test_outputs_without_a_sample_dimension_are_refused_for_that(model, x, y):
    # Tokens flattened into the batch, as many training loops have them for F.cross_entropy.
    def flat(model, batch):
        return model(batch[0]).flatten(0, 1), batch[1].flatten()

    match = r"\((12|20), 3\)"  # of the three samples that are tried first, or of the batch
    refused(match, model, (x, y), forward=flat, measures="curvature.trace")


@pytest.mark.parametrize("method", ["exact", "hutchinson"])
@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_labels_of_any_whole_type(model, x, y, kind, method):
    # Label images are stored as bytes, with 255 for what does not count.
    y[0] = 255
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]).double(), ignore_index=255)
    options = {"loss": loss, "measures": "curvature.trace", "method": method, "max_passes": 40}
    found = sl.measure(model, (x, y.to(kind)), **options)["curvature.trace"]
    truth = references.Truth(model, [(x, y)], lambda z, t: loss(z.movedim(-1, 1), t))
    expected = float(truth.hessian(list(truth.parameters)).trace())
    # 5: a fixed seed, so no flicker
    margin = 1e-9 * expected if found.stderr is None else 5 * found.stderr
    assert abs(found.value - expected) < margin


def test_bytes_know_no_negative_label():
    # −100 in eight bits is 156, and that is a class here.
    head = nn.Linear(2, 200, bias=False).double().eval()
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).double()
    y = torch.tensor([156, 3, 156, 8], dtype=torch.uint8)
    found = sl.measure(head, (x, y), measures="head.trace")["head.trace"].value
    p = head(x).detach().softmax(dim=1)
    expected = ((1 - p.square().sum(dim=1)) * x.square().sum(dim=1)).mean()
    assert found == pytest.approx(float(expected), rel=1e-9)
