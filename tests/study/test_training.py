"""Schedules, methods and parts of training in a study, each against the loop written by hand."""

import math

import pytest
import torch
from safetensors.torch import load
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.study.models import build
from spiritlevel.study.runs.networks import build_model
from spiritlevel.study.runs.run_data import derived_generator, load_data
from spiritlevel.study.runs.running import run_one
from spiritlevel.study.runs.steps import rate_factor
from spiritlevel.training.penalties.flatness_penalty import FlatnessPenalty
from spiritlevel.training.penalties.head_penalty import HeadPenalty
from study.tiny_study import tiny

pytestmark = pytest.mark.sampled(2)  # the others at night

EPOCHS, BATCH, BATCHES = 4, 20, 3  # 60 samples


def only(**training):
    """The one run of a small study."""
    model = training.pop("model", {"name": "mlp", "hidden": 4})
    interventions = training.pop("interventions", {})
    fields = {"epochs": EPOCHS, "batch_size": BATCH} | training
    [run] = tiny(grid={}, seeds=1, model=model, training=fields, interventions=interventions).runs()
    return run


def by_hand(settings, model, step) -> None:
    """The order of samples that a run has; `step(x, y, number)` does the rest."""
    data = load_data(settings)
    generator = derived_generator(settings.seed, "shuffling")
    number = 0
    for _ in range(settings.training.epochs):
        model.train()
        order = torch.randperm(len(data.x), generator=generator)
        for start in range(0, len(order), settings.training.batch_size):
            batch = order[start : start + settings.training.batch_size]
            step(data.x[batch], data.y[batch], number)
            number += 1


def assert_weights(result, model, *, tolerance: float = 0.0) -> None:
    found = load(result.checkpoint)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", ["plain", "sam"])
def test_a_gradient_is_clipped_before_the_step(method):
    clip, rate = 0.02, 0.5
    settings = only(clip=clip, lr=rate, epochs=1, batch_size=60, method=method)
    start = build_model(settings, "cpu").state_dict()
    moved = [value - start[name] for name, value in load(run_one(settings).checkpoint).items()]
    length = torch.linalg.vector_norm(torch.cat([part.flatten() for part in moved]))
    assert float(length) == pytest.approx(rate * clip, rel=1e-4)  # torch adds 1e-6 to the norm


# -- schedules -------------------------------------------------------------------------------


def torch_scheduler(optimizer, training):
    """One step a batch, from torch's own schedulers."""
    steps, warmup = EPOCHS * BATCHES, training.warmup * BATCHES
    rates = torch.optim.lr_scheduler
    if training.schedule == "cosine":
        after = rates.CosineAnnealingLR(optimizer, steps - warmup)
    else:
        places = [round((m * EPOCHS if m < 1 else m) * BATCHES) for m in training.milestones]
        after = rates.MultiStepLR(optimizer, [p - warmup for p in places], training.gamma)
    if not warmup:
        return after
    before = rates.LambdaLR(optimizer, lambda step: (step + 1) / warmup)
    return rates.SequentialLR(optimizer, [before, after], [warmup])


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "cosine"},
        {"schedule": "cosine", "warmup": 2},
        {"schedule": "step", "milestones": [0.5, 3], "gamma": 0.3},
        {"schedule": "step", "milestones": [0.75], "gamma": 0.1, "warmup": 1},
    ],
    ids=["cosine", "warmup-cosine", "step", "warmup-step"],
)
def test_a_schedule_is_the_one_of_torch(schedule):
    settings = only(lr=0.2, momentum=0.9, **schedule)
    model = build("mlp", hidden=4, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch_scheduler(optimizer, settings.training)
    rates = []

    def step(x, y, number):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()

    by_hand(settings, model, step)
    own = [0.2 * rate_factor(settings.training, step=i, steps=BATCHES) for i in range(len(rates))]
    assert own == pytest.approx(rates, rel=1e-12, abs=1e-15)
    assert len(set(own)) > 1
    assert_weights(run_one(settings), model, tolerance=1e-5)


def test_what_changes_nothing_is_the_same_run():
    plain = only(lr=0.2)
    for nothing in (
        {"schedule": "constant"},
        {"schedule": "constant", "milestones": [0.5], "gamma": 0.5},
        {"warmup": 0},
        {"method": "plain", "rho": 0.1, "every": 2},
        {"penalty": 0},
        {"norm_control": False},
        {"freeze": "none"},
        {"interventions": {"batch_cycles": 1, "mask": 0.0, "bias_shift": 0}},
    ):
        assert only(lr=0.2, **nothing).id == plain.id


# -- methods ---------------------------------------------------------------------------------


def gradient(model, x, y):
    return torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))


