"""Paper 001, what each analysis says of rows whose answer is known."""

import functools

import pytest
from scipy import stats

from papers.known_rows import judged, rows_of, students
from spiritlevel_lab.claims import numbers
from spiritlevel_lab.claims.contrasts import difference, lower_in
from spiritlevel_lab.papers import find
from spiritlevel_lab.papers.paper_001.fig_5 import distances

LARGEST, TRACE, GINI = "curvature.lambda_max", "curvature.trace", "softmax.gini"
JACOBIAN, FREQUENCY = "sensitivity.jacobian", "activity.frequency"


@pytest.fixture(autouse=True, scope="module")
def quantiles():
    """Student's quantiles are found by halving, 10 ms each: here each is found once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "t_quantile", functools.cache(numbers.t_quantile))
        yield


def test_differences_are_paired_by_seed():
    plain = [{"seed": s, "m": 10.0 * s} for s in range(4)]
    changed = [{"seed": s, "m": 10.0 * s + v} for s, v in [(3, 1.0), (0, 2.0), (2, 4.0), (9, 99.0)]]
    found = difference([*changed, {"seed": 1, "m": None}], plain, "m")
    assert (found.value, found.low, found.high) == students([1.0, 2.0, 4.0])
    assert found.n == 3  # no partner, no number: not counted
    assert lower_in(plain, changed, "m") == "lower in 3 of 3 pairs"


@pytest.mark.parametrize(
    ("changes", "parts", "agrees"),
    [
        ((0.1, -50, 20, 5, -0.1), "+++++", "yes"),
        ((0.1, -50, -20, 0, -0.1), "++-?+", "partly"),
        ((-0.1, 50, -20, -5, 0.1), "-----", "no"),
        ((0, 0, 0, 0, 0), "?????", "undecided"),
    ],
)
def test_augmentation(changes, parts, agrees):
    columns = ("test_accuracy", LARGEST, "activity.activation_norm", "norms.weight", FREQUENCY)
    rows = rows_of(
        "001-fig-3",
        [{"variant": "plain"}, {"variant": "augmented"}],
        lambda axis, seed: {
            key: 100
            + seed
            + (change * (1 + 0.01 * seed) or (-1) ** seed) * (axis["variant"] == "augmented")
            for key, change in zip(columns, changes, strict=True)
        },
    )
    outcome = judged("001-fig-3", rows, parts, agrees)
    assert f": {parts.count('+')} of the 5 changes" in outcome.conclusion
    assert set(outcome.reproduced_values) == set(find("001-fig-3").paper_values)


CYCLES = {
    "R = 5, one epoch": 5,
    "R = 10, one epoch": 10,
    "R = 20, one epoch": 20,
    "R = 1": 1,
    "R = 1, augmented": 1,
    "R = 5": 5,
    "R = 10": 10,
}


DIRECTIONS = pytest.mark.parametrize(  # in which R moves the trace early, late, and 1 − ‖p‖²
    ("early", "late", "certain", "parts", "agrees"),
    [
        (1, -1, -1, "+++", "yes"),
        (1, 1, 0, "+-?", "partly"),
        (-1, 0, -1, "-?+", "partly"),
        (-1, 1, 1, "---", "no"),
        (0, 0, 0, "???", "undecided"),
    ],
)


@DIRECTIONS
def test_batch_cycles(early, late, certain, parts, agrees):
    def value(axis, seed):
        cycles, first = CYCLES[axis["variant"]], "one epoch" in axis["variant"]
        return {
            TRACE: 1000 + 10 * cycles * (early if first else late) + seed,
            GINI: 0.5 + 0.01 * cycles * certain * (not first) + 0.001 * seed,
        }

    rows = rows_of("001-table-2", [{"variant": name} for name in CYCLES], value)
    outcome = judged("001-table-2", rows, f"{parts}0", agrees)
    trained = [row for row in rows if row["variant"] in ("R = 1", "R = 5", "R = 10")]
    ranks = stats.spearmanr(
        [CYCLES[row["variant"]] for row in trained], [row[GINI] for row in trained]
    )
    verb = {-1: "falls", 0: "does not clearly move", 1: "rises"}[certain]
    assert f"1 − ‖p‖² {verb} (Spearman {ranks.statistic:+.2f} [" in outcome.conclusion
    assert set(outcome.reproduced_values) == set(find("001-table-2").paper_values)


@DIRECTIONS
def test_batch_cycles_along_the_way(early, late, certain, parts, agrees):
    def value(axis, seed):
        cycles = axis["interventions.batch_cycles"]
        return {
            f"{TRACE}/1": 1000 + 10 * cycles * early + seed,
            f"{TRACE}/5": 1000 + 10 * cycles * late + seed,
            f"{GINI}/5": 0.5 + 0.01 * cycles * certain,
        }

    rows = rows_of("001-fig-4", [{"interventions.batch_cycles": r} for r in (1, 5, 10)], value)
    outcome = judged("001-fig-4", rows, parts, agrees)
    assert len(outcome.table.rows) == 15


def curves(free, fixed, sway=0.0):
    """Eigenvalues of plain networks over those of augmented ones: (before, after) being fitted.

    With free norms those before go up and down from seed to seed, by `sway` in logarithms.
    """

    def value(axis, seed):
        name = axis["variant"]
        before, after = (
            fixed if "fixed" in name else (free[0] * 10 ** (sway * (-1) ** seed), free[1])
        )
        found = {}
        for point in range(1, 9):
            found[f"task.train_accuracy/{point}"] = 0.5 if point < 5 else 0.95
            ratio = (before if point < 5 else after) * (1 + 0.01 * seed)
            found[f"{LARGEST}/{point}"] = 1e3 * (ratio if name.startswith("plain") else 1.0)
        return found

    names = ("plain", "augmented", "plain, norms fixed", "augmented, norms fixed")
    return rows_of("001-fig-5", [{"variant": name} for name in names], value)


@pytest.mark.parametrize(
    ("free", "fixed", "sway", "parts", "agrees"),
    [
        ((1.1, 3.0), (2.0, 3.0), 0, "++", "yes"),
        ((1.1, 3.0), (1.05, 3.0), 0, "+-", "partly"),
        ((3.0, 1.2), (2.0, 3.0), 0, "--", "no"),
        ((3.0, 3.0), (3.0, 3.0), 0.2, "??", "undecided"),
    ],
)
def test_when_curves_part(free, fixed, sway, parts, agrees):
    judged("001-fig-5", curves(free, fixed, sway), parts, agrees)


def test_distance_of_curves():
    plain, augmented, *_ = (
        [row for row in curves((10.0, 100.0), (1, 1)) if row["variant"] == name]
        for name in ("plain", "augmented")
    )
    before, after = distances(plain, augmented)
    assert before[0] == pytest.approx(1.0, abs=1e-4)
    assert after[0] == pytest.approx(2.0, abs=1e-4)
    never = [row | {f"task.train_accuracy/{p}": 0.1 for p in range(1, 9)} for row in plain]
    assert distances(never, augmented)[1] == {}


def test_a_run_that_stopped_early_or_failed_is_left_out():
    rows = curves((1.1, 3.0), (2.0, 3.0))
    gone = [r for r in rows if (r["variant"], r["seed"]) != ("augmented", 2)]
    for row in gone:
        if (row["variant"], row["seed"]) == ("plain", 0):
            row |= dict.fromkeys([key for key in row if key.endswith(("/7", "/8"))])
    outcome = find("001-fig-5").analyse(gone)
    assert "(n = 3)" in outcome.conclusion
    assert outcome.table.rows[7][1] == 1.0  # the other runs came that far


NOISES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)


@pytest.mark.parametrize(
    ("free", "fixed", "parts", "agrees"),
    [
        (0, -1, "+00+00", "yes"),
        (-1, -1, "+-0+00", "partly"),
        (0, 1, "-00-00", "no"),
        (0, 0, "?00?00", "undecided"),  # that one does not move shows nothing on its own
    ],
)
def test_noise_in_a_vision_transformer(free, fixed, parts, agrees):
    def value(axis, seed):
        slope = fixed if axis["norm_control"] else free
        noise = axis["interventions.input_noise"]
        still = 5.0 if (NOISES.index(noise) + seed) % 2 else 0.0
        return {
            TRACE: 1000 + 200 * slope * noise + (0.1 if slope else 1) * still,
            "train_accuracy": 0.1 + 0.01 * (-1) ** seed,
            JACOBIAN: 10 + seed,
            GINI: 0.5 - 0.1 * seed,
        }

    axes = [
        {"norm_control": fixed_, "interventions.input_noise": n}
        for fixed_ in (False, True)
        for n in NOISES
    ]
    judged("001-fig-6", rows_of("001-fig-6", axes, value), parts, agrees, lone_seed=True)


@pytest.mark.parametrize(
    ("trace", "jacobian", "certain", "parts", "agrees"),
    [
        (-1, -1, 0, "++0", "yes"),
        (-1, 0, -1, "+?-", "partly"),
        (1, -1, 0, "-+0", "no"),
        (0, -1, 1, "?+-", "no"),
        (0, -1, 0, "?+0", "undecided"),  # without the trace the Jacobian norm is not enough
        (0, 0, 0, "??0", "undecided"),
    ],
)
def test_noise_in_a_resnet(trace, jacobian, certain, parts, agrees):
    def value(axis, seed):
        noise = axis["interventions.input_noise"]
        still = 0.1 if (NOISES.index(noise) + seed) % 2 else 0.0
        return {
            TRACE: 100 + 20 * trace * noise,
            JACOBIAN: 10 + 2 * jacobian * noise,
            GINI: 0.5 + 0.4 * certain * noise + still * (1 - abs(certain)),
        }

    rows = rows_of("001-fig-9", [{"interventions.input_noise": n} for n in NOISES], value)
    outcome = judged("001-fig-9", rows, parts, agrees, lone_seed=True)
    assert outcome.figure.series[0].y[0] == pytest.approx(1.0)  # in parts of that without noise


@pytest.mark.parametrize(
    ("trace", "certain", "jacobian", "parts", "agrees"),
    [
        (-30, -0.1, 40, "+++", "yes"),
        (-30, 0, -5, "+?-", "partly"),
        (30, 0.1, -5, "---", "no"),
        (0, 0, 0, "???", "undecided"),
    ],
)
def test_leakage(trace, certain, jacobian, parts, agrees):
    def value(axis, seed):
        leak = axis["interventions.leakage"] == "class"
        return {
            TRACE: 50 + (trace + seed) * leak,
            GINI: 0.3 + (certain + 0.001 * seed) * leak,
            JACOBIAN: 60 + (jacobian + seed) * leak,
            f"{JACOBIAN}_outside": 5.0 if leak else 15.0,
        }

    axes = [{"interventions.leakage": kind} for kind in ("control", "class")]
    outcome = judged("001-table-3", rows_of("001-table-3", axes, value), f"{parts}++", agrees)
    assert set(outcome.reproduced_values) == set(find("001-table-3").paper_values)
    assert [row[0] for row in outcome.table.rows] == ["class", "control"]


@pytest.mark.parametrize(
    ("weak", "strong", "accuracy", "sway", "parts", "agrees"),
    [
        (30, -40, -0.01, 0, "-+++", "yes"),
        (0, -40, 0.01, 0.05, "?++0", "yes"),
        (0, -40, -0.3, 0, "?++-", "partly"),
        (0, -40, -0.04, 0.05, "?++?", "partly"),
        (30, 40, 0.0, 0, "-+-+", "no"),
        (0, 0, 0.3, 0, "?+?-", "undecided"),  # weak noise may still do
        (0, 0, 0.0, 0, "?+?+", "undecided"),  # the same accuracy shows nothing on its own
    ],
)
def test_noise_finetuning(weak, strong, accuracy, sway, parts, agrees):
    def value(axis, seed):
        up_and_down = 20 * (-1) ** seed
        moved = {"standard": 0, "fitted": 20}
        moved |= {"weak": weak or up_and_down, "strong": (strong or up_and_down) + seed}
        found = {f"{TRACE}/{stage}": 100 + 10 * seed + by for stage, by in moved.items()}
        for stage in moved:
            change = accuracy + sway * (-1) ** seed
            found[f"task.test_accuracy/{stage}"] = 0.5 + change * (stage == "strong")
        return found

    rows = rows_of("001-table-4", [{}], value)
    outcome = judged("001-table-4", rows, parts, agrees)
    assert set(outcome.reproduced_values) == set(find("001-table-4").paper_values)
    changed = [row[f"{TRACE}/strong"] - row[f"{TRACE}/standard"] for row in rows]
    mean, low, _ = students(changed)
    assert f"the trace differs by {mean.expected:.3g} [{low.expected:.3g}," in outcome.conclusion


@pytest.mark.parametrize(
    ("accuracy", "trace", "largest", "parts", "agrees"),
    [
        (-0.1, -500, 0, "++0", "yes"),
        (-0.1, 500, 30, "+--", "partly"),
        (0.1, 500, -30, "---", "no"),
        (0, 500, 0, "?-0", "no"),
        (0, 0, 0, "??0", "undecided"),
    ],
)
def test_masking_of_resnet(accuracy, trace, largest, parts, agrees):
    def value(axis, seed):
        masked = bool(axis["interventions.mask"])
        return {
            "test_accuracy": 0.7 + (accuracy + 0.001 * seed) * masked,
            TRACE: 3000 + (trace + seed) * masked,
            LARGEST: 130 + (largest + (-1) ** seed) * masked,
        }

    axes = [{"interventions.mask": mask} for mask in (0.0, 0.7)]
    outcome = judged("001-table-5", rows_of("001-table-5", axes, value), parts, agrees)
    assert set(outcome.reproduced_values) == set(find("001-table-5").paper_values)


@pytest.mark.parametrize(
    ("noise", "wide", "parts", "agrees"),
    [
        (-20, 10, "+-", "yes"),
        (0, -40, "?+", "partly"),
        (20, -40, "-+", "partly"),
        (0, 10, "?-", "no"),
        (20, 0, "-?", "no"),
        (0, 0, "??", "undecided"),
    ],
)
def test_random_displacements(noise, wide, parts, agrees):
    moves = {"plain": 0, "SAM": -30, "noise": noise, "noise, wide": wide}
    rows = rows_of(
        "001-a6",
        [{"variant": name} for name in moves],
        lambda axis, seed: {TRACE: 100 + 5 * seed + moves[axis["variant"]] + (-1) ** seed},
    )
    for row in rows:
        if row["variant"] == "plain":
            row[TRACE] -= (-1) ** row["seed"]
    judged("001-a6", rows, parts, agrees)
