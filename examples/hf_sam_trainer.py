"""Train with SAM in the Hugging Face Trainer, beside plain AdamW, and compare both minima.

Needs `pip install 'spiritlevel[transformers]'`. The model is small and built from a config, so
nothing is downloaded. Run it with `python examples/hf_sam_trainer.py`.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import spiritlevel as sl
from spiritlevel.training.integrations.transformers import SAMTrainer

IDS = torch.randint(1, 30, (256, 8), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row[0] % 3} for row in IDS]


def make_model() -> BertForSequenceClassification:
    """A small BERT, the same for both runs."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=30,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=3,
        )
    )


def train(trainer: type[Trainer]) -> BertForSequenceClassification:
    """Classify sequences by their first token."""
    model = make_model()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if trainer is SAMTrainer:
        optimizer = sl.SAM(optimizer, rho=0.05)  # the plain Trainer could not make its two passes
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=6,
            per_device_train_batch_size=32,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer(model, arguments, train_dataset=ROWS, optimizers=(optimizer, None)).train()
    return model.eval()


def main() -> None:
    """Both networks on the same data; head.* needs one forward pass."""
    networks = {"adamw": train(Trainer), "sam": train(SAMTrainer)}
    batch = {"input_ids": IDS, "labels": IDS[:, 0] % 3}
    found = sl.compare(networks, batch, measures=["head.kappa", "head.trace"])
    print(found)
    answer = found.answer()
    assert answer is not None
    assert set(answer.names) == {"adamw", "sam"}


if __name__ == "__main__":
    main()
