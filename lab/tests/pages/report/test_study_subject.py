"""Which of a study's model and data its page names."""

import ast
import importlib
import inspect

import pytest

from pages.planted_stores import planted
from spiritlevel_lab import Study
from spiritlevel_lab.pages.report.study import page_of, subject
from spiritlevel_lab.population import control, registry

READS = {  # what makes a model or data of the settings
    "model": {"build_model", "NetworkRun"},
    "data": {"load_data", "NetworkRun"},
}


def tasks() -> list[str]:
    """The tasks of the papers, which a study can name."""
    registry.study_names()  # loads them
    registered = registry._tasks.items()
    return [name for name, task in registered if "papers" in task.function.__module__]


@pytest.mark.parametrize("name", tasks())
def test_a_task_uses_what_its_code_reads(name):
    module = importlib.import_module(registry.registered_task(name).function.__module__)
    calls = (
        node.func
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call)
    )
    owners = (call.value if isinstance(call, ast.Attribute) else call for call in calls)
    called = {owner.id for owner in owners if isinstance(owner, ast.Name)}
    read = [section for section, makers in READS.items() if makers & called]
    assert list(subject(Study("any", task=name))) == read


def test_both_kinds_of_task_are_there():
    found = {name: bool(subject(Study("any", task=name))) for name in tasks()}
    assert not found["tasks_class_separation"]
    assert not found["tasks_000_trace"]
    assert sum(found.values()) >= 8


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {"model": "mlp", "data": "digits"}),
        ({"task": "mine:toss"}, {}),  # it may look at the defaults; nobody said so
        ({"task": "mine:toss", "model": "lenet5"}, {"model": "lenet5"}),
        ({"task": "mine:toss", "grid": {"data.samples": [5, 9]}}, {"data": "digits"}),
        (
            {"task": "mine:toss", "variants": {"a": {"model": "mlp"}, "b": {"model": "lenet5"}}},
            {"model": "mlp"},
        ),
        ({"task": "tasks_of_an_older_version"}, {}),
        ({"task": "tasks_class_separation", "model": "lenet5"}, {}),
    ],
)
def test_of_somebody_s_own_task_what_the_study_says(fields, found):
    assert subject(Study("any", **fields)) == found


def test_the_page_leaves_out_what_no_run_looks_at(tmp_path):
    drawn = control.find("002-fig-4").with_preset("quick").to_dict()
    with planted(tmp_path / "drawn", names=drawn["measures"], **drawn) as store:
        facts = page_of(store).settings
    assert not {"model", "data"} & set(facts)
    assert facts["study"] == "002-fig-4"
    with planted(tmp_path / "trained") as store:
        facts = page_of(store).settings
    assert (facts["model"], facts["data"]) == ("mlp", "digits")
