"""Activity of sequences, in any layout, with masks, and where it cannot be compared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from measures.activity.activity_by_hand import RECTIFIED, batches, check, drawn, labels
from spiritlevel.model.losses import CrossEntropy


class Tokens(nn.Module):
    """Positions in the way that `layout` says between the layers."""

    def __init__(self, layout):
        super().__init__()
        self.one, self.two, self.layout = nn.Linear(4, 6), nn.Linear(6, 3), layout

    def forward(self, x):
        x = self.one(x)
        if self.layout == "time first":
            return self.two(F.relu(x.transpose(0, 1))).transpose(0, 1)
        if self.layout == "flat":
            return self.two(F.relu(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        if self.layout == "flat, time first":
            flat = F.relu(x.transpose(0, 1).flatten(0, 1))
            return self.two(flat).unflatten(0, x.shape[1::-1]).transpose(0, 1)
        return self.two(F.relu(x))


@pytest.mark.parametrize("size", [3, 5, 6])  # 5: as many samples as positions
@pytest.mark.parametrize("layout", ["plain", "time first", "flat", "flat, time first"])
def test_sequences_in_any_layout(layout, size, generator):
    torch.manual_seed(0)
    model, x = Tokens(layout).double(), drawn((6, 5, 4), generator)
    y = torch.randint(3, (6, 5), generator=generator)
    names = [*RECTIFIED, "activity.activation_norm"]
    loss = CrossEntropy(class_dim=-1)
    report = sl.measure(model, batches(x, y, size), loss=loss, measures=names)
    rectified = F.relu(model.one(x)).detach()
    check(report, {"(model)": rectified})
    for layer, a in (("one", x), ("two", rectified)):
        squares = torch.stack([sample.square().sum() for sample in a])
        found = report.layers["activity.activation_norm"][layer]
        assert found.value == pytest.approx(float(squares.mean().sqrt()), rel=1e-13)
        error = float(squares.std() / 6**0.5 / (2 * squares.mean().sqrt()))
        assert found.data_stderr == pytest.approx(error, rel=1e-9)


def test_what_the_loss_ignores_is_active_all_the_same(generator):
    torch.manual_seed(0)
    model, x = Tokens("plain").double(), drawn((6, 5, 4), generator)
    y = torch.randint(3, (6, 5), generator=generator)
    hidden = y.clone()
    hidden[2:, 1:] = -100
    hidden[4] = -100
    loss = CrossEntropy(class_dim=-1)
    names = [*RECTIFIED, "activity.activation_norm"]
    one, two = (sl.measure(model, batches(x, t), loss=loss, measures=names) for t in (y, hidden))
    assert [m.value for m in one.values()] == [m.value for m in two.values()]


def test_sequences_of_different_lengths_are_refused(generator):
    model = Tokens("plain").double()
    lengths = (5, 5, 7)
    data = [
        (drawn((2, n, 4), generator), torch.randint(3, (2, n), generator=generator))
        for n in lengths
    ]
    loss = CrossEntropy(class_dim=-1)
    with pytest.raises(sl.SpiritlevelError) as raised:
        sl.measure(model, data, loss=loss, measures="activity.death")
    for part in ("'(model)'", "one shape for all samples", "Got (5, 6) and (7, 6)"):
        assert part in str(raised.value)
    norm = sl.measure(model, data, loss=loss, measures="activity.activation_norm")
    assert norm["activity.activation_norm"].value > 0


def test_places_that_come_and_go_are_refused(generator):
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            x = F.relu(self.one(x))
            return self.two(F.relu(x - 1) if float(x.detach().max()) > 50 else x)

    x = drawn((6, 4), generator)
    x[-1] *= 1000
    with pytest.raises(sl.SpiritlevelError, match=r"'\(model\) \(2\)'.*in some batches only"):
        sl.measure(
            Sometimes().double(), batches(x, labels(6, generator)), measures="activity.death"
        )


def test_fused_transformer_layers_are_seen(generator):
    # without gradients torch would run the whole layer as one kernel, its rectifier inside
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double().eval()

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.fc = layer, nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(self.layer(x).mean(dim=1))

    model, x = Encoder().double().eval(), drawn((6, 5, 8), generator)
    seen = []
    handle = layer.linear2.register_forward_pre_hook(lambda m, args: seen.append(args[0].detach()))
    model(x)
    handle.remove()
    fast = torch.backends.mha.get_fastpath_enabled()
    report = sl.measure(model, batches(x, labels(6, generator)), measures=RECTIFIED)
    check(report, {"layer": seen[0]})
    assert torch.backends.mha.get_fastpath_enabled() == fast
