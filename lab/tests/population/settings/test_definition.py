"""What a study is, and what it must not be."""

import hashlib
import itertools
import json

import pytest

import spiritlevel as sl
from population.tiny_study import tiny
from spiritlevel_lab import Study, find
from spiritlevel_lab.population import control
from spiritlevel_lab.population.settings.sections import (
    DataSettings,
    InterventionSettings,
    ModelSettings,
)

YAML = """
name: mine
model: {name: mlp, hidden: 8}
training: {optimizer: adam, lr: 1e-3}
grid:
  lr: [1e-3, 0.01]
  model.hidden: [8, 16]
seeds: [3, 1]
presets:
  quick: {training: {epochs: 1}, grid: {lr: [0.01]}, seeds: 1}
"""


def refusal(**changes) -> str:
    with pytest.raises(sl.SpiritlevelError) as caught:
        tiny(**changes)
    return str(caught.value)


def test_every_combination_of_grid_and_seeds_is_a_run():
    runs = Study.from_yaml(YAML).runs()
    found = [(r.training.lr, r.model.arguments["hidden"], r.seed) for r in runs]
    assert found == list(itertools.product([1e-3, 0.01], [8, 16], [3, 1]))
    assert all(r.training.optimizer == "adam" for r in runs)
    assert len({r.id for r in runs}) == 8


@pytest.mark.parametrize("text", ["1e-2", "1E-2", "+1e-2", "1.e-2", ".1e-1", "0.01"])
def test_a_number_with_an_exponent_is_a_number_of_the_grid_too(text):
    """PyYAML reads most of these as words, which no confounder can be."""
    (one, _) = Study.from_yaml(f"name: a\nmodel: mlp\ngrid: {{lr: [{text}, 0.1]}}\nseeds: 1").runs()
    assert one.axes["lr"] == 0.01
    assert isinstance(one.axes["lr"], float)


def test_ids_do_not_depend_on_order_or_spelling():
    one = tiny(grid={"lr": [0.1, 1], "batch_size": [10, 20]}, seeds=[0, 1])
    other = tiny(grid={"training.batch_size": [20.0, 10], "lr": ["1e0", 0.1]}, seeds=[1, 0])
    assert {r.id for r in one.runs()} == {r.id for r in other.runs()}


