"""Real runs of the Hugging Face Trainer with SAM and with a penalty: equal to plain loops."""

import json

import pytest
import torch

import spiritlevel as sl
from spiritlevel.training import FlatnessPenalty
from spiritlevel.training.sam.optimizers import SAM
from training.penalties.penalty_zoo import PENALTIES, make_penalty

pytestmark = pytest.mark.sampled(4)  # the others at night

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from spiritlevel.training.integrations.transformers import PenaltyTrainer, SAMTrainer  # noqa: E402
from training.integrations.transformers_runs import StopAfter, bert, trainer_for, watch  # noqa: E402


def by_hand(model, step):
    """The same two epochs in a plain loop, on the batches the Trainer would take."""
    trainer = trainer_for(bert(0.0), "unused", eval_strategy="no")
    batches = []

    class Record(transformers.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            batches.append({key: value.clone() for key, value in inputs.items()})
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = trainer_for(bert(0.0), "unused", kind=Record, eval_strategy="no")
    trainer.train()
    model.train()
    for inputs in batches:
        step(inputs)


def test_sam_trainer_steps_as_a_plain_loop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def sam(model):
        return SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1)

    model, plain = bert(0.0), bert(0.0)
    constant = {"eval_strategy": "no", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    kwargs = {"optimizers": (sam(model), None)}
    trainer = trainer_for(model, tmp_path, kind=SAMTrainer, kwargs=kwargs, **constant)
    callback = watch(trainer)
    trainer.train()
    assert len(callback.rows) == 2
    optimizer = sam(plain)

    def step(inputs):
        plain(**inputs).loss.backward()
        with optimizer.perturbed():
            plain(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    by_hand(plain, step)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_sam_in_a_plain_trainer_says_what_to_do(tmp_path):
    model = bert()
    kwargs = {"optimizers": (SAM(torch.optim.SGD(model.parameters(), lr=0.1)), None)}
    trainer = trainer_for(model, tmp_path, kwargs=kwargs)
    with pytest.raises(sl.SpiritlevelError, match="Hugging Face Trainer"):
        trainer.train()


def penalty_of(name, model, **options):
    options = {"weight": 0.5, "generator": torch.Generator().manual_seed(7)} | options
    return make_penalty(name, model, layer="classifier", **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PENALTIES)
def test_penalty_trainer_adds_what_a_plain_loop_adds(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)

    def penalty(model):
        return penalty_of(name, model)

    model, plain = bert(0.0), bert(0.0)
    options = {"eval_strategy": "no", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    kwargs = {
        "penalty": penalty(model),
        "optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None),
    }
    trainer = trainer_for(model, tmp_path, kind=PenaltyTrainer, kwargs=kwargs, **options)
    trainer.train()
    optimizer, added = torch.optim.SGD(plain.parameters(), lr=0.1), penalty(plain)

    def step(inputs):
        with added.shared_forward():
            loss = plain(**inputs).loss
        (loss + added(inputs, inputs["labels"], loss=loss)).backward()
        optimizer.step()
        optimizer.zero_grad()

    by_hand(plain, step)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    assert not torch.equal(model.classifier.weight, bert().classifier.weight)
    assert trainer.evaluate()["eval_loss"] > 0


def test_penalty_trainer_logs_the_penalty_beside_the_loss(tmp_path):
    model = bert()
    penalty = FlatnessPenalty(model, weight=0.5, every=3)
    kwargs = {"penalty": penalty}
    trainer = trainer_for(model, tmp_path, kind=PenaltyTrainer, kwargs=kwargs, logging_steps=1)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "penalty" in entry]
    assert [entry["step"] for entry in logged] == [1, 2, 3, 4]
    assert all("loss" in entry for entry in logged)  # and no evaluation has it
    values = [entry["penalty"] for entry in logged]
    assert values[0] == values[1] == values[2] != values[3] == float(penalty.value)


RESUMED = ("own", "trace_squared")  # the state of the others travels in the same way


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "restore"),
    [
        *((name, False) for name in RESUMED),
        ("trace_squared", True),
        *(
            pytest.param(name, False, marks=pytest.mark.nightly)
            for name in PENALTIES
            if name not in RESUMED
        ),
    ],
)
def test_a_resumed_penalty_goes_on_where_it_was(tmp_path, name, restore):
    def run(folder, resume=None, stop_after=None):
        model = bert()
        penalty = penalty_of(name, model, every=3)
        trainer = trainer_for(
            model,
            tmp_path / folder,
            kind=PenaltyTrainer,
            kwargs={"penalty": penalty},
            epochs=4,
            eval_strategy="no",
            save_strategy="epoch",
            restore_callback_states_from_checkpoint=restore,
        )
        callback = watch(trainer)
        if stop_after is not None:
            trainer.add_callback(StopAfter(stop_after))
        trainer.train(resume_from_checkpoint=resume)
        values = [row["head.trace"] for row in callback.rows]
        return model.state_dict(), values, penalty.state_dict()

    weights, values, end = run("straight")
    run("broken", stop_after=2)
    checkpoint = tmp_path / "broken" / "checkpoint-4"  # 2 steps before the next penalty
    again, measured, state = run("broken", str(checkpoint))
    assert measured == values
    for path, value in weights.items():
        assert torch.equal(value, again[path]), path
    assert state["steps"] == end["steps"] == 8
    assert state["value"] == end["value"]
    assert torch.equal(state["generator"], end["generator"])
    # without its state the penalty would come at other steps: the comparison can tell
    path = checkpoint / "trainer_state.json"
    kept = json.loads(path.read_text())
    assert kept["stateful_callbacks"].pop("spiritlevel.penalty")["steps"] == 4
    path.write_text(json.dumps(kept))
    anew, _, _ = run("broken", str(checkpoint))
    assert not torch.equal(anew["classifier.weight"], weights["classifier.weight"])


def test_penalty_trainer_needs_a_penalty(tmp_path):
    with pytest.raises(sl.SpiritlevelError, match=r"'penalty' .* must be a Penalty\. Got 0\.01"):
        trainer_for(bert(), tmp_path, kind=PenaltyTrainer, kwargs={"penalty": 0.01})


@pytest.mark.parametrize("kind", [SAMTrainer, PenaltyTrainer])
def test_accumulation_is_refused(tmp_path, kind):
    model = bert()
    kwargs = {"optimizers": (SAM(torch.optim.SGD(model.parameters(), lr=0.1)), None)}
    if kind is PenaltyTrainer:
        kwargs = {"penalty": FlatnessPenalty(model)}
    trainer = trainer_for(model, tmp_path, kind=kind, kwargs=kwargs, gradient_accumulation_steps=2)
    with pytest.raises(sl.SpiritlevelError, match=r"gradient_accumulation_steps=1.*Got 2"):
        trainer.train()


def test_sam_trainer_needs_sam(tmp_path):
    trainer = trainer_for(bert(), tmp_path, kind=SAMTrainer)
    with pytest.raises(sl.SpiritlevelError, match=r"SAMTrainer needs SAM.*Got AdamW"):
        trainer.train()
