"""The numbers in the texts on scale are those of the study, whatever its file says."""

import pytest

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel_lab import Study
from spiritlevel_lab.papers import find, names, scale_text
from spiritlevel_lab.papers.scale_text import ScaleTexts, filled
from spiritlevel_lab.population.registry import study_text

EXPERIMENT = "001-fig-3"


def test_changed_yaml_changes_the_text(monkeypatch):
    before = find(EXPERIMENT).scaled_down
    assert before[""].startswith("1,000 training images of CIFAR-10")
    assert before["quick"] == "300 images, at most 10 epochs, 2 seeds: a trial."
    text = study_text(EXPERIMENT)
    for old, new in (("samples: 300}", "samples: 450}"), ("epochs: 10}", "epochs: 12}")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    changed = Study.from_yaml(text)
    monkeypatch.setattr(
        scale_text, "library_study", lambda name, preset: changed.with_preset(preset)
    )
    assert before["quick"] == "450 images, at most 12 epochs, 2 seeds: a trial."


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", names())
def test_texts_of_every_experiment_are_filled(name):
    for text in find(name).scaled_down.values():
        assert "{" not in text
        assert text.endswith(".")


STUDY = Study(
    "small",
    model={"name": "mlp", "hidden": 8},
    data={"name": "digits", "samples": 20000},
    training={"lr": 0.00002},
    stop={"train_accuracy": 0.975},
    grid={"batch_size": [16, 32, 64]},
    variants={
        "sgd": {"optimizer": "sgd", "weight_decay": 0.1},
        "sgd-slow": {"optimizer": "sgd", "weight_decay": 0.01},
        "adam": {"optimizer": "adam", "weight_decay": 0.1},
    },
    seeds=[3, 5],
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{data.samples} images", "20,000 images"),
        ("a rate of {training.lr}", "a rate of 0.00002"),
        ("to {stop.train_accuracy:%}", "to 97.5 %"),
        ("{seeds} seeds, {combinations} ways, {runs} runs", "2 seeds, 9 ways, 18 runs"),
        ("batches of {grid.batch_size}", "batches of 16, 32 and 64"),
        ("{grid.batch_size:count} sizes", "3 sizes"),
        ("at most {grid.batch_size:max}", "at most 64"),
        ("from {grid.batch_size:to}", "from 16 to 64"),
        ("{variants}", "sgd, sgd-slow and adam"),
        ("{variants.weight_decay}", "0.1 and 0.01"),
        ("{variants[sgd*].weight_decay}", "0.1 and 0.01"),
        ("{variants[adam].weight_decay}", "0.1"),
    ],
)
def test_fields_of_a_template(template, text):
    assert filled(template, STUDY) == text


@pytest.mark.parametrize(
    "field", ["data.validation", "grid.lr", "variants[rmsprop].weight_decay", "epochs"]
)
def test_field_that_the_study_lacks_is_refused(field):
    with pytest.raises(SpiritlevelError, match=r"scale of small must name settings") as error:
        filled(f"{{{field}}}", STUDY)
    assert f"none at {field!r}" in str(error.value)
    assert "YAML" in str(error.value)


def test_texts_are_a_mapping_by_preset():
    texts = ScaleTexts("004-table", {"": "{seeds} seeds", "paper": "{data.samples} images"})
    assert dict(texts) == {"": "3 seeds", "paper": "50,000 images"}
    assert (list(texts), len(texts)) == (["", "paper"], 2)
    assert "h200" not in texts
