"""Registering measures: names are taken once, claims are known ones, users may add their own."""

import dataclasses

import pytest
from torch import nn

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.measures import Measured, get, measure, names
from spiritlevel.verbs import reference_problems as problems


def fields_of(card):
    """What the decorator was given, and the function."""
    fields = {f.name: getattr(card, f.name) for f in dataclasses.fields(card)}
    fields["cost"] = fields.pop("cost_text")
    return fields, fields.pop("function")


def test_a_name_is_taken_only_once():
    card = get(names()[0])
    fields, function = fields_of(card)
    with pytest.raises(sl.SpiritlevelError, match=f"'{card.name}' is registered twice"):
        measure(**fields)(function)


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        ({"invariant": {"rotation"}}, "symmetries"),
        ({"options": ("rotation",)}, "options"),
    ],
)
def test_a_claim_about_something_unknown_is_refused(claim, kind):
    fields, _ = fields_of(get(names()[0]))
    fields |= {"name": "mine.new", **claim}
    with pytest.raises(
        sl.SpiritlevelError, match=rf"'mine.new' claims unknown {kind} \['rotation'\]"
    ):
        measure(**fields)


def test_a_requirement_that_is_no_function_is_refused():
    fields, _ = fields_of(get(names()[0]))
    fields |= {"name": "mine.new", "requires": ("rotation",)}
    refused = r"requirements of measure 'mine.new' must be a function .* Got 'rotation'\. See"
    with pytest.raises(sl.SpiritlevelError, match=refused):
        measure(**fields)


def test_an_unknown_direction_is_refused():
    fields, _ = fields_of(get(names()[0]))
    fields |= {"name": "mine.new", "direction": "flatter"}
    with pytest.raises(sl.SpiritlevelError, match=r"direction 'flatter'\. Known: \('smaller is"):
        measure(**fields)


def test_a_users_own_measure_takes_part(monkeypatch):
    registry = measure.__globals__
    monkeypatch.setitem(registry, "_CARDS", dict(registry["_CARDS"]))

    @measure(
        name="mine.size",
        summary="Number of weights",
        formula="d",
        paper="none",
        invariant=set(symmetries.SYMMETRIES),
        misleads="Always.",
        needs=get("softmax.gini").needs,
    )
    def size(workspace):
        count = sum(p.numel() for p in workspace.surface.parameters.values())
        return Measured(sl.Measurement("mine.size", float(count), exact=True))

    problem = problems.softmax_regression()
    report = sl.measure(problem.model, problem.data, measures="mine.*")
    assert report["mine.size"].value == 15.0
    assert isinstance(problem.model, nn.Linear)
