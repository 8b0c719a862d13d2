"""The comparison with other libraries says what was recorded, and nothing that was not."""

import json
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks/results/peers-cuda.json").read_text(encoding="utf-8"))
LIBRARIES = list(FOUND["versions"])
PAGES = ("README.md", "docs/peers.md")
# numbers of the text that say how it was measured
TERMS = {"10 %", "3 %", "1 %", "0.1 %", "0.01 %", "95 %", "30 products", "5 seeds", "96 products"}
TERMS |= {"192 products", "40 steps"}


def parts(page):
    """The generated tables, and the section of the page around them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    begin, end = "<!-- table of peers: begin -->", "<!-- table of peers: end -->"
    before, _, rest = text.partition(begin)
    tables, _, after = rest.partition(end)
    if page == "README.md":  # other sections speak of other things
        before, after = before.rpartition("\n## ")[2], after.partition("\n## ")[0]
    return tables, before + after


def answers(page):
    """Network, question, library and text of every answer on the page."""
    for line in parts(page)[0].splitlines():
        network, question, *cells = (cell.strip() for cell in line.split("|")[1:-1] or ["", ""])
        if len(cells) == len(LIBRARIES) and network in FOUND["networks"]:
            yield from ((network, question, *each) for each in zip(LIBRARIES, cells, strict=True))


def recorded(network, question, library):
    wanted = (network, question, library)
    return [c for c in FOUND["cells"] if (c["network"], c["question"], c["library"]) == wanted]


def answered(cell):
    return cell["state"] == "answered"


@pytest.mark.parametrize(("page", "kind"), [("README.md", "short_"), ("docs/peers.md", "")])
def test_the_tables_are_made_from_the_record(page, kind):
    pytest.importorskip("matplotlib")
    made = runpy.run_path(str(ROOT / "benchmarks/peers/table.py"))
    assert parts(page)[0] == f"\n\n{made[f'{kind}table'](FOUND)}\n"


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_is_one_that_was_recorded(page):
    seen = list(answers(page))
    assert len(seen) >= 5 * len(LIBRARIES)
    for network, question, library, text in seen:
        cells = recorded(network, question, library)
        assert cells, (network, question, library)
        made = [c for c in cells if answered(c)]
        told = re.match(r"\**([\d.]+) s", text)
        assert bool(told) == bool(made), text
        if told:
            best = min(made, key=lambda c: c["seconds"])
            assert float(told[1]) == pytest.approx(best["seconds"], rel=0.051), text
            for off in re.findall(r"± ([\d.]+) %", text)[:1]:
                assert float(off) == pytest.approx(100 * best["error"], rel=0.051, abs=0.01), text
            if "exact" in text:
                assert min(c["error"] for c in made) < 1e-4
        if text == "not offered":
            assert {c["state"] for c in cells} == {"does not offer"}


def test_bold_is_the_fastest_answer():
    rows = {}
    for network, question, library, text in answers("docs/peers.md"):
        rows.setdefault((network, question), {})[library] = text
    for (network, question), texts in rows.items():
        if question in ("Hessian diagonal", "default trace"):  # the others' error is their own
            continue
        times = {
            library: min(c["seconds"] for c in cells)
            for library in texts
            for cells in [[c for c in recorded(network, question, library) if answered(c)]]
            if cells
        }
        fastest = min(times, key=lambda library: times[library])
        assert texts[fastest].startswith("**"), (network, question)
        slow = [library for library, took in times.items() if took > 1.11 * times[fastest]]
        assert not any(texts[library].startswith("**") for library in slow)


@pytest.mark.parametrize("page", PAGES)
def test_the_text_has_no_number_that_the_tables_do_not_have(page):
    tables, text = parts(page)
    numbers = r"\d[\d.,]*(?:\s(?:s|ms|GB|%|times|products|seeds|steps|rows))\b|\d[\d.,]*\s%"
    told = {" ".join(each.split()) for each in re.findall(numbers, text)}
    held = {" ".join(each.split()) for each in re.findall(numbers, tables)}
    assert told - held - TERMS == set()


def test_networks_have_learned_their_data_or_say_that_they_have_not():
    for name, facts in FOUND["networks"].items():
        assert ("untrained" in name) == (facts["loss"] > 0.05 + 1e-6), name
