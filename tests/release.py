"""Is this ready to be released, and does it lead nowhere but to where it is released from?

    python tests/release.py v0.1.0 https://github.com/OWNER/NAME     what keeps it from release
    python tests/release.py move https://github.com/OWNER/NAME       the repository lives there

A public address is named only if it is ours: whoever holds one that is not could have his own code
installed by our first command. As long as the project has none, no file names one, and links
lead from file to file. `move` gives it one, or another: it becomes `Source` in pyproject.toml, and
links that are read elsewhere are written out. The release workflow passes the repository it runs
in, so that nothing is published whose links lead to another one.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
GITHUB = "https://github.com/"
KINDS = {".cff", ".ipynb", ".md", ".py", ".toml", ".yml"}  # of files that hold links
FOLDERS = ("docs", "examples", "experiments", "lab", "reproduction", "src", "tests")
HOSTS = ("github.com", "raw.githubusercontent.com", "colab.research.google.com/github")
FIRST_PAGES = ("README.md", "lab/README.md")  # a package index shows them, without the repository
PICTURES = (".png", ".svg")
# Installation from an address instead of an index or a path.
INSTALLED = re.compile(r"\bgit\+\w+:|\bpip3? install\b[^\n`]*\w://")


def address(root: pathlib.Path = ROOT) -> str | None:
    """Where the project lives, if it has an address of its own."""
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    found = re.findall(r'^Source = "(.+)"', project, flags=re.M)
    return found[0] if found else None


def links(root: pathlib.Path = ROOT) -> re.Pattern[str]:
    """Whatever belongs to a repository of our name: itself, its files, Colab, and its pages."""
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    [called] = re.findall(r'^name = "(.+)"', project, flags=re.M)
    name = re.escape((address(root) or called).rsplit("/", 1)[-1])
    hosts = "|".join(map(re.escape, HOSTS))
    own = rf"(?P<host>https://(?:{hosts})/)(?P<path>[\w.-]+/{name})(?![\w-])"
    return re.compile(rf"{own}|https://(?P<owner>[\w-]+)\.github\.io/(?P<name>{name})(?![\w-])")


def files(root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    """Files that may hold a link to the repository; this one and its test write of others'."""
    below = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    kept = [path for path in (*root.iterdir(), *below) if path.suffix in KINDS and path.is_file()]
    return sorted(path for path in kept if path.name not in ("release.py", "test_release.py"))


def elsewhere(root: pathlib.Path = ROOT) -> list[str]:
    """`file: text` for every link or installation that leads to an address that is not ours."""
    here, pattern, found = (address(root) or "").removeprefix(GITHUB), links(root), []
    for path in files(root):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        for link in pattern.finditer(text):
            if (link["path"] or f"{link['owner']}/{link['name']}") != here:
                found.append(f"{name}: {link[0]}")
        found += [f"{name}: {line[0]}" for line in INSTALLED.finditer(text)]
    return found


def move(to: str, root: pathlib.Path = ROOT) -> list[str]:
    """Write an address, or another one, everywhere; return the files that were changed."""
    if not re.fullmatch(rf"{GITHUB}[\w.-]+/[\w.-]+", to):
        raise SystemExit(f"'{to}' is no repository: give it as {GITHUB}OWNER/NAME")
    owner, name = to.removeprefix(GITHUB).split("/")

    def written(link: re.Match[str]) -> str:
        pages = f"https://{owner}.github.io/{name}"
        return f"{link['host']}{owner}/{name}" if link["host"] else pages

    pattern, first, changed = links(root), address(root) is None, []
    for path in files(root):
        before, place = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        after = pattern.sub(written, before)
        if first and path.name == "pyproject.toml":
            after = f'{after.rstrip()}\n\n[project.urls]\nHomepage = "{to}"\nSource = "{to}"\n'
        if first and place in FIRST_PAGES:
            after = written_out(after, pathlib.PurePosixPath(place).parent, to)
        if after != before:
            path.write_text(after, encoding="utf-8", newline="\n")
            changed.append(place)
    return changed


def written_out(page: str, folder: pathlib.PurePosixPath, to: str) -> str:
    """The page with links to files made into addresses."""

    def whole(link: re.Match[str]) -> str:
        kind = "raw" if link[1].endswith(PICTURES) else "blob"
        return f"]({to}/{kind}/main/{posixpath.normpath(folder / link[1])})"

    return re.sub(r"\]\((?!https://|#)([^)]+)\)", whole, page)


def problems(tag: str, published_from: str, root: pathlib.Path = ROOT) -> list[str]:
    """What keeps this from being released under a tag, from a repository."""
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    [version] = re.findall(r'^version = "(.+)"', project, flags=re.M)
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = []
    lab = (root / "lab" / "pyproject.toml").read_text(encoding="utf-8")
    for said in re.findall(r'^version = "(.+)"', lab, flags=re.M):
        if said != version:
            found.append(f"lab/pyproject.toml holds version {said}, and not {version}")
    for said in re.findall(r'"spiritlevel[^"]*==([^"]+)"', project + lab):
        if said != version:
            found.append(f"one distribution asks for {said} of the other, and not for {version}")
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, but pyproject.toml holds version {version}")
    if not re.search(rf"^## \[{re.escape(version)}\] - 20\d\d-\d\d-\d\d$", changes, flags=re.M):
        found.append(f"CHANGELOG.md has no entry '## [{version}] - YYYY-MM-DD'")
    if address(root) != published_from:
        found.append(
            f"the package says it lives at {address(root) or 'no address'}, but is published from "
            f"{published_from}: if that is yours, run 'python tests/release.py move "
            f"{published_from}' and commit"
        )
    return found + [f"leads elsewhere: {link}" for link in elsewhere(root)]


def main(first: str, where: str) -> int:
    """Move to an address, or check a tag; 1 if something keeps it from release."""
    if first == "move":
        print("\n".join(move(where)) or "Nothing to change.")
        return 0
    found = problems(first, where)
    print("\n".join(found) or f"{first} may be released from {where}.")
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
