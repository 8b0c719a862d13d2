"""Later calls recall what earlier ones found out, and only while the network does the same."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.model.autograd_graph import shape_of_graph
from spiritlevel.model.findings import findings_about, share
from spiritlevel.model.surface import Surface
from zoo.wrong_gradients import Scaled


class Switched(nn.Module):
    """A network whose gradient can be made wrong, visibly in the graph or not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.doubles = False
        self.options = {"detached": False}

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        if self.doubles and h.requires_grad:
            h.register_hook(lambda gradient: 2 * gradient)
        shortcut = self.first(x).sum(dim=1, keepdim=True)
        return self.last(h + (shortcut.detach() if self.options["detached"] else shortcut))


@pytest.fixture
def model() -> Switched:
    return Switched().double().eval()


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (12,), generator=generator)


@pytest.mark.parametrize("measures", ["curvature.trace", "curvature.lambda_max", None])
def test_a_later_call_costs_less_and_says_the_same(
    model: Switched, data: tuple[Tensor, Tensor], measures: str | None
) -> None:
    first, second = (sl.measure(model, data, measures=measures) for _ in range(2))
    assert second.cost.forwards < first.cost.forwards
    assert second.cost.backwards < first.cost.backwards
    assert {n: m.value for n, m in first.items()} == {n: m.value for n, m in second.items()}
    assert {n: m.exact for n, m in first.items()} == {n: m.exact for n, m in second.items()}


def test_it_is_recalled_after_a_training_step(model: Switched, data: tuple[Tensor, Tensor]) -> None:
    first = sl.measure(model, data, measures="curvature.trace")
    with torch.no_grad():
        model.last.weight += 0.1
    second = sl.measure(model, data, measures="curvature.trace")
    fresh = Switched().double().eval()
    fresh.load_state_dict(model.state_dict())
    third = sl.measure(fresh, data, measures="curvature.trace")
    assert second.cost.forwards < first.cost.forwards == third.cost.forwards
    assert second["curvature.trace"].value == third["curvature.trace"].value


@pytest.mark.parametrize("measures", ["curvature.trace", "curvature.lambda_max"])
@pytest.mark.parametrize("change", ["setting", "graph", "forward"])
def test_a_gradient_that_has_become_wrong_is_refused(
    model: Switched, data: tuple[Tensor, Tensor], change: str, measures: str
) -> None:
    sl.measure(model, data, measures=measures)
    if change == "setting":
        model.doubles = True
    elif change == "graph":
        model.options["detached"] = True
    else:
        plain = model.first.forward
        model.first.forward = lambda x: Scaled.apply(plain(x))  # type: ignore[method-assign]
    with pytest.raises(SpiritlevelError, match="is not that of the loss"):
        sl.measure(model, data, measures=measures)


def test_data_of_another_form_are_looked_at_anew() -> None:
    """torch's derivatives may be wrong for some memory formats alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).double()
    x, y = torch.randn(6, 2, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    model(x)
    model.eval()
    first, again, other = (
        sl.measure(model, (data, y), measures="curvature.trace")
        for data in (x, x, x.contiguous(memory_format=torch.channels_last))
    )
    assert again.cost.forwards < first.cost.forwards == other.cost.forwards


def test_another_loss_is_looked_at_anew(model: Switched, data: tuple[Tensor, Tensor]) -> None:
    def right(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def wrong(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs + outputs.sum().detach(), targets, reduction="none") + (
            outputs.detach().square().sum(dim=1)
        )

    sl.measure(model, data, loss=right, measures="curvature.trace")
    with pytest.raises(SpiritlevelError):
        sl.measure(model, data, loss=wrong, measures="curvature.trace")


def test_a_model_is_not_kept_alive_by_its_loss(data: tuple[Tensor, Tensor]) -> None:
    def measured() -> weakref.ref[Switched]:
        model = Switched().double().eval()

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            assert not model.training  # so the loss refers to the model
            return F.cross_entropy(outputs, targets, reduction="none")

        sl.measure(model, data, loss=loss, measures="curvature.trace")
        return weakref.ref(model)

    gone = measured()
    gc.collect()
    assert gone() is None


def test_versions_of_a_network_are_kept_apart(model: Switched) -> None:
    plain = findings_about(model, "mse", None)
    plain.put("seen", True)
    assert "seen" in findings_about(model, "mse", None)
    assert "seen" not in findings_about(model, "bce", None)
    model.first.bias.requires_grad_(False)
    assert "seen" not in findings_about(model, "mse", None)
    model.first.bias.requires_grad_(True)
    assert "seen" in findings_about(model, "mse", None)


def test_a_copy_recalls_what_is_known_of_the_original(
    model: Switched, data: tuple[Tensor, Tensor]
) -> None:
    first = sl.measure(model, data, measures="curvature.trace")
    moved, later, other = (copy.deepcopy(model) for _ in range(3))
    with torch.no_grad():
        moved.last.weight *= 2
    other.doubles = True
    share(model, moved)
    share(model, other)
    Surface(later, [data])  # its outputs are looked at before anything is shared
    share(model, later)
    second = sl.measure(moved, data, measures="curvature.trace")
    assert sl.measure(later, data, measures="curvature.trace").cost == second.cost
    assert second.cost.forwards < first.cost.forwards
    with pytest.raises(SpiritlevelError, match="is not that of the loss"):
        sl.measure(other, data, measures="curvature.trace")


def test_graphs_of_all_sizes_agree_and_others_differ(
    model: Switched, data: tuple[Tensor, Tensor]
) -> None:
    names = {id(p): name for name, p in model.named_parameters()}
    whole = shape_of_graph(model(data[0]), names)
    assert shape_of_graph(model(data[0][:1]), names) == whole
    assert shape_of_graph(model(data[0]) * 2, names) != whole
    # the same operations, but on another parameter
    of_first, of_last = 2 * model.first.bias, 2 * model.last.bias
    assert shape_of_graph(of_first, names) != shape_of_graph(of_last, names)