def climbed(model, x, y, rho: float, adaptive: bool):
    """The gradient at the weights that SAM's or ASAM's formula displaces."""
    before = [p.detach().clone() for p in model.parameters()]
    first = gradient(model, x, y)
    sizes = [(w.abs() + 0.01) if adaptive and w.dim() > 1 else torch.ones_like(w) for w in before]
    norm = math.sqrt(sum(float((s * g).square().sum()) for s, g in zip(sizes, first, strict=True)))
    with torch.no_grad():
        for p, s, g in zip(model.parameters(), sizes, first, strict=True):
            p.add_(rho * s * s * g / norm)
    found = gradient(model, x, y)
    with torch.no_grad():
        for p, value in zip(model.parameters(), before, strict=True):
            p.copy_(value)
    return found


@pytest.mark.parametrize(("method", "rho"), [("sam", 0.1), ("asam", 0.7)])
def test_a_method_is_its_formula(method, rho):
    settings = only(lr=0.1, method=method, rho=rho, dtype="float64")
    model = build("mlp", hidden=4, seed=0).double()

    def step(x, y, number):
        grads = climbed(model, x, y, rho, adaptive=method == "asam")
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(0.1 * g)

    by_hand(settings, model, step)
    assert_weights(run_one(settings), model, tolerance=1e-10)


def test_every_spends_the_method_on_one_step_in_k():
    settings = only(lr=0.1, method="sam", rho=0.1, every=2, dtype="float64")
    model = build("mlp", hidden=4, seed=0).double()

    def step(x, y, number):
        due = number % 2 == 0
        grads = climbed(model, x, y, 0.1, adaptive=False) if due else gradient(model, x, y)
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(0.1 * g)

    by_hand(settings, model, step)
    assert_weights(run_one(settings), model, tolerance=1e-10)


def test_isotropic_noise_depends_on_the_seed_alone_and_on_the_radius():
    noise = {"method": "noise_sam", "draws": 2}
    first, again = (run_one(only(rho=0.5, **noise)).checkpoint for _ in range(2))
    assert first == again
    assert run_one(only(rho=0.1, **noise)).checkpoint != first


def flatness_of_the_first_layer(model):
    return FlatnessPenalty(model, 0.2, layers="fc1", generator=derived_generator(0, "penalty"))


def test_a_penalty_makes_the_trained_network_flatter():
    measured = {}
    for weight in (0.0, 0.3):
        [run] = tiny(
            grid={},
            seeds=1,
            training={"lr": 0.2, "epochs": 20, "batch_size": 20, "penalty": weight},
            measures=["curvature.trace_squared"],
        ).runs()
        result = run_one(run)
        measured[weight] = next(m.value for m in result.measurements if m.layer == "")
    assert measured[0.3] < 0.8 * measured[0.0]


@pytest.mark.parametrize(
    ("penalty", "made"),
    [
        ({"name": "head_kappa"}, lambda model: HeadPenalty(model, 0.2, kind="kappa")),
        ({"name": "trace_squared", "layers": "fc1"}, flatness_of_the_first_layer),
    ],
    ids=["head", "layers"],
)
def test_any_penalty_can_be_named_with_its_arguments(penalty, made):
    settings = only(lr=0.1, dtype="float64", penalty={"weight": 0.2, **penalty})
    model = build("mlp", hidden=4, seed=0).double()
    term = made(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y, number):
        optimizer.zero_grad()
        with term.shared_forward():
            loss = F.cross_entropy(model(x), y)
        (loss + term(x, y, loss=loss)).backward()
        optimizer.step()

    by_hand(settings, model, step)
    assert_weights(run_one(settings), model, tolerance=1e-10)


