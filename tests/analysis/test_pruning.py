"""Deleted units against dense matrices and real losses; choices against all possible ones."""

import copy
import dataclasses
import itertools
import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import spiritlevel as sl
from spiritlevel.results import Pruning
from spiritlevel.testing import references


def network(activation=nn.ReLU):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            activation(),
            nn.Conv2d(4, 4, 2, groups=2),
            activation(),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
        x, y = torch.randn(15, 2, 4, 4).double(), torch.randint(0, 3, (15,))
    return model.double().eval(), (x, y)


@pytest.fixture(scope="module")
def measured():
    model, data = network()
    return model, data, sl.pruning(model, data, fisher=True, share=0.4)


def parts_of(found):
    """Every unit as a change of all weights, flattened, by dense masks of their own."""
    rows = []
    for name, second in found.second.items():
        for j in range(len(second)):
            parts = []
            for other, owner in found.owner.items():
                gone = (owner == j) & (other == name)
                parts.append((gone.double()).flatten())
            rows.append(torch.cat(parts))
    return torch.stack(rows)


def test_units_are_columns_and_channels(measured):
    found = measured[2]
    assert {name: len(each) for name, each in found.second.items()} == {
        "0.weight": 2,
        "2.weight": 4,
        "5.weight": 4,
    }
    assert torch.equal(found.owner["0.weight"][:, 1], torch.ones(4, 3, 3).int())
    # in a grouped convolution the first half of the outputs sees inputs 0 and 1
    assert found.owner["2.weight"][:2, 1].unique().tolist() == [1]
    assert found.owner["2.weight"][2:, 0].unique().tolist() == [2]
    assert torch.equal(found.owner["5.weight"][:, 2], torch.full((3,), 2).int())


def test_rises_are_those_of_dense_matrices(measured):
    model, data, found = measured
    names = list(found.second)
    truth = references.Truth(model, [data], F.cross_entropy)
    weights = torch.cat([dict(model.named_parameters())[n].detach().flatten() for n in names])
    changes = -parts_of(found) * weights
    parameters = [dict(model.named_parameters())[n] for n in names]
    loss = F.cross_entropy(model(data[0]), data[1])
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    first = torch.cat(list(found.first.values()))
    torch.testing.assert_close(first, changes @ gradient, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        found.gram, changes @ truth.ggn(names) @ changes.T, rtol=1e-8, atol=1e-12
    )
    start = 0
    for name in names:
        own = slice(start, start + len(found.second[name]))
        start = own.stop
        block = truth.hessian([name])
        sizes = [dict(model.named_parameters())[n].numel() for n in names]
        at = sum(sizes[: names.index(name)])
        within = changes[own, at : at + sizes[names.index(name)]]
        expected = (within @ block * within).sum(dim=1)  # the Hessian's own, within a layer
        torch.testing.assert_close(found.second[name], expected, rtol=1e-8, atol=1e-12)
        assert found.exact[name]


def test_the_core_is_the_neurons_rho(measured):
    model, data, found = measured
    for layer, of_layer in sl.neurons(model, data).items():
        torch.testing.assert_close(
            found.second[f"{layer}.weight"], of_layer.values, rtol=1e-9, atol=1e-12
        )


def test_fisher_and_magnitude_are_sums_over_entries(measured):
    model, data, found = measured
    truth = references.Truth(model, [data], F.cross_entropy)
    for name, values in found.fisher.items():
        weight = dict(model.named_parameters())[name].detach()
        diagonal = truth.ggn([name]).diagonal().reshape(weight.shape)
        for j in range(len(values)):
            gone = found.owner[name] == j
            expected = float((diagonal * weight.square())[gone].sum())
            assert float(values[j]) == pytest.approx(expected, rel=1e-9)
            assert float(found.magnitude[name][j]) == pytest.approx(float(weight[gone].norm()))


