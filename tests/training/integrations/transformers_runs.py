"""Small models of transformers, made from a config, and Trainers of them, for the tests."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from spiritlevel.training.integrations.transformers import FlatnessTrainerCallback  # noqa: E402


def bert(dropout: float = 0.1) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return transformers.BertForSequenceClassification(config)


def samples(seed: int, count: int = 16) -> list[dict]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (count, 6), generator=generator)
    return [{"input_ids": row, "labels": row[0] % 3} for row in ids]


def batch(seed: int) -> dict:
    rows = samples(seed)
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def trainer_for(model, tmp_path, *, kind=None, epochs=2, kwargs=None, **options):
    settings = {
        "output_dir": str(tmp_path),
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "eval_strategy": "epoch",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return (kind or transformers.Trainer)(
        model,
        transformers.TrainingArguments(**(settings | options)),
        train_dataset=samples(0),
        eval_dataset=samples(1),
        **(kwargs or {}),
    )


def watch(trainer, **options):
    options = {"measures": "head.trace", "flatness": "head.trace"} | options
    callback = FlatnessTrainerCallback(trainer, batch(0), **options)
    trainer.add_callback(callback)
    return callback


class StopAfter(transformers.TrainerCallback):
    """Ends a run that was meant to be longer."""

    def __init__(self, epochs):
        self.epochs = epochs

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.epoch >= self.epochs
