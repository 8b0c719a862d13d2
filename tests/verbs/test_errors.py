"""Bad input is refused with the argument, the need, what came and the next step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel.model.parameters import select_parameters
from verbs.refusals import INF, NAN, batches, mlp, refused


def test_a_good_input_is_not_refused():
    # Meta-test: what all the others vary is accepted.
    assert sl.measure(mlp(), batches(4, 2))["curvature.trace"].value > 0


# -- data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "empty",
    [
        [],
        DataLoader(TensorDataset(*batches(3)[0]), batch_size=8, drop_last=True),
        [(torch.empty(0, 4).double(), torch.empty(0).long())],
    ],
    ids=["empty list", "drop_last", "empty batch"],
)
def test_an_empty_loader(empty):
    refused("data must hold at least one sample", data=empty)


def test_an_empty_batch_among_others_is_no_error():
    data = batches(4, 2)
    expected = sl.measure(mlp(), data, measures="curvature.trace")["curvature.trace"].value
    hollow = [batches(0)[0], data[0], batches(0)[0], data[1]]
    found = sl.measure(mlp(), hollow, measures="curvature.trace")["curvature.trace"].value
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [NAN, INF], ids=str)
@pytest.mark.parametrize(("batch", "sample"), [(0, 1), (0, 3), (1, 0), (1, 1)])
def test_nan_in_the_data_says_which_batch_and_sample(batch, sample, bad):
    data = batches(4, 2)
    data[batch][0][sample, 2] = bad
    model = mlp()
    with torch.no_grad():  # every ReLU closes on infinity: the outputs are finite, the trace is not
        model[0].weight[:, 2] = -model[0].weight[:, 2].abs()
    match = rf"The data of batch {batch} must be finite\. Sample {sample} holds NaN or infinity"
    refused(match, model, data)


def test_nan_in_the_data_says_which_sample_of_the_batch_also_when_it_is_cut():
    data = batches(4, 6)
    data[1][0][5, 0] = NAN
    match = r"The data of batch 1 must be finite\. Sample 5 holds"
    refused(match, data=data, memory=1)  # one sample at a time


def test_nan_in_soft_targets_is_refused():
    data = [(x, F.one_hot(y, 3).double()) for x, y in batches(4, 2)]
    data[1][1][1, 0] = NAN
    refused(r"The data of batch 1 must be finite\. Sample 1 holds NaN", data=data)


def test_outputs_that_overflow_are_named_although_the_data_is_finite():
    class Overflowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(x) * (1000 * x[:, :1]).exp()

    data = batches(4, 2)
    data[1][0][0, 0] = 50.0
    data[0][0][:, 0] = 0.1
    match = "outputs are NaN or infinite in batch 1 although its data is finite"
    refused(match, Overflowing().double().eval(), data, measures="curvature.trace")


@pytest.mark.parametrize(("label", "batch"), [(3, 0), (7, 1), (-1, 1)])
@pytest.mark.parametrize("sample", [0, -1])
def test_labels_out_of_range(label, batch, sample):
    data = batches(4, 2)
    data[batch][1][sample] = label
    match = rf"Labels must lie in \[0, 2\], .* 3 outputs\. Got {label} in batch {batch}"
    refused(match, data=data)


def test_labels_of_a_wrong_shape():
    x, y = batches(3)[0]
    text = refused(r"need shape \(3,\).* Got \(3, 1\) in batch 0", data=(x, y[:, None]))
    assert "one class number per sample" in text
    refused(r"class probabilities .* shape \(3, 3\)\. Got \(3,\) in batch 0", data=(x, y.double()))


def test_targets_of_a_wrong_shape_for_regression():
    x, _ = batches(3)[0]
    match = r"The loss 'mse' needs targets of the outputs' shape \(3, 1\)\. Got \(3,\) in batch 0"
    text = refused(match, mlp(outputs=1), (x, x[:, 0]), loss="mse")
    assert "y[:, None]" in text


def test_a_wrong_shape_in_a_later_batch():
    data = batches(3, 5)
    data[1] = (data[1][0], data[1][1][:, None])
    refused(r"need shape \(5,\).* Got \(5, 1\) in batch 1", data=data)


def test_a_message_about_shapes_speaks_of_the_users_batch():
    # The model is first tried on three samples; the user's batch has seven.
    x, y = batches(7)[0]
    refused(r"need shape \(7,\).* Got \(7, 1\) in batch 0", data=(x, y[:, None]))


def test_inputs_of_a_wrong_shape_fail_as_the_model_does():
    x, y = batches(4)[0]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        sl.measure(mlp(), (x[:, :3], y))


def test_inputs_and_targets_of_different_lengths():
    x, y = batches(3)[0]
    refused(r"need shape \(3,\) .* Got \(2,\) in batch 0", data=[(x, y[:2])])


def test_outputs_that_are_no_class_scores():
    x, y = batches(3)[0]
    text = refused(r"at least 2 classes\. Got \(3, 1\) in batch 0", mlp(outputs=1), (x, y))
    assert "loss='bce' or 'mse'" in text


def test_binary_targets_out_of_range():
    x, y = batches(6)[0]
    targets = torch.stack([y, y, y], dim=1).double()
    assert set(y.tolist()) == {0, 1, 2}
    match = r"must lie in \[0, 1\]\. Got values from 0 to 2 in batch 0"
    refused(match, data=(x, targets), loss="bce")


def test_a_one_shot_iterator():
    refused(r"Got a one-shot iterator \(list_iterator\)", data=iter(batches(4)))
    refused(r"Got a one-shot iterator \(generator\)", data=(batch for batch in batches(4)))


def test_a_single_tensor_is_no_data():
    refused(r"loader of \(x, y\) batches, .* Got Tensor", data=batches(4)[0][0])
    refused(r"Got int\. For tensors", data=3)


def test_a_batch_of_another_form():
    x, y = batches(4)[0]
    refused(r"must be \(x, y\) or a dict with labels\. Got tuple of 3", data=[(x, x, y)])
    refused(r"Got Tensor\. Pass forward=", data=[x])


def test_a_batch_without_tensors():
    refused("at least one tensor with a sample dimension. Got list", data=[["a", "b"]])


def test_a_dict_batch_without_labels():
    x, y = batches(4)[0]
    match = "targets under one of labels, label, targets, target, y. Got the keys input, answer"
    text = refused(match, data=[{"input": x, "answer": y}])
    assert "forward=lambda model, batch" in text


# -- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("curvature.tracce", "'curvature.trace'"), ("relative.kapa", "'relative.kappa'")],
)
def test_an_unknown_measure_suggests_close_names(name, suggestion):
    match = rf"No measure is called '{name}'\. Did you mean {suggestion}"
    refused(match, measures=name)
    refused(match, measures=["softmax.gini", name])
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.cards(name)


def test_a_pattern_without_a_match_lists_the_families():
    match = r"No measure matches 'flatness\.\*'\. Families: activity, bound, curvature, "
    refused(match, measures="flatness.*")


def test_no_measures_at_all():
    refused("must name at least one measure. Got an empty list", measures=[])


def test_a_layers_pattern_without_a_match():
    match = r"Nothing matches 'layer4\.\*'\. Available: 0, 2\."
    refused(match, layers="layer4.*")
    refused(match, layers=["0", "layer4.*"])


def test_a_block_is_named_with_what_is_in_it():
    model = nn.Sequential(mlp(), nn.ReLU())
    refused(r"Nothing matches '0'\. It holds 2 of them: '0\.\*' names all\.", model, layers="0")


def test_a_large_network_does_not_fill_the_screen():
    model = nn.ModuleDict({f"block{i}": nn.Linear(1, 1) for i in range(30)})
    with pytest.raises(sl.SpiritlevelError) as told:
        select_parameters(model, "blok7")
    assert "Did you mean 'block7'" in str(told.value)
    assert str(told.value).endswith("block11 and 18 more.")


@pytest.mark.parametrize("memory", [0, -1])
def test_memory_must_be_positive(memory):
    refused(rf"'memory' argument must be a positive number of bytes\. Got {memory}", memory=memory)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "exactly"}, r"'method' .* one of auto, exact, .* Got 'exactly'\. 'auto' picks"),
        ({"rtol": 0.0}, r"'rtol' .* between 0 and 1\. Got 0\.0\. .* use method='exact'"),
        ({"rtol": 1.0}, r"'rtol' .* between 0 and 1\. Got 1\.0"),
        ({"confidence": 95}, r"'confidence' .* between 0 and 1\. Got 95\. Typical: 0\.95"),
        ({"max_passes": 0}, r"'max_passes' .* at least 1 pass over the data\. Got 0"),
    ],
    ids=str,
)
def test_a_precision_that_cannot_be_met(options, match):
    refused(match, **options)
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.preflight(mlp(), batches(4), **options)


def test_an_unknown_loss():
    refused(r"'loss' argument must be one of 'cross_entropy', .* Got 'nll'", loss="nll")


def test_gini_needs_a_softmax():
    x, _ = batches(4)[0]
    match = r"'softmax\.gini' needs the loss 'cross_entropy'\. Got 'mse'"
    refused(match, data=(x, x[:, :3]), loss="mse", measures="softmax.gini")
    refused(match, data=(x, x[:, :3]), loss="mse", measures=["curvature.trace", "softmax.gini"])


@pytest.mark.parametrize("name", ["relative.kappa", "scaled.lambda_max", "neuron.rho_sum"])
def test_measures_of_weight_matrices_need_one(name):
    model = mlp(nn.BatchNorm1d(5))
    match = rf"'{name}' needs a trainable linear, .* Got 1\. Choose other 'layers'"
    refused(match, model, layers="1", measures=name)


def test_a_report_says_what_it_has():
    report = sl.measure(mlp(), batches(4), measures="softmax.gini")
    with pytest.raises(KeyError, match=r"no 'relative\.kappa'\. It has: softmax\.gini"):
        report["relative.kappa"]
