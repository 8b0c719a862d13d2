"""The audit: which moves exist in a network, and what they do to every number."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.measures import get, names
from spiritlevel.measures.confounders import MEASURED_ALONG
from spiritlevel.verbs.audit import Audit

pytestmark = pytest.mark.sampled(3)  # the others at night

CHOSEN = [
    "curvature.trace",
    "curvature.lambda_max",
    "relative.kappa",
    "neuron.rho_sum",
    "neuron.rho_max",
    "sharpness.adaptive",
]
CURVATURE = ["curvature.trace", "curvature.lambda_max"]
PER_WEIGHT = ["neuron.rho_sum", "neuron.rho_max", "sharpness.adaptive"]
FEW_STEPS = {"ascent_steps": 5, "restarts": 0}  # of the search for the worst case


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """One block with pre-LayerNorm and GELU, mean over the positions, a linear head."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(dim=1))


def plain_cnn(bias=True):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, bias=bias),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 3, bias=bias),
    ), (1, 10, 10)


class Block(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = nn.Identity()
        if stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(width, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x):
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(inner)) + self.skip(x))


def batchnorm_resnet():
    stem = [nn.Conv2d(2, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    blocks = [Block(4, 4, 1), Block(4, 6, 2)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    model(torch.randn(32, 2, 8, 8))  # statistics that belong to the data, as after training
    return model, (2, 8, 8)


def small_transformer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Transformer(), (4, 5)


NETWORKS = {
    "plain CNN": plain_cnn,
    "BatchNorm ResNet": batchnorm_resnet,
    "transformer": small_transformer,
}
RESCALED = {"layer_rescale", "neuron_rescale", "unit_permute"}
SHIFTED = {"logit_shift", "free_shift"}
ADDING = SHIFTED | {"unit_mix", "batchnorm_fold"}  # or sums of weights
CLAIMED = {  # moves that cards speak of
    "plain CNN": RESCALED | {"logit_shift"},
    "BatchNorm ResNet": RESCALED | {"batchnorm_absorb", "batchnorm_fold"} | SHIFTED,
    # the affine part of a LayerNorm can be moved into what reads it; GELU allows no rescaling
    "transformer": RESCALED | {"attention_rescale", "unit_mix"} | SHIFTED,
}
MOVES = {
    "plain CNN": CLAIMED["plain CNN"] | {"free_rescale"},
    "BatchNorm ResNet": CLAIMED["BatchNorm ResNet"] | {"free_rescale"},
    # the norms do not notice the size of what they read
    "transformer": CLAIMED["transformer"] | {"free_rescale", "norm_rescale"},
}


@pytest.fixture(scope="module")
def audits():
    found = {}

    def audit(name):
        if name not in found:
            with torch.random.fork_rng():
                torch.manual_seed(1)
                model, shape = NETWORKS[name]()
                x, y = torch.randn(6, *shape).double(), torch.randint(3, (6,))
            model = model.double().eval()
            before = copy.deepcopy(model.state_dict())
            result = sl.audit(
                model, (x, y), measures=CHOSEN, max_passes=40, draws=2, options=FEW_STEPS
            )
            for key, value in model.state_dict().items():
                assert torch.equal(value, before[key]), key
            found[name] = result
        return found[name]

    return audit


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_finds_the_moves_that_exist(audits, name):
    result = audits(name)
    assert set(result.preserving) == MOVES[name]
    assert "logit_temperature" in result.moved
    assert set(result.moved) == set(result.moves)
    assert not set(result.absent) & set(result.moved)
    assert all(result.absent.values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("measure", CURVATURE)
def test_plain_curvature_is_marked_as_moving(audits, name, measure):
    result = audits(name)
    for move in MOVES[name]:
        assert result.has_moved(measure, move) is (move not in get(measure).invariant), move
    assert MOVES[name] & get(measure).invariant == {"unit_permute", "logit_shift"}
    assert result.verdict(measure).kind == "scale"


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("measure", PER_WEIGHT)
def test_what_counts_every_weight_in_its_own_size_stays(audits, name, measure):
    """A factor on a weight cancels against the one on its gradient; sums do not."""
    result, card = audits(name), get(measure)
    assert CLAIMED[name] - ADDING <= card.invariant
    for move in MOVES[name] - ADDING:
        assert result.has_moved(measure, move) is False, move
    for move in ADDING & MOVES[name] & card.invariant:
        assert result.has_moved(measure, move) is False, move
    assert result.has_moved("sharpness.adaptive", "logit_shift") is True
    assert result.has_moved(measure, "logit_temperature") is True
    verdict = result.verdict(measure)
    assert verdict.confidence.kind == "changes"
    rows_alike = measure != "sharpness.adaptive" and name != "transformer"
    assert verdict.kind == ("confidence" if rows_alike else "scale")


@pytest.mark.nightly
def test_symmetries_without_a_move_are_counted(audits):
    assert audits("plain CNN").unexplored == ""
    assert audits("BatchNorm ResNet").unexplored == ""
    text = audits("transformer").unexplored
    assert "further directions" in text  # the rotations of the residual stream
    assert text in str(audits("transformer"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_kappa_moves_only_where_its_card_says_so(audits, name):
    """Where units get factors of their own.

    κ sums ‖WᵀG‖² over samples, G the gradient in the weights W of a layer. Factors on the rows of W
    cancel in WᵀG, whatever they are (before a BatchNorm); factors on its columns, the units it
    reads, cancel only if they are all the same. Attention's values get a factor for each unit.
    """
    result, card = audits(name), get("relative.kappa")
    for move in CLAIMED[name] - {"free_shift"}:  # not every one of these moves weights
        assert result.has_moved("relative.kappa", move) is (move not in card.invariant), move
    factors = [result.factor("relative.kappa", move) for move in MOVES[name]]
    twofold = max(max(f, 1 / f) for f in factors) >= 2
    little = "untested" if result.unexplored else "nearly"
    assert result.verdict("relative.kappa").kind == ("scale" if twofold else little)
    assert result.verdict("relative.kappa").confidence.kind == "changes"


@pytest.mark.parametrize("bias", [False, True])
def test_all_weights_times_one_factor_is_a_matter_of_confidence(bias):
    """The logits get α³; what κ of the head then is can be written down."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, shape = plain_cnn(bias=bias)
        x, y = torch.randn(6, *shape).double(), torch.randint(3, (6,))
    model = model.double().eval()
    chosen = ["curvature.trace", "relative.kappa", "neuron.rho_sum", "sharpness.adaptive"]
    result = sl.audit(model, (x, y), measures=[*chosen, "head.kappa"], options=FEW_STEPS, draws=2)
    assert set(result.moved) == MOVES["plain CNN"] | {"logit_temperature", "weight_scale"}
    assert "weight_scale" not in result.preserving
    first, second = result.moved["weight_scale"]  # a factor above 1, and one below
    # 1.5 to 2.5, by the generator that the audit seeds anew for every move
    generator = torch.Generator().manual_seed(0)
    factor, other = (
        1.5 + float(torch.rand(1, generator=generator, dtype=torch.float64)) for _ in range(2)
    )
    if not bias:
        before = result.original["norms.weight"].value
        assert first["norms.weight"].value == pytest.approx(factor * before)
        assert second["norms.weight"].value == pytest.approx(before / other)

    def by_hand(scale):
        with torch.no_grad():
            features, w = scale**2 * model[:-1](x), scale * model[-1].weight
            p = (scale**3 * model(x)).softmax(dim=1)
            gini = 1 - p.square().sum(dim=1)
            spread = p @ w.square().sum(dim=1) - (p @ w).square().sum(dim=1)
            return gini.mean().item(), (features.square().sum(dim=1) * spread).mean().item()

    for scale, report in ((1.0, result.original), (factor, first), (1 / other, second)):
        gini, kappa = by_hand(scale)
        assert report["softmax.gini"].value == pytest.approx(gini, rel=1e-9)
        assert report["head.kappa"].value == pytest.approx(kappa, rel=1e-9)
    for measure in chosen:
        assert result.has_moved(measure, "weight_scale") is True, measure
    for measure in chosen[2:]:  # it changes confidence, so it does not make them measures of scale
        adaptive = measure == "sharpness.adaptive"  # the rows of the head have a size of their own
        assert result.verdict(measure).kind == ("scale" if adaptive else "confidence")


@pytest.mark.parametrize("name", NETWORKS)
def test_confounders_are_shown_with_their_response(audits, name):
    result = audits(name)
    expected = set(MEASURED_ALONG) - ({"activity.frequency"} if name == "transformer" else set())
    assert set(result.confounders()) == expected  # GELU has no exact zeros to count
    for confounder in expected:
        assert result.verdict(confounder).kind == "confounder"
    assert result.has_moved("softmax.gini", "logit_temperature")
    assert not any(result.has_moved("softmax.gini", move) for move in result.preserving)


def test_factor_is_the_ratio_of_two_measurements(audits):
    """The same by hand: move the network oneself, measure it again."""
    result = audits("plain CNN")
    for move in result.moved:
        factor = result.factor("curvature.trace", move)
        before = result.original["curvature.trace"].value
        values = [report["curvature.trace"].value for report in result.moved[move]]
        assert len(values) == (1 if move == "unit_permute" else 2)
        assert factor * before == pytest.approx(result.after("curvature.trace", move).value)
        assert factor == pytest.approx(
            max((v / before for v in values), key=lambda f: abs(math.log(f)))
        )
    # κ of the last layer falls with confidence exactly as the dense formula says
    assert result.factor("relative.kappa", "layer_rescale") == pytest.approx(1.0, rel=1e-8)


def test_json_brings_the_same_audit_back(audits):
    result = audits("plain CNN")
    again = Audit.from_json(result.to_json())
    assert str(again) == str(result)
    with pytest.raises(sl.SpiritlevelError, match=r"Audit.to_json wrote"):
        Audit.from_json("[]")


class Clipped(nn.Module):
    """Linear up to a bound that the first samples stay far below, whatever they are multiplied by.

    Nobody sees on a few samples that it is not homogeneous.
    """

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.first(x).clamp(0, 1e4))


def test_a_move_that_fails_on_later_data_is_taken_back():
    torch.manual_seed(0)
    model, x = Clipped().double().eval(), torch.randn(8, 4).double()
    x[6] *= 1e4
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    first = sl.audit(model, (x[:6], y[:6]), measures="head.trace")
    assert set(first.preserving) == RESCALED | {"free_rescale", "logit_shift"}
    assert "weight_scale" in first.moved
    result = sl.audit(model, [(x[:4], y[:4]), (x[4:], y[4:])], measures="head.trace")
    assert set(result.moved) == {"unit_permute", "logit_shift", "logit_temperature"}
    for move in ("layer_rescale", "neuron_rescale", "free_rescale", "weight_scale"):
        assert "holds on 4 samples and not on all" in result.absent[move]
        assert move not in result.moves


def small_mlp():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)]
        model = nn.Sequential(*layers).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 2
        return model, (torch.randn(8, 4).double(), torch.randint(3, (8,)))


def test_exact_measures_do_under_every_move_what_their_cards_claim():
    model, data = small_mlp()
    quick = {"ascent_steps": 1, "restarts": 0, "draws": 2, "splits": 1}
    searched = {"pac_bayes", "sharpness"}  # by draws and climbs: never exact
    families = sorted({get(name).family for name in names()} - searched)
    asked = [f"{family}.*" for family in families]
    result = sl.audit(model, data, measures=asked, options=quick, max_passes=2, draws=1)
    assert set(result.preserving) == RESCALED | {"free_rescale", "logit_shift"}
    draws = [report for reports in result.moved.values() for report in reports]
    exact = [
        name
        for name, found in result.original.items()
        if found.exact and all(report[name].exact for report in draws)
    ]
    assert len(exact) > 25
    for measure in exact:
        for move in RESCALED | {"logit_shift"}:
            claimed = move in get(measure).invariant
            assert result.has_moved(measure, move) is not claimed, (measure, move)


def test_a_network_without_symmetries_says_so():
    model, data = nn.Linear(4, 3), (torch.randn(6, 4), torch.randn(6, 3))
    result = sl.audit(model, data, loss="mse", measures="curvature.trace")
    assert result.preserving == []
    assert result.unexplored == ""
    verdict = result.verdict("curvature.trace")  # there is none, so none can change it
    assert verdict.scale.kind == "unchanged"


def test_steps_are_told(audits):
    model, shape = plain_cnn()
    x, y = torch.randn(4, *shape), torch.tensor([0, 1, 2, 0])
    told = []
    result = sl.audit(
        model.eval(), (x, y), measures="head.trace", progress=lambda *step: told.append(step)
    )
    assert told[0][2] == "looking for symmetries"
    assert [text for _, _, text in told if "after" in text] == [
        f"measuring after {move}" for move, reports in result.moved.items() for _ in reports
    ]
    assert told[-1][0] == told[-1][1]
