"""Monitor flatness in the Hugging Face Trainer and stop when it has settled.

Needs `pip install 'spiritlevel[transformers]'`. The model is small and built from a config, so
nothing is downloaded. Run it with `python examples/hf_trainer.py`.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from spiritlevel.training import FlatnessStopping
from spiritlevel.training.integrations.transformers import FlatnessTrainerCallback


def main() -> None:
    """Train a small BERT to classify sequences by their first token."""
    torch.manual_seed(0)
    ids = torch.randint(1, 30, (256, 8))
    data = [{"input_ids": row, "labels": row[0] % 3} for row in ids]
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=30,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=3,
        )
    )
    probe = {"input_ids": ids[:64], "labels": ids[:64, 0] % 3}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=20,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=data)
        stopping = FlatnessStopping(rule="trend", patience=5, tolerance=0.2)
        callback = FlatnessTrainerCallback(
            trainer, probe, measures="head.trace", flatness="head.trace", stopping=stopping
        )
        trainer.add_callback(callback)
        trainer.train()
    print("stopped:", stopping.reason or "no")
    logged = [entry for entry in trainer.state.log_history if "flatness/head.trace" in entry]
    assert len(logged) == len(callback.rows) >= 5
    assert logged[-1]["flatness/head.trace"] == callback.rows[-1]["head.trace"]


if __name__ == "__main__":
    main()
