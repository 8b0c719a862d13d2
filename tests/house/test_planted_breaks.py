"""Every planted break still applies; `make breaks` tells whether it is noticed."""

import planted_breaks


def test_every_break_changes_one_place_and_names_tests_that_exist():
    """All files are read once, not once for every break."""
    tests, places = planted_breaks.ROOT / "tests", planted_breaks.library_files(planted_breaks.ROOT)
    library = "\0".join(path.read_text(encoding="utf-8") for path in places)
    files: dict[str, str] = {}
    for path in tests.rglob("test_*.py"):  # two folders may have files of one name
        files[path.stem] = files.get(path.stem, "") + path.read_text(encoding="utf-8")
    together = "\n".join(files.values())
    breaks = planted_breaks.read_breaks()
    assert len(breaks) >= 40
    for each in breaks:
        assert library.count(each.old) == 1, each.id
        for name in filter(None, (*each.tests, each.by_day.partition("[")[0])):
            stem, _, function = name.rpartition("::")
            text = files[stem] if stem else together
            assert function in files or f"\ndef {function}(" in text, each.id
