"""Saved records that were edited or damaged are read correctly, or refused in our own words."""

import json
import pathlib
import re

import pytest

from hostile.edits import changed, chosen_edits, damages
from hostile.records import READ, READERS, texts
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.pages import report as pages

KINDS = list(READERS)
PAGES = ["Report", "Audit", "Comparison", "Spectrum"]  # the others have pictures, or texts alone
FEW = 30  # edits of each kind in every run of the tests
MANY = 9_000  # at night: all edits of most kinds, and twenty minutes for an audit


def attempt(kind: str, text: str | bytes) -> str:
    """Whether the text was "read" or "refused"; whatever else happens fails the test."""
    refusal = ""
    try:
        record = READERS[kind].from_json(text)
    except SpiritlevelError as error:
        refusal = str(error)
    if refusal:
        assert f"{kind}.from_json must be what {kind}.to_json wrote" in refusal
        assert "Write it again" in refusal
        return "refused"
    assert str(record)
    again = json.loads(record.to_json())
    given = json.loads(text)
    for part in READ[kind]:
        if part in given:
            assert contains(again.get(part), given[part]), part
    return "read"


def contains(whole, part) -> bool:
    """Whether all that was given is in what was made of it; what was left out has a default."""
    if isinstance(part, dict) and isinstance(whole, dict):
        # a value that is not a number is neither exact nor fine, whatever the file says
        changed = {"exact", "status"} if whole.get("status") == "nonfinite" else set()
        if changed and str(whole.get("text")).startswith(part.get("text") or ""):
            changed.add("text")  # which then says why
        changed.add("format_")  # a report within a record need not name its format
        return all(
            key in whole and contains(whole[key], part[key]) for key in part if key not in changed
        )
    if isinstance(part, list) and isinstance(whole, list):
        if all(isinstance(each, dict) for each in part):  # draws of a move are kept in any order
            return len(whole) == len(part) and all(
                any(contains(other, each) for other in whole) for each in part
            )
        return len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part or (part is None and whole is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_nobody_touched_is_read(kind):
    assert attempt(kind, texts()[kind]) == "read"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_some_edits(kind):
    outcomes = [
        attempt(kind, text)
        for _, text in chosen_edits(json.loads(texts()[kind]), count=FEW, seed=1)
    ]
    assert outcomes.count("refused") > FEW / 10  # meta: the edits do hurt


# What a value was changed to, and what the error says about it.
FOUND = [
    ("Report", "settings.loss", "1e400", "it contains '1e400', which is too large"),
    ("Report", "format", '"other"', "its format is 'other'"),
    ("Comparison", "reports.a.format", '"other"', "the report's format is 'other'"),
    ("Audit", "original.format", "[]", "the report's format is []"),
    ("Comparison", "reports.a.settings.subject.mean_loss", '"x"', "mean_loss must be a number"),
    ("Quantization", "widths", "[]", "the quantization's widths must be the same for each weight"),
    ("Quantization", "widths.0.bits", "3", "the quantization's widths must be the same for each"),
    ("Quantization", "sizes", "{}", "the quantization's sizes must be positive"),
    ("Quantization", "sizes.0|weight", "0", "the quantization's sizes must be positive"),
    ("Quantization", "traces", '{"x": 1}', "the quantization's traces must be of the weights"),
    ("Pruning", "second", "{}", "the pruning's owner names ['0.weight', '2.weight'] and not []"),
    ("Pruning", "exact", "{}", "the pruning's exact must name the same weights"),
    ("Pruning", "first.0|weight", "[1]", "the pruning's first must have a number for each one"),
    ("Pruning", "owner.0|weight.units", str(2**62), "owner of '0.weight' must be numbers of units"),
    ("Pruning", "owner.0|weight.units", '"x"', "owner of '0.weight' must be numbers of units"),
    ("Pruning", "owner.0|weight.shape.0", "0", "shape of '0.weight' has no entries"),
]


@pytest.mark.parametrize(("kind", "place", "value", "cause"), FOUND)
def test_what_an_error_says_about_an_edit(kind, place, value, cause):
    keys = [int(k) if k.isdecimal() else k.replace("|", ".") for k in place.split(".")]
    edited = json.dumps(changed(json.loads(texts()[kind]), tuple(keys), "@"))
    with pytest.raises(SpiritlevelError, match=re.escape(cause)) as caught:
        READERS[kind].from_json(edited.replace('"@"', value))
    assert str(caught.value).startswith(f"The 'text' argument of {kind}.from_json must be what")


def test_errors_that_overflow_when_they_are_squared():
    place = ("reports", "a", "measures", "relative.kappa", "stderr")
    edited = changed(json.loads(texts()["Comparison"]), place, 1e308)
    found = READERS["Comparison"].from_json(json.dumps(edited))
    assert "relative.kappa" in str(found)


def test_a_plan_of_widths_that_are_not_finite():
    edited = changed(json.loads(texts()["Quantization"]), ("widths", 0, "second"), "nan")
    found = READERS["Quantization"].from_json(json.dumps(edited))
    with pytest.raises(SpiritlevelError, match=r"by 'curvature' needs a finite number .* Got nan"):
        found.plan(mean_bits=3)


def test_numbers_that_are_not_finite_are_written_again():
    for kind, place in (("Quantization", "error"), ("Pruning", "error")):
        edited = json.dumps(changed(json.loads(texts()[kind]), (place,), "inf"))
        assert json.loads(READERS[kind].from_json(edited).to_json())[place] == "inf"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_texts(kind):
    for name, raw in damages(texts()[kind]):
        if raw == texts()[kind].encode():  # nothing there to be damaged in this way
            continue
        assert attempt(kind, raw.decode("utf-8", "surrogateescape")) == "refused", name
        if name not in ("with a byte order mark", "UTF-16"):  # which JSON allows in bytes
            assert attempt(kind, raw) == "refused", name


@pytest.mark.parametrize("text", [None, 3, [], {}, object()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_text(kind, text):
    with pytest.raises(SpiritlevelError, match=rf"{kind}\.from_json must be what"):
        READERS[kind].from_json(text)


def page(path: pathlib.Path) -> str:
    """Whether a page can be made of the file."""
    refusal = ""
    try:
        html = pages.render(pages.page_of(pages.read(path)))
    except SpiritlevelError as error:
        refusal = str(error)
    if refusal:
        assert str(path) in refusal
        return "refused"
    assert html.startswith("<!doctype html>")
    return "read"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PAGES)
def test_pages_of_some_edits(tmp_path, kind):
    path = tmp_path / "record.json"
    for _, text in chosen_edits(json.loads(texts()[kind]), count=FEW // 3, seed=2):
        path.write_text(text)
        page(path)


@pytest.mark.parametrize("kind", PAGES)
def test_pages_of_damaged_files(tmp_path, kind):
    path = tmp_path / "record.json"
    for name, raw in damages(texts()[kind]):
        path.write_bytes(raw)
        if raw != texts()[kind].encode():
            assert page(path) == "refused", name


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_many_edits(tmp_path, kind):
    path, edited = tmp_path / "record.json", json.loads(texts()[kind])
    for number, (_, text) in enumerate(chosen_edits(edited, count=MANY, seed=3)):
        if attempt(kind, text) == "read" and kind in PAGES and number % 5 == 0:
            path.write_text(text)
            page(path)
