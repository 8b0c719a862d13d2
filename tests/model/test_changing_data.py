"""Data that is not the same in every pass is refused; data that only looks different is not."""

import collections
import copy
import random

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import spiritlevel as sl
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.model.fingerprint import DataRecord
from spiritlevel.testing.references import Truth

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randint(3, (50,), generator=torch.Generator().manual_seed(1))
PAIRS = TensorDataset(X, Y)
SEVERAL_PASSES, ONE_PASS = "curvature.lambda_max", "head.trace"
REFUSED = "must give the same samples in every pass. Got "


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()


def measured(data, name=SEVERAL_PASSES, **arguments):
    return sl.measure(network(), data, measures=name, rtol=1e-6, **arguments)[name].value


class Augmented(Dataset):
    """Noise from Python's generator, whose state a measurement leaves alone."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i] + 0.01 * random.random(), Y[i]


class AugmentedByTorch(Augmented):
    """Noise from torch's generator, whose state a measurement restores."""

    def __getitem__(self, i):
        return X[i] + 0.01 * torch.randn(4, dtype=torch.float64), Y[i]


class Flipped(Augmented):
    """The same values in another order, for one sample in two."""

    def __getitem__(self, i):
        return (X[i].flip(0) if random.random() < 0.5 else X[i]), Y[i]


class Relabelled(Augmented):
    """Inputs and labels are all there, but not together."""

    def __init__(self):
        self.order = torch.arange(len(X))

    def __getitem__(self, i):
        if i == 0:
            self.order = torch.tensor(random.sample(range(len(X)), len(X)))
        return X[i], Y[self.order[i]]


class Stream(IterableDataset):
    """Read from one place that goes on, such as an open file."""

    def __init__(self):
        self.left = iter(range(len(X)))

    def __iter__(self):
        for i in self.left:
            yield X[i], Y[i]


class Readable(IterableDataset):
    """A stream that starts again in every pass."""

    def __iter__(self):
        return zip(X, Y, strict=True)


class OneShot:
    def __init__(self):
        self.batches = zip(X.split(8), Y.split(8), strict=True)

    def __iter__(self):
        return self.batches


class Shrinking:
    length = len(X)

    def __iter__(self):
        self.length -= 4
        part = slice(self.length)
        return iter(list(zip(X[part].split(8), Y[part].split(8), strict=True)))


