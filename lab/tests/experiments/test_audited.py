"""What is kept of an audit, and the table over several networks."""

import json
import math

import pytest
from torch import nn

import spiritlevel as sl
from publishing.audited import AuditRecord, audit_table, load_all, save
from publishing.markdown import escape
from publishing.pages import pages
from spiritlevel import SpiritlevelError
from spiritlevel.symmetries import CONFIDENCE_ONLY
from zoo.plain import after_training, classes, network, random

pytestmark = pytest.mark.sampled(2)  # the others at night

MEASURES = ["curvature.trace", "relative.kappa", "norms.weight", "softmax.gini"]


@pytest.fixture(scope="module")
def audit():
    x, y = random(24, 4), classes(24, 3)
    return sl.audit(after_training(network(nn.ReLU), x, y, 50), (x, y), measures=MEASURES)


def test_what_is_kept(audit):
    found = AuditRecord.of(audit, "a small network")
    assert found.samples == 24
    assert set(found.moves) == set(audit.moved) - set(CONFIDENCE_ONLY)
    assert found.verdicts["relative.kappa"][0] == audit.verdict("relative.kappa").kind
    kind, factor, move = found.verdicts["norms.weight"]
    assert kind == "confounder"
    assert found.verdicts["curvature.trace"][0] == "scale"
    before = audit.original["norms.weight"].value
    factors = {m: audit.after("norms.weight", m).value / before for m in found.moves}
    assert move == max(factors, key=lambda m: abs(math.log(factors[m])))
    assert factor == pytest.approx(factors[move], rel=5e-3)


def test_comes_back_and_is_shown(audit, tmp_path):
    found = AuditRecord.of(audit, "a | <small> network")
    path = save(found, tmp_path, "small")
    assert path.name == "small.json"
    assert load_all(tmp_path) == [found]
    page = pages(tmp_path)["experiments.md"].decode()
    assert escape("a | <small> network") in page
    assert "<small>" not in page
    assert "24 samples" in page


def test_table_has_what_experiments_rest_on(audit):
    found = AuditRecord.of(audit, "first")
    other = AuditRecord("second", 5, ("layer_rescale",), {"head.kappa": ("comparable", None, "")})
    table = audit_table([found, other])
    assert table.columns == ("measure", "first", "second")
    by_name = {row[0]: row[1:] for row in table.rows}
    assert by_name["head.kappa"] == [None, "comparable"]
    assert by_name["curvature.trace"][0].startswith("not comparable (")
    assert by_name["curvature.trace"][1] is None
    assert "pac_bayes.sigma" not in by_name  # in neither of the audits
    assert [row[0] for row in table.rows] == sorted(by_name)


def test_without_audits_there_is_no_table(tmp_path):
    assert load_all(tmp_path) == []
    assert "symmetry" not in pages(tmp_path)["experiments.md"].decode()


def test_text_that_is_no_record(tmp_path):
    folder = tmp_path / "audits"
    folder.mkdir()
    (folder / "x.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(SpiritlevelError, match=r"AuditRecord.from_json must be"):
        load_all(tmp_path)
