"""Crop, flip and mixup against loops; the operations of AutoAugment against PIL's own."""

import math
import sys

import pytest
import torch
from torch.nn import functional as F

from spiritlevel.ground.errors import MissingExtra, SpiritlevelError
from spiritlevel_lab.population.interventions import auto_augment, crop_flip, mixup
from spiritlevel_lab.population.interventions import auto_augment as factory

pytestmark = pytest.mark.sampled(2)  # the others at night

module = sys.modules[factory.__module__]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=64, size=12, channels=3):
    return torch.rand(n, channels, size, size, generator=seeded(7))


def labels(n=64, classes=10):
    return torch.randint(classes, (n,), generator=seeded(99))


# -- crop and flip ---------------------------------------------------------------------------


def where_cut(image, cut, padding):
    """All (top, left, mirrored) at which the cut is a window of the padded image."""
    padded, size = F.pad(image, (padding,) * 4), image.shape[-1]
    found = []
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            window = padded[:, top : top + size, left : left + size]
            found += [(top, left, 0)] * torch.equal(window, cut)
            found += [(top, left, 1)] * torch.equal(window.flip(-1), cut)
    return found


def test_every_result_is_a_window_and_all_windows_occur():
    x, y = images(2000, size=6, channels=1), labels(2000)
    before = x.clone()
    out, targets = crop_flip(padding=1)(x, y, seeded())
    assert torch.equal(targets, y)
    assert torch.equal(x, before)
    places = [where_cut(image, cut, 1) for image, cut in zip(x, out, strict=True)]
    assert all(len(found) == 1 for found in places)
    counts = torch.zeros(3, 3, 2)
    for ((top, left, mirrored),) in places:
        counts[top, left, mirrored] += 1
    # Chi-squared with 17 degrees of freedom: 40.8 is its 99.9 % point.
    expected = 2000 / 18
    assert float(((counts - expected) ** 2 / expected).sum()) < 40.8


def test_height_and_width_are_not_confused():
    x = torch.rand(50, 2, 5, 9, generator=seeded(1))
    out, _ = crop_flip(padding=2, flip=False)(x, labels(50), seeded())
    padded = F.pad(x, (2,) * 4)
    for n in range(50):
        windows = [padded[n, :, i : i + 5, j : j + 9] for i in range(5) for j in range(5)]
        assert sum(torch.equal(window, out[n]) for window in windows) == 1


def test_without_padding_and_flip_nothing_happens():
    x = images()
    assert torch.equal(crop_flip(padding=0, flip=False)(x, labels(), seeded())[0], x)


# -- mixup -----------------------------------------------------------------------------------


def test_mixup_mixes_inputs_and_labels_alike():
    x, y = images().double(), labels()
    mixed, targets = mixup(0.7, num_classes=10)(x, y, seeded())
    assert mixed.shape == x.shape
    assert targets.shape == (64, 10)
    torch.testing.assert_close(targets.sum(1), torch.ones(64, dtype=torch.float64))
    # The share and the partner are read off the targets; the inputs must follow from them.
    shares = targets[torch.arange(64), y]
    share = float(shares[shares < 1 - 1e-9].median())
    for n in range(64):
        partners = [
            m
            for m in range(64)
            if torch.allclose(share * x[n] + (1 - share) * x[m], mixed[n], rtol=0, atol=1e-12)
        ]
        assert len(partners) == 1
        wanted = share * F.one_hot(y[n], 10) + (1 - share) * F.one_hot(y[partners[0]], 10)
        torch.testing.assert_close(targets[n], wanted.double())


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_the_share_has_the_moments_of_the_beta_distribution(alpha):
    generator, n = seeded(), 1500
    shares = torch.tensor([module_beta(alpha, generator) for _ in range(n)], dtype=torch.float64)
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(float(shares.mean()) - 0.5) < 5 * (variance / n) ** 0.5
    fourth = float(((shares - 0.5) ** 4).mean())
    assert abs(float(shares.var()) - variance) < 5 * ((fourth - variance**2) / n) ** 0.5


def module_beta(alpha, generator):
    x = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    while True:  # a batch of two that was swapped shows the share
        mixed, _ = mixup(alpha, num_classes=2)(x, torch.tensor([0, 1]), generator)
        if mixed[0] + mixed[1] == 1 and mixed[0] != 1:
            return float(mixed[0])


