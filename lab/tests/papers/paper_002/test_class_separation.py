"""The synthetic data of paper 002 and what is fitted to them, against numpy and scikit-learn."""

import dataclasses

import numpy
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel_lab import Study
from spiritlevel_lab.papers.paper_002.tasks_class_separation import (
    FEATURES,
    Clouds,
    fit_logistic,
    fit_ridge,
    inputs_of,
    random_extractor,
)
from spiritlevel_lab.population import control
from spiritlevel_lab.population.runs.run_data import derived_generator
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.settings.sections import MeasureSettings

pytestmark = pytest.mark.sampled(3)  # the others at night


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sample(separation=1.0, count=200):
    return Clouds.draw(separation, generator(1)).sample(count, generator(2))


def run_of(name="002-fig-3", **task):
    study = control.find(name)
    study = dataclasses.replace(
        study, task={"name": "tasks_class_separation", **task}, grid={}, presets={}, seeds=[3]
    )
    [settings] = study.runs()
    return settings


def test_clouds_sit_on_four_different_corners():
    clouds = Clouds.draw(2.5, generator())
    assert len({tuple(c) for c in clouds.centres.tolist()}) == 4
    assert clouds.centres.abs().eq(2.5).all()


def test_separation_moves_clouds_and_nothing_else():
    near, far = (Clouds.draw(s, generator(7)).sample(40, generator(8)) for s in (1.0, 3.0))
    moved = (far[0] - near[0]).numpy()
    assert numpy.array_equal(near[1], far[1])
    for cloud in range(4):  # all points of a cloud move alike
        assert numpy.allclose(moved[cloud::4], moved[cloud], atol=1e-12)
    assert numpy.linalg.matrix_rank(moved) <= 3
    assert abs(moved).max() > 1.0


def test_four_features_are_mixtures_and_three_are_noise():
    features, _ = Clouds.draw(1.0, generator(1)).sample(500, generator(2))
    assert numpy.linalg.matrix_rank(features.numpy(), tol=1e-8) == 6  # three carry, three are noise


def test_classes_are_balanced():
    _, classes = sample(count=500)
    assert int(classes.sum()) == 250


def test_extractor_is_turned_around_exactly():
    features, _ = sample()
    extractor = random_extractor(generator(5))
    inputs = inputs_of(extractor, features)
    assert torch.allclose(extractor(inputs), features, atol=1e-12)
    linear = features @ torch.linalg.lstsq(features, inputs).solution
    assert not torch.allclose(linear, inputs, atol=1e-2)  # it bends


def test_ridge_is_that_of_scikit_learn():
    features, classes = sample()
    weight, bias = fit_ridge(features, classes)
    theirs = RidgeClassifier(alpha=1.0).fit(features.numpy(), classes.numpy())
    assert numpy.allclose(weight.numpy(), theirs.coef_.ravel(), atol=1e-9)
    assert numpy.allclose(float(bias), theirs.intercept_, atol=1e-9)


@pytest.mark.parametrize("separation", [0.5, 5.0])
def test_logistic_is_that_of_scikit_learn(separation):
    features, classes = sample(separation)
    weight, bias = fit_logistic(features, classes)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(features, classes)
    assert numpy.allclose(weight.numpy(), theirs.coef_[0], atol=1e-4)
    assert numpy.allclose(float(bias), theirs.intercept_[0], atol=1e-4)


def test_run_against_the_formula_for_squared_loss():
    settings = run_of(separation=1.0, points=60, fresh=500)
    result = run_one(settings)
    [kappa] = [
        m.value for m in result.measurements if (m.measure, m.layer) == ("relative.kappa", "")
    ]
    clouds = Clouds.draw(1.0, derived_generator(settings.seed, "clouds"))
    features, classes = clouds.sample(60, derived_generator(settings.seed, "training points"))
    ridge = RidgeClassifier(alpha=1.0).fit(features.numpy(), classes.numpy())
    squares = (ridge.coef_**2).sum() * (features.numpy() ** 2).sum(axis=1).mean()
    assert kappa == pytest.approx(2 * squares, rel=1e-9)  # the loss has a second derivative of 2
    [epoch] = result.epochs
    targets = 2.0 * classes.numpy() - 1.0
    errors = ridge.decision_function(features.numpy()) - targets
    assert epoch.train_loss == pytest.approx((errors**2).mean(), rel=1e-9)
    assert (result.num_train, result.num_test) == (60, 500)


def test_same_settings_same_numbers_and_other_seed_others():
    settings = run_of(separation=2.0, points=50, fresh=100, classifier="logistic")
    first, second = (run_one(settings) for _ in range(2))
    assert first.measurements == second.measurements
    assert first.epochs == second.epochs
    other = run_one(dataclasses.replace(settings, seed=4))
    assert other.epochs != first.epochs


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"classifier": "tree"}, "task.classifier must be one of ridge, logistic. Got 'tree'"),
        ({"seperation": 1.0}, "unknown key 'seperation'. Did you mean 'separation'?"),
        ({"points": 50.5}, "task.points must be a whole number. Got 50.5"),
        ({"points": True}, "task.points must be a whole number. Got True"),
    ],
)
def test_wrong_options_are_refused(task, text):
    with pytest.raises(SpiritlevelError, match="study's") as caught:
        run_one(run_of(**task))
    assert text in str(caught.value)


def test_wrong_arguments_are_refused_before_the_first_run():
    task = {"name": "tasks_class_separation", "seperation": 1.0}
    with pytest.raises(SpiritlevelError, match="unknown key 'seperation'"):
        control.check(Study("wrong", task=task))


def test_samples_are_refused():
    settings = run_of(points=50, fresh=50)
    settings = dataclasses.replace(settings, measure_options=MeasureSettings(samples=10))
    with pytest.raises(SpiritlevelError, match=r"measure_options.samples must be left out"):
        run_one(settings)


def test_features_are_as_many_as_the_bound_counts():
    assert sample()[0].shape[1] == FEATURES
