"""Columns of studies that measure the head alone say so."""

import pytest
import torch

import spiritlevel as sl
from spiritlevel.measures import names
from spiritlevel.papers import find
from spiritlevel.papers.judging.population import measured, whole_catalogue
from spiritlevel.papers.judging.rows import experiment_rows, of_the_head
from spiritlevel.study import Study
from spiritlevel.study.models import build

ASKS_FOR_MORE = {
    *("norms.distance", "norms.fisher_rao_closed"),
    *("sensitivity.jacobian_outside", "relative.kappa_decay"),
}
AT_ITS_LIMIT = {"pac_bayes.magnitude"}  # no noise lowers the accuracy of an untrained network


def test_what_changes_with_the_layers_is_named_after_them(generator):
    model = build("mlp", inputs=6, hidden=[5], outputs=3).eval()
    x = torch.randn(24, 6, generator=generator)
    data = x, torch.randint(3, (24,), generator=generator)
    chosen = [name for name in names() if name not in ASKS_FOR_MORE]
    whole = sl.measure(model, data, measures=chosen, seed=0)
    head = sl.measure(model, data, measures=chosen, seed=0, layers="head")
    moves = {n for n in chosen if whole[n].value != pytest.approx(head[n].value, rel=1e-5)}
    named = {n for n in chosen if of_the_head(n) != n}
    assert moves <= named
    # the largest of all layers may be that of the head
    assert {n for n in named - moves if not n.endswith("_max")} <= AT_ITS_LIMIT


@pytest.mark.parametrize("layers", [None, "head"])
def test_rows_name_the_head(layers):
    experiment = find("000-table-3")
    study = Study("000-table-3", measure_options={"layers": layers} if layers else {})
    done = [dict.fromkeys(experiment.columns, 1.0) | {"norms.weight": 3.0, "head.trace": 2.0}]
    [row] = experiment_rows(experiment, study, done)
    name = "norms.weight[head]" if layers else "norms.weight"
    assert (row[name], row["head.trace"]) == (3.0, 2.0)
    assert measured([row], ["norms.weight", "head.trace"]) == [name, "head.trace"]


def test_the_norm_of_the_head_stands_beside_that_of_the_network():
    experiment = find("000-table-3")
    values = {"norms.weight": 3.0, "norms.weight[head]": 2.0, "norms.weight[conv1]": 1.0}
    done = [dict.fromkeys(experiment.columns, 1.0) | values]
    [row] = experiment_rows(experiment, Study("000-table-3"), done)
    assert {name: row[name] for name in row if name.startswith("norms")} == {
        "norms.weight": 3.0,
        "norms.weight[head]": 2.0,
    }
    assert "norms.weight[head]" in {cells[0] for cells in whole_catalogue([row] * 3).rows}