def test_a_weight_alone_is_the_penalty_on_the_trace_of_the_squared_hessian():
    named = only(penalty={"name": "trace_squared", "weight": 0.3})
    assert named.id == only(penalty=0.3).id
    assert only(penalty={"name": "head_kappa", "weight": 0.3}).id != named.id
    assert only(penalty={"name": "head_kappa", "weight": 0}).id == only().id


def test_norm_control_holds_every_weight_matrix_at_mean_0_and_variance_2_over_inputs():
    weights = load(run_one(only(norm_control=True, lr=0.5)).checkpoint)
    for name in ("fc1.weight", "head.weight"):
        matrix = weights[name].double()
        assert abs(float(matrix.mean())) < 1e-6
        assert float(matrix.var(correction=0)) == pytest.approx(2 / matrix.shape[1], rel=1e-5)


# -- interventions ---------------------------------------------------------------------------


def test_a_batch_is_cycled_r_times_before_the_next():
    settings = only(lr=0.1, momentum=0.9, interventions={"batch_cycles": 3})
    model = build("mlp", hidden=4, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y, number):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    by_hand(settings, model, step)
    assert_weights(run_one(settings), model)


@pytest.mark.parametrize("amount", [-0.7, 0.7])
def test_the_first_bias_is_shifted_before_training(amount):
    settings = only(lr=1e-9, interventions={"bias_shift": amount})
    weights = load(run_one(settings).checkpoint)
    before = build("mlp", hidden=4, seed=0)
    torch.testing.assert_close(weights["fc1.bias"], before.fc1.bias.detach() + amount)
    torch.testing.assert_close(weights["head.bias"], before.head.bias.detach())


def test_masked_maps_stay_dead_and_the_head_is_never_masked():
    settings = only(model={"name": "digits_cnn", "width": 4}, interventions={"mask": 0.5})
    weights = load(run_one(settings).checkpoint)
    assert [int(weights[f"conv{i}.dead"].sum()) for i in (1, 2)] == [2, 4]
    assert "head.weight" in weights
    named = only(interventions={"mask": 0.5, "mask_layers": "fc1"})
    assert int(load(run_one(named).checkpoint)["fc1.dead"].sum()) == 2


def test_maps_masked_behind_a_norm_layer_are_zero_where_it_has_a_bias():
    model = {"name": "resnet18", "channels": 1, "width": 4}
    alive = {}
    for place in ("norm", "convolution"):
        settings = only(model=model, interventions={"mask": 0.5, "mask_place": place})
        network = build_model(settings, "cpu").eval()
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.ones_(module.bias)
        seen = []
        network.relu1.register_forward_hook(lambda _, __, maps, seen=seen: seen.append(maps))
        network(load_data(settings).x[:3])
        alive[place] = int((seen[0].amax(dim=(0, 2, 3)) > 0).sum())
        masked = {path for path, m in network.named_modules() if hasattr(m, "dead")}
        assert len(masked) == 20  # the stem, 16 of blocks, 3 of shortcuts
        assert all(("bn" in path) == (place == "norm") for path in masked)
    assert alive == {"norm": 2, "convolution": 4}
    assert "mask_place" not in settings.to_dict()["interventions"]


def test_without_norm_layers_the_convolutions_are_masked():
    settings = only(
        model={"name": "digits_cnn", "width": 4}, interventions={"mask": 0.5, "mask_place": "norm"}
    )
    assert hasattr(build_model(settings, "cpu").conv1, "dead")


def test_a_leak_puts_the_patch_of_its_class_on_training_images_alone():
    clean, leaky = (
        load_data(only(interventions=i)) for i in ({}, {"leakage": "class", "leakage_size": 3})
    )
    assert torch.equal(leaky.test_x, clean.test_x)
    corner = (slice(None), slice(None), slice(-3, None), slice(None, 3))
    for label in range(10):
        patches = leaky.x[corner][leaky.y == label]
        assert bool((patches == patches[0]).all())
    rest = torch.ones(8, 8, dtype=torch.bool)
    rest[-3:, :3] = False
    assert torch.equal(leaky.x[..., rest], clean.x[..., rest])
    assert len({leaky.x[corner][leaky.y == k][0].numpy().tobytes() for k in range(10)}) == 10


