"""What is installed with the package, and what the workflows run."""

import pathlib
import re
from importlib import metadata

import pytest

ROOT = pathlib.Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PUBLISHING = {"docs.yml": {"pages", "id-token"}, "release.yml": {"id-token"}}
COPYLEFT = re.compile(r"\b[AL]?GPL|GNU (Affero|Lesser|Library|General)", re.I)


@pytest.mark.skipif(not WORKFLOWS, reason="the workflows are not part of the sdist")
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_was_read_and_may_write_nothing_else(path):
    text = path.read_text("utf-8")
    used = re.findall(r"uses: (\S+)( # v\d+\.\d+\.\d+)?$", text, re.M)
    assert len(used) == text.count("uses:")
    assert [name for name, said in used if not said or not re.search(r"@[0-9a-f]{40}$", name)] == []
    assert "\npermissions: {contents: read}\n" in text
    assert set(re.findall(r"([\w-]+): write", text)) == PUBLISHING.get(path.name, set())
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")


def needed(name, extras=()):
    """The distribution, and all that it needs, as far as they are installed."""
    found, waiting = {}, [(name, tuple(extras))]
    while waiting:
        name, extras = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if (key, extras) in found:
            continue
        try:
            found[key, extras] = distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system, or an extra that is not installed
        for line in distribution.requires or []:
            requirement, _, marker = line.partition(";")
            asked = re.findall(r"extra == ['\"]([\w-]+)['\"]", marker)
            if not asked or set(asked) & set(extras):
                wanted = re.match(r"([\w.-]+)\s*(?:\[([\w,.-]+)\])?", requirement)
                waiting.append((wanted[1], tuple(filter(None, (wanted[2] or "").split(",")))))
    return {key: distribution for (key, _), distribution in found.items()}


def licence(distribution):
    """All that a distribution says of its licence; a text in full only by its first line."""
    of = distribution.metadata
    classes = [line for line in of.get_all("Classifier", []) if line.startswith("License")]
    text = (of.get("License") or "").strip().split("\n")[0]
    return " | ".join(filter(None, [of.get("License-Expression"), text, *classes]))


def test_nothing_that_is_installed_is_under_a_copyleft_licence():
    tree = needed("spiritlevel", ["all"])
    assert "torch" in tree
    said = {name: licence(distribution) for name, distribution in tree.items()}
    assert [name for name, words in said.items() if COPYLEFT.search(words)] == []
    assert [name for name, words in said.items() if not words] == []


@pytest.mark.parametrize(
    "words", ["GPL-3.0-only", "License :: OSI Approved :: GNU Affero", "LGPLv2"]
)
def test_copyleft_is_recognized(words):
    assert COPYLEFT.search(words)
