"""The comparison with other libraries says what was recorded, and nothing that was not."""

import json
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
RECORDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "benchmarks/results").glob("peers-*.json"), reverse=True)
}
LIBRARIES = list(RECORDS["peers-cuda"]["versions"])
NETWORKS = {name: facts for found in RECORDS.values() for name, facts in found["networks"].items()}
CELLS = [cell for found in RECORDS.values() for cell in found["cells"]]
PAGES = ("README.md", "docs/peers.md")
# numbers of the text that say how it was measured
TERMS = {"10 %", "3 %", "1 %", "0.1 %", "0.01 %", "95 %", "30 products", "5 seeds", "96 products"}
TERMS |= {"192 products", "40 steps", "1.96 times"}


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
        if len(cells) == len(LIBRARIES) and network in NETWORKS:
            yield from ((network, question, *each) for each in zip(LIBRARIES, cells, strict=True))


def recorded(network, question, library):
    wanted = (network, question, library)
    return [c for c in CELLS if (c["network"], c["question"], c["library"]) == wanted]


def enough(cell):
    """Whether the answer is as accurate as the question asks."""
    percent = re.search(r"(\d+) %", cell["question"])
    limit = {"density": 1.0, "default trace": 0.1}.get(cell["question"], 1e-4)
    limit = int(percent[1]) / 100 if percent else limit
    return cell["state"] == "answered" and (cell["error"] or 0.0) <= limit


@pytest.mark.parametrize(("page", "kind"), [("README.md", "short_"), ("docs/peers.md", "")])
def test_the_tables_are_made_from_the_record(page, kind):
    pytest.importorskip("matplotlib")
    made = runpy.run_path(str(ROOT / "benchmarks/peers/table.py"))
    tables = "\n".join(made[f"{kind}table"](found) for found in RECORDS.values())
    assert parts(page)[0] == f"\n\n{tables}\n"


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_is_one_that_was_recorded(page):
    seen = list(answers(page))
    assert len(seen) >= 5 * len(LIBRARIES)
    for network, question, library, text in seen:
        cells = recorded(network, question, library)
        assert cells, (network, question, library)
        made = [c for c in cells if enough(c)]
        told = re.match(r"(?:\*\*)?([\d.]+) s(?:, ± ([\d.]+) %)?", text)
        assert bool(told) == bool(made), text
        if told:
            best = min(made, key=lambda c: c["seconds"])
            assert float(told[1]) == pytest.approx(best["seconds"], rel=0.051), text
            if told[2]:
                assert float(told[2]) == pytest.approx(100 * best["error"], rel=0.051, abs=0.01)
            elif "exact" in text:
                assert best["error"] < 1e-4
        if text == "not offered":
            assert {c["state"] for c in cells} == {"does not offer"}


def test_bold_is_the_fastest_answer():
    rows = {}
    for network, question, library, text in answers("docs/peers.md"):
        rows.setdefault((network, question), {})[library] = text
    for (network, question), texts in rows.items():
        times = {
            library: min(c["seconds"] for c in cells)
            for library in texts
            for cells in [[c for c in recorded(network, question, library) if enough(c)]]
            if cells
        }
        fastest = min(times, key=lambda library: times[library])
        assert texts[fastest].startswith("**"), (network, question)
        noise = 1.34 if network in RECORDS.get("peers-cpu", {"networks": {}})["networks"] else 1.11
        slow = [library for library, took in times.items() if took > noise * times[fastest]]
        assert not any(texts[library].startswith("**") for library in slow)


@pytest.mark.parametrize("page", PAGES)
def test_the_text_has_no_number_that_the_tables_do_not_have(page):
    tables, text = parts(page)
    numbers = r"\d[\d.,]*(?:\s(?:s|ms|GB|%|times|products|seeds|steps|rows))\b|\d[\d.,]*\s%"
    told = {" ".join(each.split()) for each in re.findall(numbers, text)}
    held = {" ".join(each.split()) for each in re.findall(numbers, tables)}
    held |= {f"{100 * c['error']:.2g} %" for c in CELLS if c["error"] is not None}  # of other ways
    assert told - held - TERMS == set()


def test_networks_have_learned_their_data_or_say_that_they_have_not():
    for name, facts in NETWORKS.items():
        assert ("untrained" in name) == (facts["loss"] > 0.05 + 1e-6), name