def test_a_tiny_alpha_gives_one_of_the_two():
    x = torch.tensor([[1.0], [0.0]])
    for seed in range(20):
        mixed, _ = mixup(1e-6, num_classes=2)(x, torch.tensor([0, 1]), seeded(seed))
        assert set(mixed.flatten().tolist()) == {0.0, 1.0}


def test_cross_entropy_takes_the_targets():
    mixed, targets = mixup(1.0, num_classes=10)(images(), labels(), seeded())
    logits = torch.randn(64, 10, generator=seeded())
    loss = F.cross_entropy(logits, targets)
    torch.testing.assert_close(loss, -(targets * logits.log_softmax(1)).sum(1).mean())
    assert mixed.dtype == targets.dtype == torch.float32


# -- AutoAugment -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known():
    pytest.importorskip("kornia", reason="AutoAugment needs kornia")
    return module.operations()


@pytest.fixture(scope="module")
def pil():
    """PIL's result of a function on each of the photographs."""
    image = pytest.importorskip("PIL.Image", reason="PIL is the reference here")

    def apply(x, function):
        out = []
        for each in x:
            values = bytearray(function(to_pil(image, each)).tobytes())
            pixels = torch.frombuffer(values, dtype=torch.uint8)
            out.append(pixels.view(*x.shape[2:], 3).permute(2, 0, 1).float() / 255)
        return torch.stack(out)

    return apply


def to_pil(image, x):
    pixels = (x * 255).round().byte().permute(1, 2, 0).contiguous()
    return image.frombytes("RGB", (x.shape[2], x.shape[1]), bytes(pixels.flatten().tolist()))


def photographs():
    """Smooth colours with all their values on the grid of 256, dark to bright, some flat."""
    coarse = torch.rand(6, 3, 4, 4, generator=seeded(5))
    smooth = F.interpolate(coarse, size=(20, 24), mode="bicubic").clamp(0, 1)
    smooth[1] = 0.2 + 0.3 * smooth[1]
    smooth[2, 0] = 0.6
    return (smooth * 255).round() / 255


def enhanced(kind):
    def reference(level):
        enhance = pytest.importorskip("PIL.ImageEnhance")
        return lambda image: getattr(enhance, kind)(image).enhance(0.1 + 0.18 * level)

    return reference


def adjusted(kind, *arguments):
    def reference(level):
        ops = pytest.importorskip("PIL.ImageOps")
        return lambda image: getattr(ops, kind)(image, *(a(level) for a in arguments))

    return reference


# The tolerance is in steps of 256: PIL rounds to whole steps, twice where it blends.
@pytest.mark.parametrize(
    ("name", "reference", "steps"),
    [
        ("brightness", enhanced("Brightness"), 1),
        ("contrast", enhanced("Contrast"), 2),
        ("color", enhanced("Color"), 2),
        ("sharpness", enhanced("Sharpness"), 2),
        ("invert", adjusted("invert"), 0),
        ("auto_contrast", adjusted("autocontrast"), 1),
        ("equalize", adjusted("equalize"), 0),
        ("solarize", adjusted("solarize", lambda v: 256 * (1 - v / 10)), 0),
        ("posterize", adjusted("posterize", lambda v: 8 - round(4 * v / 10)), 0),
    ],
)
@pytest.mark.parametrize("level", [2, 7, 9])
def test_operations_are_those_of_pil(known, pil, name, reference, steps, level):
    x = photographs()
    found = known[name](x, level, torch.ones(6)).clamp(0, 1)
    error = (found - pil(x, reference(level))).abs().max()
    assert float(error) * 255 <= steps + 0.01


def affine(*coefficients):
    def transform(image):
        kinds = pytest.importorskip("PIL.Image")
        return image.transform(
            image.size, kinds.Transform.AFFINE, coefficients, fillcolor=(128,) * 3
        )

    return transform


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("shear_x", lambda v: affine(1, 0.03 * v, 0, 0, 1, 0)),
        ("shear_y", lambda v: affine(1, 0, 0, 0.03 * v, 1, 0)),
        ("translate_x", lambda v: affine(1, 0, v / 10 * 150 / 331 * 24, 0, 1, 0)),
        ("translate_y", lambda v: affine(1, 0, 0, 0, 1, v / 10 * 150 / 331 * 20)),
        ("rotate", lambda v: lambda image: image.rotate(-3 * v, fillcolor=(128,) * 3)),
    ],
)
@pytest.mark.parametrize("level", [3, -3, 8])
def test_moves_are_those_of_pil(known, pil, name, reference, level):
    x = photographs()
    sign = math.copysign(1.0, level)
    found = known[name](x, abs(level), torch.full((6,), sign))
    wanted = pil(x, reference(level))
    # Both take the nearest pixel; where two are equally near, either will do.
    same = ((found - wanted).abs() < 0.003).all(dim=1).float().mean()
    assert float(same) > 0.98


