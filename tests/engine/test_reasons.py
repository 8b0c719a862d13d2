"""A result says what was picked for it, and why."""

import re

import pytest
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.weight_space.probes import GLANCE, PILOT
from spiritlevel.testing import references
from zoo.plain import after_training, classes, network, random

pytestmark = pytest.mark.usefixtures("only_probes")

TRACE, GGN = "curvature.trace", "curvature.ggn_trace"


def problem(activation=nn.Tanh, num_classes=3, n=24):
    return network(activation, (4, 6, num_classes)), (random(n, 4), classes(n, num_classes))


def trained(steps=300):
    """Smooth, and near a minimum: the residual is small there."""
    net, (x, _) = problem()
    y = (x @ random(4, 3, seed=1)).argmax(dim=1)
    return after_training(net, x, y, steps), (x, y)


def text_of(model, data, name=TRACE, **options):
    return sl.measure(model, data, measures=name, **options)[name].text


@pytest.mark.parametrize("method", ["auto", "exact", "split"])
def test_all_columns_and_the_certificate(method):
    model, data = problem(nn.ReLU)
    assert text_of(model, data, method=method) == "2 columns, certified"
    assert text_of(model, data, GGN, method=method) == "2 columns"
    assert text_of(*problem(nn.ReLU, num_classes=2), method=method) == "1 column, certified"
    report = sl.measure(model, data, measures=TRACE, method=method)
    assert {m.text for m in report.layers[TRACE].values()} == {""}  # said once, not by each layer


@pytest.mark.parametrize(
    ("method", "why"), [("auto", ", which would take 39 passes"), ("output_probes", "")]
)
def test_output_probes_and_what_they_save(method, why):
    model, data = problem(nn.ReLU, num_classes=40, n=200)
    options = {"method": method, "rtol": 0.3}
    found = rf"\d+ output probes for 39 columns{why}"
    assert re.fullmatch(found + "; certified", text_of(model, data, **options))
    assert re.fullmatch(found, text_of(model, data, GGN, **options))


def probe_variance(M):
    """Of ⟨z, Mz⟩ over random signs z."""
    return float(2 * (M.square().sum() - M.diagonal().square().sum()))


def true_share(model, data):
    """Of the variance of a probe, that the residual has of the Hessian's; layer 0 alone bends."""
    truth = references.Truth(model, [data], F.cross_entropy)
    names = ["0.weight", "0.bias"]
    H = truth.hessian(names)
    return probe_variance(H - truth.ggn(names)) / probe_variance(H)


COMPARED = r"(\S+) of the Hessian's variance in (\d+) probes of each"


def test_residual_near_a_minimum():
    model, data = trained()
    share = true_share(model, data)
    assert share < 0.2
    found = re.fullmatch(
        rf"the GGN exactly from 2 columns and {PILOT} weight probes of the residual H − GGN: not "
        rf"certified for '0\.weight' and 1 more, and it has {COMPARED}",
        text_of(model, data, rtol=0.5),
    )
    assert int(found[2]) == GLANCE
    assert share / 5 < float(found[1]) < 1


def test_hessian_where_the_residual_is_no_smaller():
    """Tight enough that the first look is at all 32 probes of each."""
    model, data = trained(steps=0)
    share = true_share(model, data)
    texts = [text_of(model, data, rtol=0.02, max_passes=3000, seed=seed) for seed in range(3)]
    for text in texts:
        ((shown, count),) = re.findall(COMPARED, text)
        assert int(count) == PILOT
        assert share / 3 < float(shown) < 3 * share  # 32 draws know a variance to a quarter
        (picked,) = re.findall(
            r"weight probes of the (.*): not certified for '0\.weight' and 1 more, and ", text
        )
        assert picked == "Hessian" if float(shown) > 1 else "residual H − GGN"


def test_split_does_not_compare():
    model, data = problem()
    text = text_of(model, data, method="split", rtol=0.9)
    assert text.endswith("of the residual H − GGN: not certified for '0.weight' and 1 more")


def test_methods_that_were_asked_for_give_no_reason():
    model, data = problem()
    options = {"rtol": 0.9, "max_passes": 3 * PILOT}
    assert text_of(model, data, method="hutchinson", **options) == "32 weight probes of the Hessian"
    directions = "Hutch++: 32 weight probes after 32 dominant directions"
    assert text_of(model, data, method="hutch++", **options) == directions


def test_layer_that_needed_no_weight_probes_does_not_name_them():
    """Output probes gave the head, and weight probes the layer below it."""
    model, data = problem(nn.Tanh, num_classes=40, n=200)
    report = sl.measure(model, data, measures=TRACE, rtol=0.3)
    layers = {layer: m.text for layer, m in report.layers[TRACE].items()}
    assert re.fullmatch(
        r"\d+ output probes for 39 columns, which would take 39 passes; certified", layers["2"]
    )
    assert "weight probes of the" in layers["0"]