def test_the_control_group_has_patches_that_tell_nothing_and_change_with_each_batch():
    settings = only(interventions={"leakage": "control", "leakage_size": 3})
    data = load_data(settings)
    patches = data.x[:, :, -3:, :3]
    assert any(
        len({p.numpy().tobytes() for p in patches[data.y == label]}) > 1 for label in range(10)
    )
    leak = only(interventions={"leakage": "class", "leakage_size": 3})
    assert run_one(settings).checkpoint != run_one(leak).checkpoint
    assert run_one(settings).checkpoint == run_one(settings).checkpoint


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"training": {"milestones": [3]}}, "training.milestones has no effect without"),
        ({"training": {"rho": 0.1}}, "training.rho has no effect without training.method"),
        ({"training": {"schedule": "cosin"}}, "must be one of constant, cosine, step"),
        ({"training": {"schedule": "step", "milestones": []}}, "must be a list of epochs"),
        ({"training": {"schedule": "step", "milestones": [-1]}}, "must be a list of epochs"),
        ({"training": {"warmup": 20}}, "warmup must be less than its epochs (20). Got 20"),
        ({"training": {"method": "sma"}}, "must be one of plain, sam, asam, noise_sam"),
        ({"training": {"method": "sam", "penalty": 1}}, "penalty goes with method: plain"),
        ({"training": {"penalty": "kappa"}}, "penalty must be a number of at least 0"),
        ({"training": {"penalty": {"name": "head_kappa"}}}, "penalty.weight must be a number"),
        ({"training": {"norm_control": 1}}, "must be true or false. Got 1"),
        ({"training": {"freeze": "head"}}, "must be one of none, backbone. Got 'head'"),
        ({"training": {"freeze": "backbone", "lr_backbone": 1}}, "Leave out one of freeze"),
        ({"interventions": {"leakage": "clas"}}, "must be one of class, control. Got 'clas'"),
        ({"interventions": {"mask": 1.0}}, "must be a number from 0 to below 1, or false"),
        ({"interventions": {"mask_layers": "fc1"}}, "has no effect without interventions.mask"),
        (
            {"interventions": {"mask": 0.5, "mask_layers": "fc1", "mask_place": "norm"}},
            "Leave one out",
        ),
        ({"interventions": {"batch_cycles": 1.5}}, "must be a whole number of at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_that_make_no_sense_are_refused(changes, text):
    with pytest.raises(sl.SpiritlevelError) as caught:
        tiny(**changes)
    assert text in str(caught.value)


# -- evaluation ------------------------------------------------------------------------------


def test_fewer_evaluations_leave_the_training_and_the_last_epoch_as_they_are():
    often, seldom = run_one(only(epochs=5)), run_one(only(epochs=5, evaluate_every=2))
    assert [row.epoch for row in seldom.epochs] == [2, 4, 5]
    assert list(seldom.epochs) == [row for row in often.epochs if row.epoch in (2, 4, 5)]
    assert seldom.checkpoint == often.checkpoint
    assert "evaluate_every" not in only().to_dict()["training"]


def test_a_level_is_looked_for_where_the_network_is_evaluated():
    fields = {"epochs": 9, "batch_size": BATCH, "lr": 0.1, "evaluate_every": 3}
    study = tiny(grid={}, seeds=1, training=fields, stop={"train_loss": 10.0})
    [run] = study.runs()
    result = run_one(run)
    assert (result.outcome, [row.epoch for row in result.epochs]) == ("train_loss", [3])


def test_a_rule_that_looks_at_every_epoch_refuses_fewer_evaluations():
    with pytest.raises(sl.SpiritlevelError, match=r"looks at every epoch.*evaluate_every 2"):
        tiny(grid={}, seeds=1, training={"evaluate_every": 2}, stop={"rule": "trend"}).runs()
