"""The image and the text transformer, against torch's own encoder and naive transcriptions."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.models import build, text_transformer, vit_small

IMAGE = {"size": 8, "patch": 2, "width": 12, "depth": 2, "heads": 3, "classes": 3}
TEXT = {"vocabulary": 11, "length": 7, "width": 12, "depth": 2, "heads": 3, "classes": 4}


def shaken(model: nn.Module) -> nn.Module:
    """In float64 and eval mode, with no parameter left at 0 or 1, where mistakes would hide."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.double().eval()


def torch_block(block: nn.Module, activation: str) -> nn.Module:
    """torch's pre-LN encoder layer with the weights of one of our blocks."""
    own = block.attention
    width = own.query.in_features
    layer = nn.TransformerEncoderLayer(
        width, own.heads, 4 * width, 0.0, activation, batch_first=True, norm_first=True
    ).double()
    state = {
        "self_attn.in_proj_weight": torch.cat([own.query.weight, own.key.weight, own.value.weight]),
        # A bias of the keys must make no difference: that is why our blocks have none.
        "self_attn.in_proj_bias": torch.cat(
            [own.query.bias, torch.full((width,), 0.7).double(), own.value.bias]
        ),
    }
    theirs = {"self_attn.out_proj": own.out, "linear1": block.fc1, "linear2": block.fc2}
    for name, module in (theirs | {"norm1": block.norm1, "norm2": block.norm2}).items():
        state |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
    layer.load_state_dict(state)
    return layer  # left in train mode: without dropout it is the same, and takes the plain path


def patches_by_hand(model: nn.Module, images: Tensor) -> Tensor:
    """Each patch, row by row over the image, as a vector times the matrix of the convolution."""
    size, (step, _) = images.shape[-1], model.patches.stride
    corners = [(i, j) for i in range(0, size, step) for j in range(0, size, step)]
    cut = [images[:, :, i : i + step, j : j + step].flatten(1) for i, j in corners]
    return F.linear(torch.stack(cut, 1), model.patches.weight.flatten(1), model.patches.bias)