def test_measured_rises_are_those_of_masked_networks(measured):
    model, data, found = measured
    before = copy.deepcopy(model.state_dict())
    loss = F.cross_entropy(model(data[0]), data[1])
    for deletion in [found.chosen, *itertools.chain(*found.curves.values())]:
        pruned = found.apply(model, deletion)
        rise = F.cross_entropy(pruned(data[0]), data[1]) - loss
        assert deletion.measured_rise == pytest.approx(float(rise.detach()), abs=1e-12)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_masks_suit_torchs_own_pruning(measured):
    model, data, found = measured
    by_hand = copy.deepcopy(model)
    for name, mask in found.masks(found.chosen).items():
        layer = by_hand.get_submodule(name.rpartition(".")[0])
        prune.custom_from_mask(layer, "weight", mask)
    torch.testing.assert_close(by_hand(data[0]), found.apply(model, found.chosen)(data[0]))


@pytest.mark.parametrize("by", ["joint", "curvature", "rise", "magnitude", "fisher", "random"])
def test_choices_keep_to_the_share_and_leave_a_unit_of_every_weight(measured, by):
    found = measured[2]
    for share in (0.1, 0.4, 0.95):
        deletion = found.choose(share, by=by)
        assert deletion.share <= share + 1e-12
        for name, gone in deletion.units.items():
            assert len(gone) < len(found.second[name])
        masks = found.masks(deletion)
        gone = sum(float((mask == 0).sum()) for mask in masks.values())
        assert gone / sum(mask.numel() for mask in masks.values()) == pytest.approx(deletion.share)


def test_one_by_one_means_the_best_next_unit(measured):
    """Against a search that computes the rise of every larger set anew."""
    found = measured[2]
    second = torch.cat(list(found.second.values()))
    entries, owners = found._entries(), found._owners()
    limit = 0.4 * float(entries.sum())

    def value(units):
        block = found.gram[units][:, units]
        return float(0.5 * second[units].sum() + 0.5 * (block.sum() - block.diagonal().sum()))

    taken = []
    while True:
        candidates = []
        for i in range(len(second)):
            left = sum(int(owners[j] == owners[i]) for j in range(len(second)) if j not in taken)
            size = float(entries[[*taken, i]].sum())
            if i not in taken and left > 1 and size <= limit:
                added = value([*taken, i]) - (value(taken) if taken else 0.0)
                candidates.append((added / float(entries[i]), i))
        if not candidates:
            break
        taken.append(min(candidates)[1])
    chosen = found.choose(0.4, by="joint")
    names = [(name, j) for name, each in found.second.items() for j in range(len(each))]
    expected = {name: sorted(j for n, j in (names[i] for i in taken) if n == name)
                for name in found.second}  # fmt: skip
    assert chosen.units == expected
    slope = float(torch.cat(list(found.first.values()))[taken].sum())
    assert chosen.rise == pytest.approx(value(taken) + slope, rel=1e-9)


def test_bent_layers_say_that_it_is_the_ggn():
    model, data = network(nn.Tanh)
    found = sl.pruning(model, data, check=False)
    assert found.exact == {"0.weight": False, "2.weight": False, "5.weight": True}
    assert "of the GGN, not the Hessian" in found.text["0.weight"]
    truth = references.Truth(model, [data], F.cross_entropy)
    weight = model[0].weight.detach()
    change = torch.where(found.owner["0.weight"] == 1, -weight, 0.0).flatten()
    expected = float(change @ truth.ggn(["0.weight"]) @ change)
    assert float(found.second["0.weight"][1]) == pytest.approx(expected, rel=1e-9)


def test_a_faster_arithmetic_is_used_and_not_called_exact():
    model, (x, y) = network()
    model, data = model.float(), (x.float(), y)
    plain, full, fast = (
        sl.pruning(model, data, check=False, **given)
        for given in ({}, {"arithmetic": "full"}, {"arithmetic": "bf16"})
    )
    # a network that is known already costs less
    assert dataclasses.replace(full, cost=plain.cost).to_json() == plain.to_json()
    assert all(full.exact.values())
    assert "arithmetic" not in full.settings
    assert fast.settings["arithmetic"] == "bf16"
    assert set(fast.text.values()) == {"computed in bf16"}
    assert "bf16" in str(fast)
    assert "exact" not in str(fast)
    for name, second in full.second.items():
        assert not torch.equal(fast.second[name], second)
        # eight bits of a number, and a ReLU that switches
        torch.testing.assert_close(fast.second[name], second, rtol=0.1, atol=0.0)
    assert torch.equal(Pruning.from_json(fast.to_json()).second[name], fast.second[name])


