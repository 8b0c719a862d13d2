"""Each intervention against a loop that does it sample by sample, and exact where it can be."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.models import build
from spiritlevel_lab.population.interventions import (
    MaskedFeatures,
    bias_shift,
    class_patches,
    control_patch,
    input_noise,
    label_noise,
    leakage_patch,
    mask_feature_maps,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def labels(n=1000, classes=10):
    return torch.randint(classes, (n,), generator=seeded(99))


# -- label noise -----------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.333, 1.0])
def test_exactly_the_share_is_wrong(share):
    y = labels(1001)
    before = y.clone()
    noisy = label_noise(y, share, 10, seeded())
    assert int((noisy != y).sum()) == int(share * 1001 + 0.5)
    assert torch.equal(y, before)
    assert noisy.dtype == y.dtype
    assert int(noisy.min()) >= 0
    assert int(noisy.max()) < 10


def test_a_half_sample_counts_as_one():
    assert int((label_noise(labels(5), 0.1, 10, seeded()) != labels(5)).sum()) == 1  # 0.5 -> 1
    assert int((label_noise(labels(25), 0.1, 10, seeded()) != labels(25)).sum()) == 3  # 2.5 -> 3


def test_replacements_are_uniform_over_the_other_classes():
    y = torch.full((90_000,), 3)
    counts = label_noise(y, 1.0, 10, seeded()).bincount(minlength=10)
    assert int(counts[3]) == 0
    others = torch.cat([counts[:3], counts[4:]]).double()
    # Chi-squared with 8 degrees of freedom: 26.1 is its 99.9 % point.
    assert float(((others - 10_000) ** 2 / 10_000).sum()) < 26.1


def test_shuffling_keeps_the_class_counts_and_some_labels():
    y = labels(10_000)
    noisy = label_noise(y, 0.5, 10, seeded(), kind="shuffle")
    assert torch.equal(noisy.bincount(), y.bincount())
    # Of 5,000 drawn, one in ten stays right by chance: 4,500 ± 5 standard deviations of 21.
    assert 4_394 < int((noisy != y).sum()) < 4_606


@pytest.mark.parametrize("kind", ["replace", "shuffle"])
def test_label_noise_is_determined_by_the_generator(kind):
    y = labels()
    first, again = (label_noise(y, 0.4, 10, seeded(1), kind=kind) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, label_noise(y, 0.4, 10, seeded(2), kind=kind))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"share": 1.2}, r"'share' argument of label_noise must be a number from 0 to 1\. Got 1.2"),
        ({"share": -0.1}, r"Got -0\.1"),
        ({"share": float("nan")}, r"Got nan"),
        ({"kind": "swap"}, r"must be 'replace' or 'shuffle'\. Got 'swap'"),
        ({"num_classes": 1}, r"must be at least 2\. Got 1"),
        ({"num_classes": 5}, r"must be 0 to 4\. Got 0 to 9\. Check the number of classes"),
        ({"y": torch.rand(5)}, r"must be integers of shape \(N,\)\. Got shape \(5,\) of torch\.f"),
    ],
)
def test_label_noise_refuses(change, text):
    arguments = {"y": labels(), "share": 0.1, "num_classes": 10} | change
    with pytest.raises(SpiritlevelError, match=text):
        label_noise(**arguments, generator=seeded())


# -- leakage ---------------------------------------------------------------------------------


CORNERS = {
    "bottom-left": (24, 0),
    "bottom-right": (24, 24),
    "top-left": (0, 0),
    "top-right": (0, 24),
}


def images(n=60, channels=3):
    return torch.rand(n, channels, 32, 32, generator=seeded(7))


def naive_paste(x, patches, top, left):
    out = x.clone()
    for n in range(len(x)):
        for channel in range(x.shape[1]):
            for i in range(8):
                for j in range(8):
                    patch = patches[n]
                    out[n, channel, top + i, left + j] = patch[min(channel, len(patch) - 1), i, j]
    return out


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_patches_of_the_class_go_to_the_corner(corner, channels):
    x, y = images(6), labels(6)
    patches = torch.rand(10, channels, 8, 8, generator=seeded(3))
    before = x.clone()
    pasted = leakage_patch(x, y, patches, corner)
    assert torch.equal(pasted, naive_paste(x, [patches[label] for label in y], *CORNERS[corner]))
    assert torch.equal(x, before)


def test_the_corner_is_bottom_left_unless_said():
    x, y = images(6), labels(6)
    patches = torch.rand(10, 1, 8, 8)
    assert torch.equal(leakage_patch(x, y, patches), leakage_patch(x, y, patches, "bottom-left"))


def patch_found(x, patches):
    """Which patch is in the bottom-left corner of each image."""
    corner = x[:, None, :1, -8:, :8]
    return (corner - patches).abs().sum((2, 3, 4)).argmin(1)


def test_leakage_tells_the_class_and_control_does_not():
    x, y = images(2000, 1), labels(2000).sort().values  # in order, as many files have them
    patches = torch.rand(10, 1, 8, 8, generator=seeded(3))
    assert torch.equal(patch_found(leakage_patch(x, y, patches), patches), y)
    control = control_patch(x, patches, seeded())
    found = patch_found(control, patches)
    # Agreement by chance is one in ten: 200 ± 5 standard deviations of 13.4.
    assert 133 < int((found == y).sum()) < 267
    # Every class sees every patch about equally often (chi-squared, 81 degrees, 99.9 %: 126).
    table = torch.zeros(10, 10).index_put_((y, found), torch.tensor(1.0), accumulate=True)
    expected = table.sum(1, keepdim=True) * table.sum(0) / 2000
    assert float(((table - expected) ** 2 / expected).sum()) < 126
    assert torch.equal(control[:, :, :-8], x[:, :, :-8])
    assert torch.equal(control[:, :, :, 8:], x[:, :, :, 8:])


def test_control_is_drawn_anew_from_the_generator():
    x, patches, generator = images(), torch.rand(10, 3, 8, 8), seeded()
    first, second = (control_patch(x, patches, generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, control_patch(x, patches, seeded()))


def test_class_patches_are_the_first_of_each_class_made_smaller():
    x, y = images(200, 1), labels(200)
    patches = class_patches(x, y, 10, size=8)
    assert patches.shape == (10, 1, 8, 8)
    for label in range(10):
        first = x[y.tolist().index(label)]
        means = first.view(1, 8, 4, 8, 4).mean((2, 4))  # a tent filter is close to the mean
        assert float((patches[label] - means).abs().mean()) < 0.1
    uniform = class_patches(torch.full_like(x, 0.7), y, 10)
    torch.testing.assert_close(uniform, torch.full_like(uniform, 0.7))


@pytest.mark.parametrize(
    ("patches", "corner", "text"),
    [
        (torch.rand(10, 1, 8, 8), "left", r"'corner' .* bottom-left, .*Got 'left'"),
        (torch.rand(10, 2, 8, 8), "top-left", r"\(classes, 1 or 3, at most 32, at most 32\)"),
        (torch.rand(10, 1, 40, 8), "top-left", r"Got shape \(10, 1, 40, 8\)\. class_patches"),
        (torch.rand(5, 1, 8, 8), "top-left", r"labels given to leakage_patch must be 0 to 4"),
    ],
)
def test_leakage_refuses(patches, corner, text):
    with pytest.raises(SpiritlevelError, match=text):
        leakage_patch(images(), labels(60), patches, corner)


def test_leakage_needs_a_label_an_image_and_every_class():
    with pytest.raises(SpiritlevelError, match=r"equally long\. Got 60 images and 3 labels"):
        leakage_patch(images(), labels(3), torch.rand(10, 1, 8, 8))
    with pytest.raises(SpiritlevelError, match=r"There is no 1\. Give more"):
        class_patches(images(5), torch.zeros(5, dtype=torch.long), 10)
    with pytest.raises(SpiritlevelError, match=r"\(N, channels, height, width\).*Got shape \(5,"):
        control_patch(torch.rand(5, 3), torch.rand(10, 1, 8, 8), seeded())


# -- input noise -----------------------------------------------------------------------------


def test_input_noise_has_the_standard_deviation():
    x = torch.full((100_000,), 2.0, dtype=torch.float64)
    noise = input_noise(x, 0.3, seeded()) - x
    # Standard errors of mean and deviation are σ/√n and σ/√2n: 5 of them.
    assert abs(float(noise.mean())) < 5 * 0.3 / 100_000**0.5
    assert abs(float(noise.std()) - 0.3) < 5 * 0.3 / 200_000**0.5
    assert torch.equal(input_noise(x, 0.3, seeded()) - x, noise)
    assert torch.equal(input_noise(x, 0, seeded()), x)


def test_input_noise_refuses():
    with pytest.raises(SpiritlevelError, match=r"at least 0\. Got -1\. For a variance v"):
        input_noise(images(), -1, seeded())
    with pytest.raises(SpiritlevelError, match=r"must be floats\. Got torch\.int64"):
        input_noise(labels(), 1, seeded())


# -- masking ---------------------------------------------------------------------------------


def vgg():
    return build("vgg_small", width=8, seed=0)


def test_the_share_of_every_convolution_is_dead():
    model = vgg()
    masked = mask_feature_maps(model, None, 0.7, seeded())
    assert not any(isinstance(m, MaskedFeatures) for m in model.modules())
    for i, width in enumerate((8, 16, 32, 64), start=1):
        layer = masked.get_submodule(f"conv{i}")
        assert int(layer.dead.sum()) == int(0.7 * width + 0.5)
    seen = {}
    for i in range(1, 5):
        masked.get_submodule(f"conv{i}").register_forward_hook(
            lambda module, args, output, i=i: seen.update({i: (module, args[0], output)})
        )
    for training in (True, False):
        masked.train(training)(images(2))
        for i in range(1, 5):
            module, given, output = seen[i]
            plain = getattr(model, f"conv{i}")(given)
            for channel, dead in enumerate(module.dead.tolist()):
                wanted = torch.zeros_like(plain[:, channel]) if dead else plain[:, channel]
                assert torch.equal(output[:, channel], wanted)


def test_masks_are_drawn_from_the_generator_and_saved():
    first, again, other = (mask_feature_maps(vgg(), None, 0.5, seeded(s)) for s in (1, 1, 2))
    x = images(2)
    assert torch.equal(first(x), again(x))
    assert not torch.equal(first(x), other(x))
    other.load_state_dict(first.state_dict())
    assert torch.equal(first(x), other(x))
    assert "conv1.dead" in first.state_dict()
    assert "dead=4 of 8 maps" in repr(first)


def test_dead_maps_stay_dead_in_training():
    masked = mask_feature_maps(vgg(), "conv1", 0.5, seeded())
    weight = masked.conv1.layer.weight
    before = weight.detach().clone()
    optimizer = torch.optim.SGD(masked.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(masked(images(8)), labels(8)).backward()
        optimizer.step()
    changed = (weight != before).flatten(1).any(1)
    assert not changed[masked.conv1.dead].any()
    assert changed[~masked.conv1.dead].any()


def small_cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    ).double()


def test_curvature_of_a_masked_network_is_that_of_its_dense_hessian():
    masked = mask_feature_maps(small_cnn(), None, 0.5, seeded())
    x = torch.rand(6, 1, 8, 8, generator=seeded(1), dtype=torch.float64)
    y = labels(6, 3)
    params = {k: v.detach() for k, v in masked.named_parameters()}

    def loss(params):
        return nn.functional.cross_entropy(torch.func.functional_call(masked, params, (x,)), y)

    hessian = torch.func.hessian(loss)(params)
    report = sl.measure(masked, [(x, y)], measures=["curvature.trace"])
    found = report.layers["curvature.trace"]
    assert list(found) == ["0.layer", "2.layer", "6"]
    for layer, row in found.items():
        own = [k for k in params if k.rpartition(".")[0] == layer]
        blocks = (hessian[k][k].reshape(params[k].numel(), -1) for k in own)
        trace = float(sum(block.diagonal().sum() for block in blocks))
        assert row.exact
        torch.testing.assert_close(row.value, trace, rtol=1e-9, atol=0)


def test_other_layers_can_be_masked():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
    model.append(nn.LazyLinear(10))
    model.eval()(images(2))
    nn.init.ones_(model[1].bias)
    masked = mask_feature_maps(model, ["1", "4"], 0.5, seeded())
    maps = masked[:2](images(2))
    assert int((maps == 0).all(dim=0).flatten(1).all(1).sum()) == 3
    assert int((masked(images(2)) == 0).all(0).sum()) == 5


def test_a_layer_in_several_places_and_a_bare_one():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    masked = mask_feature_maps(nn.Sequential(conv, nn.ReLU(), conv), None, 0.34, seeded())
    assert masked[0] is masked[2]
    block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1))
    masked = mask_feature_maps(nn.Sequential(block, block), None, 0.34, seeded())
    assert isinstance(masked[0][0].layer, nn.Conv2d)
    bare = mask_feature_maps(nn.Conv2d(3, 4, 3), None, 0.5, seeded())
    assert int((bare(images(1)[0]) == 0).flatten(1).all(1).sum()) == 2  # no batch dimension


@pytest.mark.parametrize(
    ("layers", "ratio", "text"),
    [
        (None, 1.0, r"'ratio' .* at least 0 and below 1\. Got 1\.0"),
        (None, 0.97, r"Got 0\.97, which kills all 8 of 'conv1'"),
        ("cnov1", 0.5, r"'layers' .* Got 'cnov1'\. Did you mean 'conv1'\? There are: conv1, conv2"),
        ("relu1", 0.5, r"must name convolutions.* Got 'relu1', a ReLU"),
    ],
)
def test_masking_refuses(layers, ratio, text):
    with pytest.raises(SpiritlevelError, match=text):
        mask_feature_maps(vgg(), layers, ratio, seeded())


def test_masking_refuses_models_without_convolutions_and_masked_ones():
    with pytest.raises(SpiritlevelError, match=r"must have convolutions.*Name other layers: 0\."):
        mask_feature_maps(nn.Sequential(nn.Linear(2, 2)), None, 0.5, seeded())
    masked = mask_feature_maps(vgg(), "conv2", 0.5, seeded())
    with pytest.raises(SpiritlevelError, match=r"must not be masked already.*'conv2' masked"):
        mask_feature_maps(masked, "conv1", 0.5, seeded())


# -- bias shift ------------------------------------------------------------------------------


def test_bias_shift_moves_every_unit_by_the_amount():
    model, x = vgg(), images(2)
    before = model.conv1(x)
    shifted = bias_shift(model, "conv1", -0.5)
    torch.testing.assert_close(shifted.conv1(x), before - 0.5)
    assert torch.equal(model.conv1(x), before)
    unchanged = [
        k for k, v in model.state_dict().items() if torch.equal(v, shifted.state_dict()[k])
    ]
    assert set(model.state_dict()) - set(unchanged) == {"conv1.bias"}


def test_the_further_up_the_more_units_fire():
    model, x = vgg(), images(4)
    shares = [
        float((bias_shift(model, "conv1", amount).conv1(x) > 0).float().mean())
        for amount in (-1.0, -0.2, 0.0, 0.2, 1.0)
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.1 < 0.9 < shares[-1]


def test_bias_shift_refuses():
    with pytest.raises(SpiritlevelError, match=r"Got 'conv'\. Did you mean 'conv\d'\?"):
        bias_shift(vgg(), "conv", 1.0)
    text = r"Got 'head', a Linear without one\. With a bias: conv1, conv2, conv3, conv4\."
    with pytest.raises(SpiritlevelError, match=text):
        bias_shift(vgg(), "head", 1.0)


def test_nothing_draws_from_the_global_generator():
    x, y, model, patches = images(), labels(60), vgg(), torch.rand(10, 1, 8, 8)
    before = torch.get_rng_state()
    label_noise(y, 0.5, 10, seeded())
    input_noise(x, 0.1, seeded())
    control_patch(x, patches, seeded())
    mask_feature_maps(model, None, 0.5, seeded())
    assert torch.equal(torch.get_rng_state(), before)
