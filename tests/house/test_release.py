"""What keeps a version from being released, in a small project of its own and in this one."""

import pathlib

import pytest

import release

WORKFLOW = pathlib.Path(__file__).parents[2] / ".github" / "workflows" / "release.yml"
OLD, NEW = "https://github.com/old/level", "https://github.com/new/water-level"


@pytest.fixture
def project(tmp_path):
    written = {
        "pyproject.toml": 'name = "level"\nversion = "1.2.0"\nlab = ["level-lab==1.2.0"]\n'
        f'Source = "{OLD}"\n',
        "lab/pyproject.toml": 'version = "1.2.0"\ndependencies = ["spiritlevel[cli]==1.2.0"]\n',
        "CHANGELOG.md": "## [1.2.0] - 2026-11-17\n",
        "docs/a.md": f"{OLD}/issues https://old.github.io/level/ https://github.com/old/level-tools",
        "docs/b.ipynb": "https://colab.research.google.com/github/old/level/blob/main/docs/b.ipynb",
    }
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def test_this_project_leads_to_no_address_that_is_not_its_own():
    assert release.elsewhere() == []
    names = {path.name for path in release.files()}
    assert {"README.md", "CITATION.cff", "links.py", "a-population.ipynb"} <= names


@pytest.mark.parametrize(
    "line",
    [
        "source=git+https://example.org/level",
        "pip install git+ssh://git@example.org/level",
        "pip install 'level @ https://example.org/level.zip'",
    ],
)
def test_an_installation_from_an_address_is_refused(project, line):
    (project / "README.md").write_text(f"Install it:\n\n    {line}\n", "utf-8")
    [why] = release.problems("v1.2.0", OLD, project)
    assert why.startswith("leads elsewhere: README.md: ")


def test_a_project_without_an_address_gets_one(project):
    metadata = 'name = "level"\nversion = "1.2.0"\n'
    (project / "pyproject.toml").write_text(metadata, "utf-8")
    (project / "docs" / "a.md").write_text("[b](b.ipynb)", "utf-8")
    page = "[a](docs/a.md#x) ![p](docs/p.png) [top](#top) [other](https://example.org)"
    (project / "README.md").write_text(page, "utf-8")
    (project / "lab" / "README.md").write_text("[level](../README.md)", "utf-8")
    notebook, why = release.problems("v1.2.0", NEW, project)[::-1]
    assert "no address" in why
    assert "docs/b.ipynb" in notebook
    release.move("https://github.com/new/level", project)
    assert release.problems("v1.2.0", "https://github.com/new/level", project) == []
    here = "https://github.com/new/level"
    shown = f"[a]({here}/blob/main/docs/a.md#x) ![p]({here}/raw/main/docs/p.png) [top](#top)"
    assert (project / "README.md").read_text("utf-8") == f"{shown} [other](https://example.org)"
    lab = (project / "lab" / "README.md").read_text("utf-8")
    assert lab == f"[level]({here}/blob/main/README.md)"
    assert (project / "docs" / "a.md").read_text("utf-8") == "[b](b.ipynb)"
    assert f'Source = "{here}"' in (project / "lab" / "pyproject.toml").read_text("utf-8")


def test_a_project_that_is_ready(project):
    assert release.problems("v1.2.0", OLD, project) == []


def test_an_address_that_is_not_where_it_is_published_from_is_refused(project):
    [why] = release.problems("v1.2.0", NEW, project)
    assert OLD in why
    assert f"move {NEW}" in why


def test_moving_changes_every_link_and_nothing_else(project):
    assert release.move(NEW, project) == ["docs/a.md", "docs/b.ipynb", "pyproject.toml"]
    assert release.problems("v1.2.0", NEW, project) == []
    moved = f"{NEW}/issues https://new.github.io/water-level/ https://github.com/old/level-tools"
    assert (project / "docs" / "a.md").read_text("utf-8") == moved
    assert "/github/new/water-level/blob" in (project / "docs" / "b.ipynb").read_text("utf-8")


def test_a_link_that_was_left_behind_is_named(project):
    (project / "docs" / "c.md").write_text("https://raw.githubusercontent.com/me/level/x", "utf-8")
    [why] = release.problems("v1.2.0", OLD, project)
    assert "docs/c.md: https://raw.githubusercontent.com/me/level" in why


def test_another_tag_and_a_changelog_without_a_date_are_refused(project):
    (project / "CHANGELOG.md").write_text("## [1.2.0] - Unreleased\n", "utf-8")
    tag, changes = release.problems("v1.3.0", OLD, project)
    assert "v1.3.0" in tag
    assert "YYYY-MM-DD" in changes


def test_only_a_repository_can_be_moved_to(project):
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        release.move("github.com/new/level", project)


@pytest.mark.skipif(not WORKFLOW.exists(), reason="the workflows are not part of the sdist")
def test_the_workflow_asks_before_it_builds():
    steps = WORKFLOW.read_text("utf-8")
    asked = "${{ github.server_url }}/${{ github.repository }}"
    assert f'python tests/release.py "$GITHUB_REF_NAME" "{asked}"' in steps
    assert steps.index("tests/release.py") < steps.index("make dist")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('version = "1.1.0"\n', "lab/pyproject.toml holds version 1.1.0, and not 1.2.0"),
        (
            'version = "1.2.0"\ndependencies = ["spiritlevel[cli]==1.1.0"]\n',
            "one distribution asks for 1.1.0 of the other, and not for 1.2.0",
        ),
    ],
)
def test_a_laboratory_of_another_version_is_refused(project, text, why):
    (project / "lab" / "pyproject.toml").write_text(text, "utf-8")
    assert release.problems("v1.2.0", OLD, project) == [why]