def test_layers_and_many_units(monkeypatch):
    model, data = network()
    found = sl.pruning(model, data, layers=["2", "5"], check=False)
    assert set(found.second) == {"2.weight", "5.weight"}
    monkeypatch.setattr("spiritlevel.analysis.pruning.measuring.MOST_PAIRS", 3)
    alone = sl.pruning(model, data, layers=["2", "5"], check=False, share=0.3)
    assert alone.gram is None
    assert alone.chosen.by == "curvature"
    assert alone.chosen.rise is None
    with pytest.raises(sl.SpiritlevelError, match="not for so many units"):
        alone.choose(0.3, by="joint")


def test_text_and_json(measured):
    found = measured[2]
    assert "exact" in str(found)
    assert "measured" in str(found)
    data = json.loads(found.to_json())
    assert data["second"]["5.weight"] == pytest.approx(found.second["5.weight"].tolist())
    assert data["chosen"]["units"] == found.chosen.units
    ranking = found.ranking()
    assert [value for _, _, value in ranking] == sorted(value for _, _, value in ranking)


def test_a_file_gives_the_same_choices(measured):
    model, _, found = measured
    again = Pruning.from_json(found.to_json())
    assert again.chosen == found.chosen
    assert again.curves == found.curves
    assert str(again) == str(found)
    assert again.choose(0.3) == again.choose(0.3, by="curvature")  # the pairs are not in the file
    for by in ("curvature", "rise", "fisher", "magnitude", "random"):
        assert again.choose(0.5, by=by).units == found.choose(0.5, by=by).units
    for name, owner in found.owner.items():
        assert torch.equal(again.owner[name], owner)
    before, after = (each.apply(model, found.chosen).state_dict() for each in (found, again))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_file_from_before_there_were_probes_is_read(measured):
    found = measured[2]
    data = json.loads(found.to_json())
    del data["stderr"], data["settings"]["num_probes"]
    for deletion in [data["chosen"], *itertools.chain(*data["curves"].values())]:
        del deletion["stderr"], deletion["separate_stderr"]
    again = Pruning.from_json(json.dumps(data))
    assert str(again) == str(found)
    assert again.chosen == found.chosen
    assert torch.equal(again.stderr["5.weight"], torch.zeros(4).double())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"owner": {}}, r"owner names \[\] and not"),
        ({"first": {"5.weight": "many"}}, r"first\.5\.weight"),
        ({"surprise": 1}, "'surprise'"),
        ({"format": "spiritlevel-pruning-9"}, "its format is 'spiritlevel-pruning-9'"),
    ],
)
def test_a_damaged_file_is_refused(measured, change, match):
    text = json.dumps(json.loads(measured[2].to_json()) | change)
    with pytest.raises(sl.SpiritlevelError, match=rf"what Pruning\.to_json wrote.*{match}"):
        Pruning.from_json(text)


@pytest.mark.parametrize(
    ("owner", "match"),
    [
        ({"shape": [3, 4], "units": [[0, 1, 2, 9]]}, "does not have"),
        ({"shape": [3], "units": [[0, 1, 2, 3]]}, "do not fit"),
    ],
)
def test_owners_that_do_not_fit_are_refused(measured, owner, match):
    data = json.loads(measured[2].to_json())
    data["owner"]["5.weight"] = owner
    with pytest.raises(sl.SpiritlevelError, match=match):
        Pruning.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"share": 0.0}, r"between 0 and 1.*Got 0\.0"),
        ({"share": 1.5}, r"Got 1\.5\. Typical: 0\.3"),
        ({"share": 0.3, "by": "magnitud"}, r"Got 'magnitud'\. Did you mean 'magnitude'"),
        ({"share": 0.3, "by": "fisher"}, "fisher=True"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments, match):
    model, data = network()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.pruning(model, data, **arguments)
    assert calls == []


def test_another_network_is_refused(measured):
    found = measured[2]
    with pytest.raises(sl.SpiritlevelError, match="network that was measured"):
        found.apply(nn.Linear(2, 2), found.chosen)