@pytest.mark.parametrize("pooling", ["token", "mean"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_vit_is_torchs_encoder_on_patches(pooling, activation, generator):
    model = shaken(build("vit_small", seed=0, **IMAGE, pooling=pooling, activation=activation))
    images = torch.randn(3, 3, 8, 8, generator=generator, dtype=torch.float64)
    x = patches_by_hand(model, images)
    if pooling == "token":
        x = torch.cat([model.token.weight.expand(3, 1, -1), x], 1)
    x = x + model.positions.weight
    for block in model.blocks:
        x = torch_block(block, activation)(x)
    x = model.norm(x)
    expected = model.head(x[:, 0] if pooling == "token" else x.mean(1))
    torch.testing.assert_close(model(images), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_text_transformer_is_torchs_encoder_over_the_tokens(activation, generator):
    model = shaken(build("text_transformer", seed=0, **TEXT, activation=activation))
    tokens = torch.randint(1, 11, (3, 6), generator=generator)
    tokens[0, 4:] = tokens[2, 1:] = 0
    x = model.tokens.weight[tokens] + model.positions.weight[:6]
    for block in model.blocks:
        x = torch_block(block, activation)(x, src_key_padding_mask=tokens == 0)
    x = model.norm(x)
    pooled = torch.stack([x[0, :4].mean(0), x[1].mean(0), x[2, 0]])
    torch.testing.assert_close(model(tokens), model.head(pooled), rtol=1e-12, atol=1e-12)


def test_padding_changes_nothing(generator):
    model = shaken(build("text_transformer", seed=0, **TEXT, padding=9))
    tokens = torch.randint(0, 9, (3, 4), generator=generator)
    padded = F.pad(tokens, (0, 3), value=9)
    torch.testing.assert_close(model(padded), model(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_attention_mask_says_what_is_a_token(dtype, generator):
    model = shaken(build("text_transformer", seed=0, **TEXT))
    tokens = torch.randint(0, 11, (2, 5), generator=generator)  # 0 may be a token here
    filled = F.pad(tokens, (0, 2), value=4)
    mask = F.pad(torch.ones_like(tokens), (0, 2)).to(dtype)
    whole = model(tokens, torch.ones_like(tokens))
    torch.testing.assert_close(
        model(input_ids=filled, attention_mask=mask), whole, rtol=1e-12, atol=1e-12
    )
    assert not torch.allclose(model(filled), whole)


def test_an_empty_text_is_read_as_its_padding():
    model = shaken(build("text_transformer", seed=0, **TEXT))
    empty = torch.zeros(1, 3, dtype=torch.long)
    scores = model(empty)
    assert torch.isfinite(scores).all()
    torch.testing.assert_close(scores, model(empty, torch.ones_like(empty)))


def test_order_of_the_tokens_matters(generator):
    model = shaken(build("text_transformer", seed=0, **TEXT))
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert not torch.allclose(model(tokens), model(tokens.flip(1)))
    nn.init.zeros_(model.positions.weight)
    torch.testing.assert_close(model(tokens), model(tokens.flip(1)))


def test_text_parameters_by_hand_and_all_get_a_gradient(generator):
    model = text_transformer()
    block = 4 * (64 * 64 + 64) - 64 + (64 * 256 + 256) + (256 * 64 + 64) + 4 * 64
    expected = 1000 * 64 + 128 * 64 + 2 * block + 2 * 64 + 64 * 2 + 2
    assert sum(p.numel() for p in model.parameters()) == expected == 172_290
    scores = model(torch.randint(0, 1000, (3, 128), generator=generator))
    assert scores.shape == (3, 2)
    scores.square().sum().backward()
    assert [n for n, p in model.named_parameters() if not p.grad.abs().sum() > 0] == []


def test_names_in_the_state_dict():
    block = [
        *("norm1.weight", "norm1.bias", "attention.query.weight", "attention.query.bias"),
        *("attention.key.weight", "attention.value.weight", "attention.value.bias"),
        *("attention.out.weight", "attention.out.bias", "norm2.weight", "norm2.bias"),
        *("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"),
    ]
    blocks = [f"blocks.{i}.{name}" for i in range(2) for name in block]
    end = ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    image = ["patches.weight", "patches.bias", "token.weight", "positions.weight"]
    assert list(vit_small(**IMAGE).state_dict()) == [*image, *blocks, *end]
    assert list(vit_small(**IMAGE, pooling="mean").state_dict()) == [
        *(name for name in image if name != "token.weight"),
        *blocks,
        *end,
    ]
    text = ["tokens.weight", "positions.weight"]
    assert list(text_transformer(**TEXT).state_dict()) == [*text, *blocks, *end]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (vit_small, {"depth": 0}, r"'depth' argument of vit_small .* Got 0\."),
        (vit_small, {"patch": 5}, r"'patch' .* must divide 'size'\. Got patch=5 and size=32\."),
        (vit_small, {"heads": 5}, r"'heads' .* must divide 'width'\. Got heads=5 and width=192"),
        (vit_small, {"pooling": "cls"}, r"'token' or 'mean'\. Got 'cls'\. 'token' adds"),
        (vit_small, {"activation": "silu"}, r"'activation' argument of vit_small .* Got 'silu'"),
        (text_transformer, {"width": 2.0}, r"'width' argument of text_transformer .* Got 2\.0\."),
        (text_transformer, {"heads": 3}, r"'heads' argument of text_transformer must divide"),
        (text_transformer, {"padding": -1}, r"must be a token, 0 to 999\. Got -1\. Leave"),
        (text_transformer, {"padding": 1000}, r"must be a token, 0 to 999\. Got 1000\."),
        (text_transformer, {"activation": "swish"}, r"one of 'relu', 'gelu', 'tanh'\. Got 'sw"),
    ],
)
def test_bad_options_are_named(make, options, message):
    with pytest.raises(SpiritlevelError, match=message):
        make(**options)


def test_images_of_another_size_are_refused():
    message = r"shape \(N, channels, 8, 8\)\. Got \(1, 3, 16, 16\)\. Build it with size="
    with pytest.raises(SpiritlevelError, match=message):
        vit_small(**IMAGE)(torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize(
    ("tokens", "got"),
    [
        (torch.zeros(2, 8, dtype=torch.long), r"torch\.int64 of shape \(2, 8\)"),
        (torch.zeros(2, 0, dtype=torch.long), r"torch\.int64 of shape \(2, 0\)"),
        (torch.zeros(5, dtype=torch.long), r"torch\.int64 of shape \(5,\)"),
        (torch.zeros(2, 5), r"torch\.float32 of shape \(2, 5\)"),
    ],
)
def test_what_is_no_batch_of_texts_is_refused(tokens, got):
    message = rf"T from 1 to 7\. Got {got}\. Build it with length="
    with pytest.raises(SpiritlevelError, match=message):
        text_transformer(**TEXT)(tokens)
