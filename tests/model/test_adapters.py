"""Networks with LoRA adapters of peft: the adapters, and the weights that they change."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.testing import references

peft = pytest.importorskip("peft", reason="these networks are made with it: pip install peft")

SCALE = 3.0  # lora_alpha / r
EXACT = {"rel": 1e-9}


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.hidden = nn.Linear(12, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.hidden(self.conv(x).relu().flatten(1)).relu())


def tuned(seed=0, rank=2, targets=("conv", "hidden"), also=("head",), **options):
    """A network with adapters that do something, in eval mode and float64, and its data."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        base = Pictures().double()
        x, y = torch.randn(12, 1, 3, 3).double(), torch.randint(0, 3, (12,))
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=SCALE * rank,
            target_modules=list(targets),
            modules_to_save=list(also) or None,
            **options,
        )
        model = peft.get_peft_model(base, config).double().eval()
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and "magnitude" not in name:
                    parameter.normal_(std=0.5)
    return model, (x, y)


def by_hand(model):
    """The plain network with W + s·BA, from the tensors alone."""
    tensors = {k.removeprefix("base_model.model."): v for k, v in model.state_dict().items()}
    plain = Pictures().double().eval()
    with torch.no_grad():
        for layer in ("conv", "hidden"):
            A, B = (tensors[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            change = SCALE * (B.flatten(1) @ A.flatten(1))
            weight = tensors[f"{layer}.base_layer.weight"]
            getattr(plain, layer).weight.copy_(weight + change.view_as(weight))
            getattr(plain, layer).bias.copy_(tensors[f"{layer}.base_layer.bias"])
        for part in ("weight", "bias"):
            getattr(plain.head, part).copy_(tensors[f"head.modules_to_save.default.{part}"])
    return plain


def test_adapters_are_measured_and_the_frozen_weights_are_named():
    model, data = tuned()
    report = sl.measure(model, data, measures=["curvature.trace", "relative.kappa"])
    truth = references.Truth(model, [data], F.cross_entropy)
    for layer, found in report.layers["curvature.trace"].items():
        names = [name for name in truth.parameters if name.rpartition(".")[0] == layer]
        assert found.exact
        assert found.value == pytest.approx(float(truth.hessian(names).trace()), **EXACT)
    assert len(report.layers["curvature.trace"]) == 5
    for layer in ("hidden.lora_A", "hidden.lora_B"):
        name = f"base_model.model.{layer}.default"
        weight = model.get_submodule(name).weight
        view = references.matrix_view(model.get_submodule(name))
        expected = references.kappa(truth.hessian([f"{name}.weight"]), weight, view)
        assert report.layers["relative.kappa"][name].value == pytest.approx(expected, **EXACT)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    said = f"frozen, so not measured: {len(frozen)} of {len(list(model.parameters()))} parameters"
    assert said in str(report)
    assert f"{sum(p.numel() for p in frozen)} of" in report.settings["frozen"]
    assert sl.Report.from_json(report.to_json()).settings == report.settings


def test_a_network_without_frozen_weights_says_nothing():
    _, data = tuned()
    report = sl.measure(Pictures().double().eval(), data, measures="head.trace")
    assert "frozen" not in report.settings
    assert "frozen" not in str(report)


def test_the_merged_weight_has_the_curvature_of_the_plain_network():
    model, data = tuned()
    plain = by_hand(model)
    names = ["conv.weight", "hidden.weight", "head.weight"]
    truth = references.Truth(plain, [data], F.cross_entropy)
    measures = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]
    report = sl.measure(sl.merged(model), data, measures=measures, layers=["conv", "hidden"])
    for name in names[:2]:
        layer, H = name.removesuffix(".weight"), truth.hessian([name])
        weight, view = plain.get_parameter(name), references.matrix_view(plain.get_submodule(layer))
        expected = {
            "curvature.trace": float(H.trace()),
            "relative.kappa": references.kappa(H, weight, view),
            "neuron.rho_sum": sum(references.rho(H, weight, view)),
        }
        for measure, value in expected.items():
            found = report.layers[measure][layer]
            assert found.exact
            assert found.value == pytest.approx(value, **EXACT)
    # the loss sees the adapter through the sum alone: the frozen weight has the same Hessian
    thawed = copy.deepcopy(model)
    base = "base_model.model.hidden.base_layer.weight"
    thawed.get_parameter(base).requires_grad_(True)
    direct = references.Truth(thawed, [data], F.cross_entropy).hessian([base])
    torch.testing.assert_close(direct, truth.hessian(["hidden.weight"]), rtol=1e-9, atol=1e-12)


def test_eigenvalues_and_products_of_the_merged_weight():
    model, data = tuned()
    names = ["conv.weight", "hidden.weight"]
    H = references.Truth(by_hand(model), [data], F.cross_entropy).hessian(names)
    network = sl.merged(model)
    operator = sl.operator(network, data, layers=["conv", "hidden"])
    assert operator.names == tuple(names)  # the biases stay frozen
    torch.testing.assert_close(operator @ torch.eye(len(H)).double(), H, rtol=1e-9, atol=1e-12)
    top = sl.eigenvalues(network, data, layers=["conv", "hidden"], rtol=1e-6).values[0]
    assert float(top) == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-6)


