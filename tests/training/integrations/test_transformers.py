"""Real runs of the Hugging Face Trainer on models made from a config: nothing is downloaded."""

import json
import math

import pytest
import torch

import spiritlevel as sl
from spiritlevel.training import FlatnessStopping

pytestmark = pytest.mark.sampled(4)  # the others at night

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from spiritlevel.training.integrations.transformers import FlatnessTrainerCallback  # noqa: E402
from training.integrations.transformers_runs import (  # noqa: E402
    StopAfter,
    batch,
    bert,
    samples,
    trainer_for,
    watch,
)

KAPPA = "flatness/relative.kappa"
HEAD = "flatness/head.trace"


def test_rows_log_history_and_an_undisturbed_training(tmp_path):
    plain, model = bert(), bert()
    trainer_for(plain, tmp_path).train()
    trainer = trainer_for(model, tmp_path)
    names = ["relative.kappa", "head.trace"]
    path = tmp_path / "run.jsonl"
    callback = watch(trainer, measures=names, layers="classifier", to=path)
    trainer.train()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    assert [(row["step"], row["epoch"]) for row in callback.rows] == [(2, 0), (4, 1)]
    logged = [entry for entry in trainer.state.log_history if KAPPA in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    assert [entry[KAPPA] for entry in logged] == [row["relative.kappa"] for row in callback.rows]
    assert [json.loads(line) for line in path.read_text().splitlines()] == callback.rows
    report = sl.measure(model.eval(), [batch(0)], measures=names, layers="classifier")
    assert callback.rows[-1]["head.trace"] == report["head.trace"].value


def test_values_reach_the_reporting_callbacks(tmp_path):
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append((state.global_step, logs.get(HEAD)))

    trainer = trainer_for(bert(), tmp_path, kwargs={"callbacks": [Reporter()]})
    callback = watch(trainer, every="1 step")
    trainer.train()
    expected = [(row["step"], row["head.trace"]) for row in callback.rows]
    assert [entry for entry in seen if entry[1] is not None] == expected
    assert [step for step, _ in expected] == [1, 2, 3, 4]


def test_the_trainer_still_logs_its_own_loss(tmp_path):
    trainer = trainer_for(bert(), tmp_path, logging_steps=1)
    watch(trainer, every=1)
    trainer.train()
    assert [e["step"] for e in trainer.state.log_history if "loss" in e] == [1, 2, 3, 4]


def test_several_evaluation_sets(tmp_path):
    trainer = trainer_for(bert(), tmp_path)
    trainer.eval_dataset = {"one": samples(1), "two": samples(2)}
    stopping = FlatnessStopping("loss")
    watch(trainer, stopping=stopping, eval_loss="eval_two_loss")
    trainer.train()
    logged = [e["eval_two_loss"] for e in trainer.state.log_history if "eval_two_loss" in e]
    assert stopping.state_dict()["losses"] == logged


def test_a_language_model(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in samples(0)]
    trainer = trainer_for(model, tmp_path, eval_strategy="no", epochs=1)
    trainer.train_dataset = rows
    probe = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    callback = FlatnessTrainerCallback(trainer, probe, measures="head.kappa", num_samples=5)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.rows[0]["status"] == "ok"
    cut = {key: value[:5] for key, value in probe.items()}
    report = sl.measure(model.eval(), [cut], measures="head.kappa")
    assert callback.rows[0]["head.kappa"] == report["head.kappa"].value


@pytest.mark.parametrize("rule", ["loss", "flatness", "both", "trend"])
def test_stopping(tmp_path, rule):
    patience = 4 if rule == "trend" else 2
    trainer = trainer_for(bert(), tmp_path, epochs=8, learning_rate=0.0)  # nothing ever changes
    stopping = FlatnessStopping(rule, patience=patience)
    watch(trainer, stopping=stopping)
    trainer.train()
    assert trainer.state.epoch == (4.0 if rule == "trend" else 3.0)
    assert f"{patience} epochs" in stopping.reason


def test_old_values_do_not_count_as_stable(tmp_path):
    trainer = trainer_for(bert(), tmp_path, epochs=5)
    stopping = FlatnessStopping("both", patience=1)
    watch(trainer, every="2 epochs", stopping=stopping)
    trainer.train()
    assert stopping.state_dict()["epochs"] == [2.0, 4.0]


def test_evaluation_by_hand_is_no_epoch(tmp_path):
    trainer = trainer_for(bert(), tmp_path, epochs=1)
    stopping = FlatnessStopping("loss", patience=2)
    watch(trainer, stopping=stopping)
    trainer.train()
    trainer.evaluate()
    assert len(stopping.state_dict()["epochs"]) == 1


def test_resume_from_a_checkpoint(tmp_path):
    def run(folder, epochs, resume=None):
        (tmp_path / folder).mkdir(exist_ok=True)
        trainer = trainer_for(
            bert(), tmp_path / folder, epochs=6, save_strategy="epoch", eval_strategy="epoch"
        )
        stopping = FlatnessStopping("both", patience=3, tolerance=5.0, min_delta=1e9)
        callback = watch(trainer, stopping=stopping, to=tmp_path / f"{folder}.jsonl")
        if epochs < 6:
            trainer.add_callback(StopAfter(epochs))
        trainer.train(resume_from_checkpoint=resume)
        return trainer, callback, stopping

    straight, rows, reason = run("straight", 6)
    run("broken", 3)
    trainer, callback, stopping = run("broken", 6, str(tmp_path / "broken" / "checkpoint-4"))
    lines = [json.loads(line) for line in (tmp_path / "broken.jsonl").read_text().splitlines()]
    assert [row["step"] for row in lines] == [2, 4, 6, 8]
    assert [row["head.trace"] for row in lines] == [row["head.trace"] for row in rows.rows]
    assert callback.rows == lines
    logged = [entry["step"] for entry in trainer.state.log_history if HEAD in entry]
    assert logged == [2, 4, 6, 8]
    assert trainer.state.epoch == straight.state.epoch == 4.0
    assert stopping.reason == reason.reason != ""


def test_a_failed_row_is_saved_and_training_goes_on(tmp_path):
    model = bert()
    trainer = trainer_for(model, tmp_path, save_strategy="epoch")
    callback = watch(trainer)
    with torch.no_grad():
        model.classifier.weight[0, 0] = 1.0

    class Poison(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                model.classifier.weight.data[0, 0] = math.nan

    trainer.add_callback(Poison())
    trainer.train()
    assert [row["status"] for row in callback.rows] == ["ok", "failed"]
    assert len([entry for entry in trainer.state.log_history if HEAD in entry]) == 1


def test_bad_input(tmp_path):
    trainer = trainer_for(bert(), tmp_path)
    for change, text in [
        ({"every": 0}, r"'every' argument.*Got 0"),
        ({"measures": "head.trac"}, r"Did you mean 'head\.trace"),
        ({"max_overhead": 0.0}, r"Got 0\.0"),
        ({"stopping": FlatnessStopping("loss", restore_best=True)}, r"load_best_model_at_end=True"),
    ]:
        with pytest.raises(sl.SpiritlevelError, match=text):
            FlatnessTrainerCallback(trainer, batch(0), **change)
    for change, options, text in [
        ({"stopping": FlatnessStopping("both")}, {"eval_strategy": "no"}, r"no evaluation"),
        (
            {"stopping": FlatnessStopping("trend"), "flatness": "relative.kappa"},
            {},
            r"Measured are",
        ),
        (
            {"stopping": FlatnessStopping("loss"), "eval_loss": "loss"},
            {},
            r"metric 'loss'.*eval_loss",
        ),
    ]:
        trainer = trainer_for(bert(), tmp_path, **options)
        watch(trainer, **change)
        with pytest.raises(sl.SpiritlevelError, match=text):
            trainer.train()
    trainer = trainer_for(bert(), tmp_path)
    trainer.add_callback(FlatnessTrainerCallback(trainer, []))
    with pytest.raises(sl.SpiritlevelError, match=r"Got an empty loader"):
        trainer.train()


def test_the_learning_rate_is_watched(tmp_path):
    plain, model = bert(), bert()
    trainer_for(plain, tmp_path).train()
    trainer = trainer_for(model, tmp_path)
    callback = watch(trainer, measures=(), optimizer=True, every=1)
    trainer.train()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    assert [row["status"] for row in callback.rows] == ["ok"] * 4
    name = "flatness/rate.sharpness"
    logged = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert logged == [row["rate.sharpness"] for row in callback.rows]
    for row in callback.rows[:-1]:  # of AdamW without weight decay, at the rate of the next step
        assert row["rate.threshold"] == pytest.approx(38 / row["rate.learning_rate"])
    assert callback.rows[-1]["rate.learning_rate"] == 0.0
    assert "rate.threshold" not in callback.rows[-1]


def test_a_warning_about_the_learning_rate(tmp_path):
    trainer = trainer_for(bert(), tmp_path, optim="sgd", epochs=1)
    callback = watch(trainer, measures=(), optimizer=True, every=1, warn_above=1e-3)
    with pytest.warns(RuntimeWarning, match="of SGD at learning rate 0.005"):
        trainer.train()
    assert ["warning" in row for row in callback.rows] == [True, False]