def test_ids_stay_what_they_are():
    # In another process, version or machine, where Python's own hashes differ: old stores go on.
    assert [run.id for run in tiny().runs()][:2] == ["4e438508fee98872", "3fec2a77657abd6b"]
    [run] = tiny(grid={}, seeds=1).runs()
    assert hashlib.sha256(run.canonical.encode()).hexdigest()[:16] == run.id
    assert json.loads(run.canonical)["training"]["lr"] == 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": [7]},
        {"model": {"name": "mlp", "hidden": 5}},
        {"data": {"name": "digits", "samples": 61}},
        {"training": {"epochs": 3, "batch_size": 20, "momentum": 0.9}},
        {"stop": {"train_loss": 0.1}},
        {"measures": ["head.trace"]},
        {"measure_options": {"samples": 20}},
        {"interventions": {"label_noise": 0.5}},
        {"interventions": {"batch_cycles": 2}},
        {"training": {**tiny().training, "schedule": "cosine"}},
        {"training": {**tiny().training, "method": "sam"}},
        {"data": {"name": "digits", "samples": 60, "validation": 5}},
        {"stop": {"rule": "flatness"}},
        {"measure_every": 1},
        {"task": "somewhere:run"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_other_setting_is_another_run(changes):
    assert not {r.id for r in tiny().runs()} & {r.id for r in tiny(**changes).runs()}


def test_variants_set_keys_together_and_are_an_axis():
    study = tiny(
        variants={
            "small": {"batch_size": 4, "lr": 0.001},
            "large": {"batch_size": 512, "lr": 0.1, "training.weight_decay": 0.5},
            "mixed": {"interventions.mixup": 0.2, "model.hidden": [8, 8]},
        },
        grid={"momentum": [0.0, 0.9]},
        seeds=2,
    )
    assert study.axes == ["variant", "momentum"]
    runs = study.runs()
    assert [(r.axes["variant"], r.axes["momentum"], r.seed) for r in runs] == list(
        itertools.product(["small", "large", "mixed"], [0.0, 0.9], [0, 1])
    )
    small, large, mixed = runs[0], runs[4], runs[8]
    assert [(r.training.batch_size, r.training.lr) for r in (small, large, mixed)] == [
        (4, 0.001),
        (512, 0.1),
        (20, 0.1),
    ]
    assert large.training.weight_decay == 0.5
    assert mixed.interventions == InterventionSettings(mixup=0.2)
    assert mixed.model == ModelSettings("mlp", {"hidden": [8, 8]})
    assert small.id == tiny(training={**tiny().training, "batch_size": 4, "momentum": 0.0}, grid={
        "lr": [0.001]}, seeds=1).runs()[0].id  # fmt: skip
    assert Study.from_dict(json.loads(json.dumps(study.to_dict()))) == study


def test_a_study_survives_json_and_yaml():
    study = Study.from_yaml(YAML)
    again = Study.from_dict(json.loads(json.dumps(study.to_dict())))
    assert again == study
    assert [r.id for r in again.runs()] == [r.id for r in study.runs()]


def test_a_preset_changes_single_keys_and_replaces_the_grid():
    quick = Study.from_yaml(YAML).with_preset("quick")
    [run] = quick.runs()
    assert (run.training.epochs, run.training.lr, run.seed) == (1, 0.01, 0)
    assert (run.training.optimizer, run.model.arguments) == ("adam", {"hidden": 8})


def test_another_model_does_not_keep_the_options_of_the_first():
    study = tiny(presets={"conv": {"model": {"name": "digits_cnn", "width": 4}}})
    run = study.with_preset("conv").runs()[0]
    assert run.model == ModelSettings("digits_cnn", {"width": 4})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"gird": {}}, "unknown key 'gird'. Did you mean 'grid'?"),
        ({"training": {"learning": 1}}, "training has an unknown key 'learning'."),
        ({"training": {"batchsize": 1}}, "Did you mean 'batch_size'?"),
        ({"training": {"optimizer": "sdg"}}, "must be one of sgd, adam, adamw, rmsprop. Got 'sdg'"),
        ({"training": {"lr": -1}}, "training.lr must be a number above 0. Got -1"),
        ({"training": {"lr": True}}, "must be a number above 0. Got True"),
        ({"training": {"epochs": 1.5}}, "must be a whole number of at least 1. Got 1.5"),
        ({"training": {"momentum": 1.0}}, "must be a number from 0 to below 1. Got 1.0"),
        ({"training": {"lr": float("nan")}}, "must be a number above 0. Got nan"),
        ({"training": [1]}, "training must be a mapping of names to values. Got [1]"),
        ({"grid": {"lr": []}}, "grid.lr must have at least one value. Got an empty list"),
        ({"grid": {"lr": 0.1}}, "grid.lr must be a list of values. Got 0.1"),
        ({"grid": {"lr": [0.1, 0.1]}}, "grid.lr has 0.1 more than once"),
        ({"grid": {"lr": [1, 1.0]}}, "makes one run twice: {'lr': 1} and {'lr': 1.0}"),
        ({"grid": {"model.hidden": [[4], [8]]}}, "must hold plain numbers or names. Got [4]"),
        ({"grid": {"lr": [float("inf")]}}, "must hold plain numbers or names. Got inf"),
        ({"grid": {"learning_rate": [1]}}, "grid has an unknown key 'learning_rate'"),
        ({"grid": {"data.sample": [1]}}, "Did you mean 'data.samples'"),
        ({"grid": {"batch_size": [8, 0]}}, "batch_size must be a whole number of at least 1"),
        (
            {"training": {"optimizer": "adam"}, "grid": {"momentum": [0.0, 0.9]}},
            "makes one run twice: {'momentum': 0.0} and {'momentum': 0.9}",
        ),
        ({"variants": {"a": {"lrr": 1}}}, "unknown key 'lrr'. Did you mean 'lr'?"),
        ({"variants": {"a": {"lr": 1}}}, "variants.a sets lr, and so does its grid"),
        ({"variants": {"a": {"batch_size": 0}}}, "must be a whole number of at least 1"),
        ({"variants": {"a": {}, "b": {}}}, "makes one run twice"),
        ({"model": {"name": "mlp", "init": "xavier"}}, "must be one of xavier_normal, kaiming"),
        ({"seeds": 0}, "seeds must be a number of at least 1, or a list"),
        ({"seeds": [1, 1]}, "Got [1, 1]"),
        ({"interventions": {"label_nose": 0.1}}, "Did you mean 'label_noise'"),
        (
            {"interventions": {"label_noise": -1}},
            "of at least 0, or false. Got -1",
        ),
        ({"stop": {"loss": 0.1}}, "stop has an unknown key 'loss'"),
        ({"stop": {"train_accuracy": 99}}, "must be a number in (0, 1]. Got 99"),
        ({"measures": []}, "must name at least one measure"),
        ({"measures": {"a": 1}}, "must be a list of names or patterns"),
        ({"data": {"name": "digits", "sample": 3}}, "data has an unknown key 'sample'"),
        ({"model": {"hidden": 3}}, "must be a name, or a mapping with a 'name'"),
        ({"name": ""}, "name must be a text. Got ''"),
        ({"presets": {"quick": {"sede": 1}}}, "preset 'quick' has an unknown key 'sede'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_studies_are_refused_with_the_likely_meaning(changes, text):
    assert text in refusal(**changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model": "mpl"}, "No built-in model is called 'mpl'. Did you mean 'mlp'?"),
        ({"model": {"name": "mlp", "widht": 3}}, "cannot be built with the options"),
        ({"grid": {"model.hidden": [4, -1]}}, "must be"),
        ({"data": "digitz"}, "Got 'digitz'"),
        ({"data": {"name": "digits", "samples": 9999}}, "must be at most 1297"),
        ({"interventions": {"label_noise": 1.5}}, "label_noise must be"),
        ({"interventions": {"auto_augment": "cifar1"}}, "cifar1"),
        ({"measures": ["head.trac"]}, "No measure is called 'head.trac'. Did you mean"),
        ({"measure_options": {"options": {"rhoo": 1}}}, "rhoo"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_every_run_would_fail_on_is_refused_before_the_first(changes, text):
    with pytest.raises(sl.SpiritlevelError) as caught:
        control.check(tiny(**changes))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"mask": 0.25},
        {"bias_shift": -1},
        {"leakage": "class", "leakage_size": 2},
        {"leakage": "control", "leakage_patches": "digits"},
        {"batch_cycles": 5},
        {"mixup": 0.2, "crop_flip": 1, "input_noise": 0.1, "label_noise": 0.1},
    ],
    ids=str,
)
def test_every_intervention_passes_the_check_before_the_first_run(given):
    control.check(tiny(model={"name": "digits_cnn", "width": 4}, interventions=given))