class OtherLabel:
    """One label of fifty changes after the first whole pass, the third to begin."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        labels = Y.clone()
        labels[33] = (labels[33] + (self.passes > 3)) % 3
        return iter(list(zip(X.split(8), labels.split(8), strict=True)))


CHANGING = {
    "replacement": lambda: DataLoader(PAIRS, 8, sampler=RandomSampler(PAIRS, replacement=True)),
    "weighted": lambda: DataLoader(PAIRS, 8, sampler=WeightedRandomSampler(Y + 0.5, 50)),
    "a part at random": lambda: DataLoader(PAIRS, 8, sampler=RandomSampler(PAIRS, num_samples=30)),
    "shuffle and drop_last": lambda: DataLoader(PAIRS, 8, shuffle=True, drop_last=True),
    "augmentation": lambda: DataLoader(Augmented(), 8),
    "augmentation by torch": lambda: DataLoader(AugmentedByTorch(), 8),
    "augmentation by workers": lambda: DataLoader(AugmentedByTorch(), 8, num_workers=1),
    "flips": lambda: DataLoader(Flipped(), 8),
    "labels": lambda: DataLoader(Relabelled(), 8),
    "stream": lambda: DataLoader(Stream(), 8),
    "one shot": OneShot,
    "shrinking": Shrinking,
    "another label": OtherLabel,
}


SHOWN_AT_ONCE = CHANGING.keys() - {"flips", "labels", "shrinking", "another label"}


@pytest.mark.parametrize("make", CHANGING.values(), ids=CHANGING)
def test_changing_data_is_refused(make):
    with pytest.raises(SpiritlevelError, match=REFUSED + r"(\d+ samples|a \w+)"):
        measured(make())


@pytest.mark.parametrize("kind", sorted(SHOWN_AT_ONCE))
def test_even_one_pass_shows_it(kind):
    """The first samples, from which a plan is made, must be among those of the pass."""
    with pytest.raises(SpiritlevelError, match=REFUSED):
        measured(CHANGING[kind](), ONE_PASS)


def test_networks_of_one_call_must_see_the_same_samples():
    loader = [(X[:25], Y[:25])]
    audit = lambda data: sl.audit(network(), data, measures=ONE_PASS)  # noqa: E731
    assert audit(loader)
    with pytest.raises(SpiritlevelError, match=REFUSED):
        audit(CHANGING["flips"]())
    with pytest.raises(SpiritlevelError, match=REFUSED):
        sl.compare({"a": network(), "b": network()}, CHANGING["flips"](), measures=ONE_PASS)


def test_data_changed_by_a_callback_is_refused():
    x = X.clone()
    with pytest.raises(SpiritlevelError, match=REFUSED):
        measured((x, Y), progress=lambda *_: x[7, 2].add_(1e-9))


class Text(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        lengths = torch.randint(2, 9, (30,), generator=generator)
        self.texts = [torch.randint(1, 20, (n,), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], i % 3


def padded(value):
    def collate(samples):
        texts, labels = zip(*samples, strict=True)
        ids = pad_sequence(texts, batch_first=True, padding_value=value)
        return {"ids": ids, "labels": torch.tensor(labels)}

    return collate


class Bag(nn.Module):
    """The mean embedding of the tokens that are no padding."""

    def __init__(self, padding):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.fc, self.padding = nn.Embedding(32, 4), nn.Linear(4, 3), padding

    def forward(self, ids):
        present = (ids != self.padding)[..., None]
        return self.fc((self.table(ids) * present).sum(dim=1) / present.sum(dim=1))


@pytest.mark.parametrize("padding", [0, 31])
def test_shuffled_batches_may_be_padded_to_their_longest_sample(padding):
    model = Bag(padding).double().eval()
    values = [
        sl.measure(
            model,
            DataLoader(Text(), 4, shuffle=shuffle, collate_fn=padded(padding)),
            measures=SEVERAL_PASSES,
        )[SEVERAL_PASSES].value
        for shuffle in (False, True)
    ]
    # Lanczos stops at an error of 1e-6; the value is more precise than that.
    assert values[1] == pytest.approx(values[0], rel=1e-9)


@pytest.mark.parametrize("padding", [0, 31])
def test_padded_batches_of_other_samples_are_refused(padding):
    text = Text()
    loader = DataLoader(
        text, 4, sampler=RandomSampler(text, replacement=True), collate_fn=padded(padding)
    )
    with pytest.raises(SpiritlevelError, match=REFUSED):
        sl.measure(Bag(padding).double().eval(), loader, measures=SEVERAL_PASSES)


SAME = {
    "in order": lambda: DataLoader(PAIRS, 8),
    "shuffled": lambda: DataLoader(PAIRS, 8, shuffle=True),
    "drop_last in order": lambda: DataLoader(PAIRS, 8, drop_last=True),
    "shuffle and drop_last without a rest": lambda: DataLoader(
        PAIRS, 10, shuffle=True, drop_last=True
    ),
    "a fixed part in any order": lambda: DataLoader(
        PAIRS, 8, sampler=SubsetRandomSampler(range(10, 40))
    ),
    "a stream": lambda: DataLoader(Readable(), 8),
    "a stream with drop_last": lambda: DataLoader(Readable(), 8, drop_last=True),
    "workers": lambda: DataLoader(PAIRS, 8, shuffle=True, num_workers=2),
    "named tuples": lambda: [Batch(x, y) for x, y in zip(X.split(8), Y.split(8), strict=True)],
}
Batch = collections.namedtuple("Batch", "x y")
ROWS = {
    "a stream with drop_last": slice(48),
    "drop_last in order": slice(48),
    "a fixed part in any order": slice(10, 40),
}


def largest(x, y):
    """The largest eigenvalue of the dense Hessian."""
    truth = Truth(network(), [(x, y)], nn.functional.cross_entropy)
    return float(torch.linalg.eigvalsh(truth.hessian(list(truth.parameters)))[-1])


@pytest.mark.parametrize("kind", SAME)
def test_the_same_samples_give_the_dense_truth(kind):
    rows = ROWS.get(kind, slice(None))
    # Lanczos stops at an error of 1e-6; the value is more precise than that.
    assert measured(SAME[kind]()) == pytest.approx(largest(X[rows], Y[rows]), rel=1e-9)


class WritesToItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return self.inner(x.sub_(1.0))


def test_a_model_may_write_to_its_input():
    x = X.clone()
    names = [SEVERAL_PASSES, ONE_PASS]
    report = sl.measure(WritesToItsInput(), (x, Y), measures=names, rtol=1e-6)
    assert torch.equal(x, X)
    for name in names:
        assert report[name].value == pytest.approx(measured((X - 1, Y), name), rel=1e-9)


# -- the fingerprint itself ------------------------------------------------------------------


def accepts(*passes):
    record = DataRecord()
    for batches in passes:
        for _ in record.watched(iter(batches)):
            pass
    return True


KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]
KINDS += [torch.bool, torch.uint8, torch.int16, torch.int64]


def of_kind(dtype):
    values = 50 * torch.randn(13, 3, 5, generator=torch.Generator().manual_seed(3))
    return values > 0 if dtype is torch.bool else values.to(dtype)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_order_and_division_do_not_matter_and_every_bit_does(dtype):
    x, y = of_kind(dtype), torch.arange(13)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(4))

    def cut(x, y, size):
        return list(zip(x.split(size), y.split(size), strict=True))

    assert accepts(cut(x, y, 4), cut(x[order], y[order], 3), cut(x, y, 13))
    swapped = x.clone()
    swapped[[2, 9]] = x[[9, 2]]
    moved = x.clone()
    moved[5] = x[5].flip(0)
    flipped = copy.deepcopy(x)
    flipped.view(torch.uint8)[5, 1, 7 % flipped.view(torch.uint8).shape[-1]] ^= 1
    for other in (swapped, moved, flipped):
        with pytest.raises(SpiritlevelError, match="13 samples in every pass, with other values"):
            accepts(cut(x, y, 4), cut(other, y, 4))


def test_nested_batches_lists_and_shared_tensors_count():
    def batches(table=0.0, name="b", extra=1.0):
        table = torch.full((3, 3), table)
        parts = {"ids": torch.arange(4), "extra": (torch.ones(4, 2) * extra, [name, "c", "d", "e"])}
        return [{"x": parts, "table": table, "y": torch.zeros(4), "how": "mean", "n": None}]

    assert accepts(batches(), batches())
    for other in ({"table": 1.0}, {"name": "z"}, {"extra": 2.0}):
        with pytest.raises(SpiritlevelError, match="other values"):
            accepts(batches(), batches(**other))


def test_sparse_inputs_are_read():
    x = torch.eye(4).to_sparse()
    assert accepts([(x, torch.zeros(4))], [(x, torch.zeros(4))])
    with pytest.raises(SpiritlevelError, match="other values"):
        accepts([(x, torch.zeros(4))], [(2 * x, torch.zeros(4))])


# -- how many samples there are --------------------------------------------------------------

LENGTHS = {
    "drop_last": (lambda: DataLoader(PAIRS, 8, drop_last=True), 48),
    "a sampler": (lambda: DataLoader(PAIRS, 8, sampler=SubsetRandomSampler(range(30))), 30),
    "a batch sampler": (lambda: DataLoader(PAIRS, batch_sampler=[[0, 1, 2], [3, 4]]), 5),
    "ready batches": (
        lambda: DataLoader([(X[:9], Y[:9]), (X[9:12], Y[9:12])], batch_size=None),
        12,
    ),
    "a loader of its own": (lambda: Repeated(), 100),
    "a list": (lambda: [(X[:7], Y[:7])], 7),
}


class Repeated:
    """Has a data set, and reads it twice in every pass."""

    dataset = PAIRS

    def __iter__(self):
        return iter([(X, Y), (X, Y)])


@pytest.mark.parametrize(("make", "count"), LENGTHS.values(), ids=LENGTHS)
def test_the_samples_that_are_read_are_counted(make, count):
    assert sl.landscape(network(), make(), points=3).settings["num_samples"] == count
    assert sl.measure(network(), make(), measures=ONE_PASS).settings["num_samples"] == count