def test_the_policy_is_kornias_table():
    table = pytest.importorskip("kornia.augmentation.auto.autoaugment.autoaugment").cifar10_policy
    ours = module.parse_policy(module.POLICIES["cifar10"])
    assert len(ours) == 25
    assert ours == [[(name, p, float(level or 0)) for name, p, level in pair] for pair in table]


def test_each_image_gets_one_pair_of_operations(known):
    x, y = photographs()[:1].expand(3000, -1, -1, -1), labels(3000)
    out, targets = auto_augment("cifar10")(x, y, seeded())
    assert torch.equal(targets, y)
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    possible = outcomes(known, x[:1])
    shares = dict.fromkeys(possible, 0)
    for image in out:
        shares[key(image)] += 1  # KeyError: not the result of any pair
    for found, probability in possible.items():
        spread = (3000 * probability * (1 - probability)) ** 0.5
        assert abs(shares[found] - 3000 * probability) < 5 * spread + 1


def key(image):
    return bytes((image * 255).round().byte().flatten().tolist())


def outcomes(known, x):
    """Every possible result of the policy with its probability, by enumeration."""
    found = {}
    for pair in module.parse_policy(module.POLICIES["cifar10"]):
        states = [(1 / 25, x)]
        for name, chance, level in pair:
            states = [
                state
                for share, image in states
                for state in (
                    (share * (1 - chance), image),
                    (share * chance / 2, known[name](image, level, torch.ones(1)).clamp(0, 1)),
                    (share * chance / 2, known[name](image, level, -torch.ones(1)).clamp(0, 1)),
                )
            ]
        for share, image in states:
            found[key(image[0])] = found.get(key(image[0]), 0) + share
    assert abs(sum(found.values()) - 1) < 1e-9
    return found


# -- all of them -----------------------------------------------------------------------------


AUGMENTATIONS = {
    "crop_flip": lambda: crop_flip(),
    "mixup": lambda: mixup(0.4, num_classes=10),
    "auto_augment": lambda: auto_augment(),
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_run_is_determined_by_its_generator(name):
    if name == "auto_augment":
        pytest.importorskip("kornia", reason="AutoAugment needs kornia")
    x, y, augment = images(), labels(), AUGMENTATIONS[name]()
    before, rng = x.clone(), torch.get_rng_state()
    generator = seeded(1)
    first, second = (augment(x, y, generator) for _ in range(2))
    assert not torch.equal(first[0], second[0])
    again = seeded(1)
    for wanted in (first, second):
        found = augment(x, y, again)
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), rng)


def test_refusals():
    with pytest.raises(SpiritlevelError, match=r"'padding' .* at least 0\. Got -1"):
        crop_flip(padding=-1)
    with pytest.raises(SpiritlevelError, match=r"'alpha' .* above 0\. Got 0"):
        mixup(0, num_classes=10)
    with pytest.raises(
        SpiritlevelError, match=r"labels given to mixup must be 0 to 4\. Got 0 to 9"
    ):
        mixup(1.0, num_classes=5)(images(), labels(), seeded())
    with pytest.raises(SpiritlevelError, match=r"floats, as many as .*torch\.int64 and 64 labels"):
        mixup(1.0, num_classes=10)(labels(), labels(), seeded())
    with pytest.raises(SpiritlevelError, match=r"\(N, channels, height, width\)"):
        crop_flip()(torch.rand(3, 5), labels(3), seeded())
    with pytest.raises(SpiritlevelError, match=r"must be one of cifar10\. Got 'imagenet'"):
        auto_augment("imagenet")
    pytest.importorskip("kornia", reason="AutoAugment needs kornia")
    with pytest.raises(SpiritlevelError, match=r"must be RGB\. Got 1 channels"):
        auto_augment()(images(channels=1), labels(), seeded())


def test_without_kornia_the_pip_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.setitem(sys.modules, "kornia.enhance", None)
    message = r"^AutoAugment needs kornia: pip install 'spiritlevel\[augment\]'$"
    with pytest.raises(MissingExtra, match=message):
        auto_augment()
    crop_flip()(images(), labels(), seeded())