def test_interventions_that_do_not_suit_the_network_are_refused_before_the_first_run():
    for given, text in (
        ({"mask": 0.25}, "must have convolutions"),
        ({"mask": 0.5, "mask_layers": "fc9"}, "Got 'fc9'. Did you mean 'fc1'?"),
        ({"bias_shift": 1, "bias_layer": "relu1"}, "must be a layer with a bias"),
        ({"leakage": "class", "leakage_size": 9}, "to fit the images"),
    ):
        with pytest.raises(sl.SpiritlevelError) as caught:
            control.check(tiny(interventions=given))
        assert text in str(caught.value)


def test_broken_yaml_is_refused_with_the_place():
    with pytest.raises(sl.SpiritlevelError, match=r"mine.yaml cannot be read as YAML: .* line 1"):
        Study.from_yaml("name: [", source="mine.yaml")


def test_a_yaml_file_that_is_no_mapping_or_has_no_name():
    with pytest.raises(sl.SpiritlevelError, match=r"file must be a mapping .* Got \[1\]"):
        Study.from_yaml("[1]")
    with pytest.raises(sl.SpiritlevelError, match=r"must have a name\. Add a line"):
        Study.from_yaml("seeds: 1")


def test_studies_are_found_by_name_in_yaml_and_in_python_files(tmp_path):
    quick = find("digits").with_preset("quick")
    control.check(quick)
    assert len(quick.runs()) == 48
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "a.py").write_text("from spiritlevel_lab import Study\nstudy = Study('x')")
    (tmp_path / "b.py").write_text("")
    assert find(str(tmp_path / "a.yaml")).name == "mine"
    assert find(str(tmp_path / "a.py")).name == "x"
    with pytest.raises(sl.SpiritlevelError, match=r"must define `study`.* Got None"):
        find(str(tmp_path / "b.py"))
    with pytest.raises(sl.SpiritlevelError, match=r"one of .*digits.* Did you mean 'digits'"):
        find("digit")
    with pytest.raises(sl.SpiritlevelError, match=r"no preset 'quik'. Did you mean 'quick'"):
        find("digits").with_preset("quik")


# -- single values changed ------------------------------------------------------------------------


def test_values_change_what_they_name_and_nothing_else():
    study = tiny()
    changed = study.with_values({"data.samples": 30, "epochs": 5, "seeds": [4]})
    assert [run.seed for run in changed.runs()] == [4, 4]
    for run in changed.runs():
        assert run.data == DataSettings("digits", samples=30)
        assert run.training.epochs == 5
        assert run.training.momentum == 0.9
    assert study.runs()[0].training.epochs == 2


def test_a_value_that_the_study_varies_itself_is_refused():
    with pytest.raises(sl.SpiritlevelError, match=r"varies 'lr' itself \(lr\)"):
        tiny().with_values({"lr": 0.3})
    both = tiny(grid={}, variants={"a": {"lr": 0.1}, "b": {"lr": 0.2}})
    with pytest.raises(sl.SpiritlevelError, match=r"varies 'training.lr' itself \(variants.b\)"):
        both.with_values({"training.lr": 0.3})


def test_an_unknown_value_is_refused_with_what_was_meant():
    with pytest.raises(sl.SpiritlevelError, match="Did you mean 'epochs'"):
        tiny().with_values({"epoch": 3})


def test_half_of_a_character_is_in_no_study():
    with pytest.raises(sl.SpiritlevelError, match=r"description must be a text .* Got 'a\\udc80b'"):
        Study(name="x", description="a\udc80b", model="mlp", data="digits")