def test_the_model_stays_as_it_is_and_shares_what_is_not_merged():
    model, data = tuned(also=())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainable = [p.requires_grad for p in model.parameters()]
    network = sl.merged(model)
    assert type(network) is Pictures
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {
        "conv.weight",
        "hidden.weight",
    }
    sl.measure(network, data, measures="curvature.trace")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == trainable
    own = model.get_parameter("base_model.model.head.weight")
    assert network.head.weight.data_ptr() == own.data_ptr()
    assert network.conv.weight.data_ptr() != model.base_model.model.conv.weight.data_ptr()
    torch.testing.assert_close(network(data[0]), model(data[0]))


def test_all_weights_on_request():
    model, data = tuned()
    network = sl.merged(model, frozen=True)
    assert all(p.requires_grad for p in network.parameters())
    expected = references.Truth(by_hand(model), [data], F.cross_entropy)
    report = sl.measure(network, data, measures="curvature.trace")
    trace = float(expected.hessian(list(expected.parameters)).trace())
    assert report["curvature.trace"].value == pytest.approx(trace, **EXACT)
    assert not any(p.requires_grad for n, p in model.named_parameters() if "base_layer" in n)


@pytest.mark.parametrize("options", [{"use_dora": True}, {"use_rslora": True}, {"bias": "all"}])
def test_other_kinds_of_lora(options):
    model, data = tuned(**options)
    network = sl.merged(model)
    torch.testing.assert_close(network(data[0]), model(data[0]))
    plain = copy.deepcopy(model).merge_and_unload().requires_grad_(True)
    H = references.Truth(plain, [data], F.cross_entropy).hessian(["hidden.weight"])
    report = sl.measure(network, data, measures="relative.kappa", layers="hidden")
    view = references.matrix_view(plain.hidden)
    expected = references.kappa(H, plain.hidden.weight, view)
    assert report["relative.kappa"].value == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize(
    ("name", "targets"), [("bert sequences", ["query", "value"]), ("gpt2 sequences", ["c_attn"])]
)
def test_a_transformer_with_adapters(name, targets):
    pytest.importorskip("transformers")
    from zoo.language_models import NUM_CLASSES, V, build

    transposed = name.startswith("gpt2")  # its layers keep (in, out)
    config = peft.LoraConfig(r=2, target_modules=targets, fan_in_fan_out=transposed)
    model = peft.get_peft_model(build(name), config).double().eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(3, V, (6, 5), generator=generator)
    data = x, torch.randint(NUM_CLASSES, (6,), generator=generator)
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            if "lora_B" in each:
                parameter.normal_(generator=generator)
    plain = copy.deepcopy(model).merge_and_unload()
    network, measure = sl.merged(model), "curvature.ggn_trace"
    for each, parameter in plain.named_parameters():
        parameter.requires_grad_(each.endswith(tuple(f"{t}.weight" for t in targets)))
    for subject, same in ((network, plain), (model, model)):
        truth = references.Truth(
            same, [data], F.cross_entropy, call=lambda m, ids: m(input_ids=ids).logits
        )
        found = sl.measure(subject, data, measures=measure)
        expected = float(truth.ggn(list(truth.parameters)).trace())
        assert found[measure].value == pytest.approx(expected, **EXACT)


def test_lines_between_two_fine_tunes():
    (one, data), (two, _) = tuned(seed=0), tuned(seed=1)
    in_weights = sl.landscape(
        sl.merged(one), data, to=sl.merged(two), points=3, reach=0.0, measures="relative.kappa"
    )
    in_adapters = sl.landscape(one, data, to=two, points=3, reach=0.0)
    middle, mixed = by_hand(one), copy.deepcopy(one)
    with torch.no_grad():
        for p, q in zip(middle.parameters(), by_hand(two).parameters(), strict=True):
            p.copy_((p + q) / 2)
        for p, q in zip(mixed.parameters(), two.parameters(), strict=True):
            p.copy_((p + q) / 2)
        losses = [float(F.cross_entropy(each(data[0]), data[1])) for each in (middle, mixed)]
    assert in_weights.at(0.5) == pytest.approx(losses[0], rel=1e-12)
    assert in_adapters.at(0.5) == pytest.approx(losses[1], rel=1e-12)
    assert abs(losses[0] - losses[1]) > 1e-3  # the product of means is not the mean of products
    assert in_weights.at(0.0) == pytest.approx(in_adapters.at(0.0), rel=1e-12)
    names = ["conv", "hidden", "head"]
    expected = sl.measure(middle, data, measures="relative.kappa", layers=names)
    assert in_weights.values("relative.kappa")[1] == pytest.approx(
        expected["relative.kappa"].value, rel=1e-12
    )


def test_what_has_no_adapters_is_refused():
    with pytest.raises(sl.SpiritlevelError, match=r"must have adapters.*Got Pictures\. A plain"):
        sl.merged(Pictures())
    with pytest.raises(sl.SpiritlevelError, match="'model' argument of merged must be a torch"):
        sl.merged("checkpoint.pt")


def test_a_frozen_layer_is_refused_with_the_way_out():
    model, data = tuned()
    layer = "base_model.model.hidden.base_layer"
    with pytest.raises(sl.SpiritlevelError, match=r"base_layer' are frozen.*spiritlevel\.merged"):
        sl.measure(model, data, layers=layer)
    plain = Pictures().double().eval()
    plain.hidden.requires_grad_(False)
    with pytest.raises(sl.SpiritlevelError, match=r"'hidden' are frozen.*requires_grad_\(True\)"):
        sl.measure(plain, data, layers="hidden")
