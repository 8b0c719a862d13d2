"""Is this ready to be released, and does it lead back to where it is released from?

    python tests/release.py v0.1.0 https://github.com/OWNER/NAME     what keeps it from release
    python tests/release.py move https://github.com/OWNER/NAME       the repository has moved there

The address of the repository is decided in one place: `Source` in pyproject.toml. Links must be
written out wherever they are read, in the README, pages and notebooks; `move` changes all of them,
and a test holds that they agree. The release workflow passes the repository it runs in, so that
nothing is published whose links lead elsewhere.
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
GITHUB = "https://github.com/"
KINDS = {".cff", ".ipynb", ".md", ".py", ".toml", ".yml"}  # of files that hold links
FOLDERS = ("docs", "examples", "lab", "src", "tests")
HOSTS = ("github.com", "raw.githubusercontent.com", "colab.research.google.com/github")


def address(root: pathlib.Path = ROOT) -> str:
    """Where the project lives."""
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    [found] = re.findall(r'^Source = "(.+)"', project, flags=re.M)
    return found


def links(root: pathlib.Path = ROOT) -> re.Pattern[str]:
    """Whatever belongs to a repository of our name: itself, its files, Colab, and its pages."""
    name = re.escape(address(root).rsplit("/", 1)[1])
    hosts = "|".join(map(re.escape, HOSTS))
    own = rf"(?P<host>https://(?:{hosts})/)(?P<path>[\w.-]+/{name})(?![\w-])"
    return re.compile(rf"{own}|https://(?P<owner>[\w-]+)\.github\.io/(?P<name>{name})(?![\w-])")


def files(root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    """Files that may hold a link to the repository; this one writes of others'."""
    below = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    kept = [path for path in (*root.iterdir(), *below) if path.suffix in KINDS and path.is_file()]
    return sorted(path for path in kept if path.name != pathlib.Path(__file__).name)


def elsewhere(root: pathlib.Path = ROOT) -> list[str]:
    """`file: address` for every link to a repository of our name that is not `Source`."""
    here, pattern, found = address(root).removeprefix(GITHUB), links(root), []
    for path in files(root):
        for link in pattern.finditer(path.read_text(encoding="utf-8")):
            if (link["path"] or f"{link['owner']}/{link['name']}") != here:
                found.append(f"{path.relative_to(root).as_posix()}: {link[0]}")
    return found


def move(to: str, root: pathlib.Path = ROOT) -> list[str]:
    """Write another address everywhere; return the files that were changed."""
    if not re.fullmatch(rf"{GITHUB}[\w.-]+/[\w.-]+", to):
        raise SystemExit(f"'{to}' is no repository: give it as {GITHUB}OWNER/NAME")
    owner, name = to.removeprefix(GITHUB).split("/")

    def written(link: re.Match[str]) -> str:
        pages = f"https://{owner}.github.io/{name}"
        return f"{link['host']}{owner}/{name}" if link["host"] else pages

    pattern, changed = links(root), []
    for path in files(root):
        before = path.read_text(encoding="utf-8")
        if (after := pattern.sub(written, before)) != before:
            path.write_text(after, encoding="utf-8", newline="\n")
            changed.append(path.relative_to(root).as_posix())
    return changed


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
            f"the package says it lives at {address(root)}, but is published from "
            f"{published_from}: run 'python tests/release.py move {published_from}' and commit"
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
