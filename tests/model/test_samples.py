"""Data as users have it at hand: one dict, a list of samples, a data set without a loader."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import spiritlevel as sl
from spiritlevel.model.samples import TOGETHER


class Tagger(nn.Module):
    """Takes what a tokenizer gives, by name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask):
        kept = self.embed(input_ids) * attention_mask[..., None]
        return self.head(kept.sum(dim=1) / attention_mask.sum(dim=1, keepdim=True))


COUNT = TOGETHER + 7
TOKENS = torch.randint(9, (COUNT, 6), generator=torch.Generator().manual_seed(0))
BATCH = {
    "input_ids": TOKENS,
    "attention_mask": (TOKENS > 1).long(),
    "labels": TOKENS.sum(dim=1) % 3,
}
ROWS = [{key: value[i].tolist() for key, value in BATCH.items()} for i in range(COUNT)]


def kappa(model, data):
    report = sl.measure(model.eval(), data, measures="head.kappa")
    assert report.settings["num_samples"] == COUNT
    return report["head.kappa"].value


def test_one_dict_is_one_batch():
    model = Tagger()
    assert kappa(model, BATCH) == pytest.approx(kappa(model, [BATCH]), rel=1e-12)


def test_a_list_of_samples_is_collated():
    model = Tagger()
    expected = pytest.approx(kappa(model, [BATCH]), rel=1e-5)  # other batches, in float32
    assert kappa(model, ROWS) == expected
    tensors = [{key: value[i] for key, value in BATCH.items()} for i in range(COUNT)]
    assert kappa(model, tensors) == expected


@pytest.mark.parametrize("form", ["data set", "list of pairs", "list of pairs with numbers"])
def test_pairs_without_a_loader(form):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x, y = TOKENS.double(), BATCH["labels"]
    data = TensorDataset(x, y)
    if form != "data set":
        data = [(a, int(b) if "numbers" in form else b) for a, b in zip(x, y, strict=True)]
    assert kappa(model, data) == pytest.approx(kappa(model, (x, y)), rel=1e-12)
    assert kappa(model, DataLoader(TensorDataset(x, y), batch_size=5)) == pytest.approx(
        kappa(model, (x, y)), rel=1e-12
    )


def test_samples_of_different_lengths_need_padding():
    ragged = [{"input_ids": [1] * n, "attention_mask": [1] * n, "labels": 0} for n in (4, 6)]
    with pytest.raises(sl.SpiritlevelError, match=r"\(4,\) and \(6,\) under 'input_ids'.*Padding"):
        sl.measure(Tagger().eval(), ragged, measures="head.kappa")


def test_text_is_named():
    rows = [row | {"sentence": "as it was"} for row in ROWS]
    with pytest.raises(sl.SpiritlevelError, match=r"Got text under sentence\. Tokenize it"):
        sl.measure(Tagger().eval(), rows, measures="head.kappa")


def test_a_stream_is_no_list_of_samples():
    class Stream(IterableDataset):
        def __iter__(self):
            yield BATCH

    model = Tagger()
    assert kappa(model, Stream()) == pytest.approx(kappa(model, [BATCH]), rel=1e-12)


def test_what_is_no_data_is_refused():
    with pytest.raises(sl.SpiritlevelError, match=r"a dict with labels, or a data set\. Got int"):
        sl.measure(Tagger().eval(), 7)
