"""Small networks, one a layer kind or way of wiring, with data cut into unequal batches.

Each case names the layers whose outputs bend along their own weights: there the library must say
GGN, everywhere else Hessian. Names of cases are what `pytest -k` selects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from zoo import wirings
from zoo.losses import LOSSES
from zoo.wirings import CLASSES

SIZES = (4, 1, 2)  # samples in each batch


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, what goes into it, its loss, and which of its layers bend."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], Any]
    loss: str = "cross_entropy"
    bends: tuple[str, ...] = ()

    def make(self, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, list[Any]]:
        """The model in eval mode, and the batches."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = self.build().to(torch.float64)
            for name, buffer in model.named_buffers():  # running statistics that do something
                if name.endswith("running_mean"):
                    buffer.normal_()
                if name.endswith("running_var"):
                    buffer.uniform_(0.5, 2.0)
            for module in model.modules():  # affine parameters start at 1 and 0, which hides them
                if type(module).__name__.endswith("Norm") or "Norm" in type(module).__name__:
                    for parameter in module.parameters(recurse=False):
                        parameter.data.normal_()
            model.eval()
        generator = torch.Generator().manual_seed(2)
        batches = []
        for size in SIZES:
            x = self.inputs(size, generator)
            with torch.no_grad():
                shape = tuple((model(*x) if isinstance(x, tuple) else model(x)).shape)
            batches.append((x, LOSSES[self.loss].targets(shape, generator)))
        return cast(model, batches, dtype)


def cast(model: nn.Module, batches: list[Any], dtype: torch.dtype) -> tuple[nn.Module, list[Any]]:
    """Model and batches in another precision; whole numbers stay."""

    def to(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(to, value))
        return value.to(dtype) if value.is_floating_point() else value

    return model.to(dtype), [to(batch) for batch in batches]


def normal(*shape: int) -> Callable[[int, torch.Generator], Tensor]:
    """Standard normal inputs of one shape."""
    return lambda n, generator: torch.randn(n, *shape, generator=generator, dtype=torch.float64)


def tokens(length: int, vocabulary: int) -> Callable[[int, torch.Generator], Tensor]:
    """Token numbers; a small vocabulary makes them repeat."""
    return lambda n, generator: torch.randint(vocabulary, (n, length), generator=generator)


def then_head(*layers: nn.Module, features: int) -> nn.Module:
    """The layers, flattened into a last linear layer."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES))


def pooled(*layers: nn.Module, channels: int, dims: int = 2) -> nn.Module:
    """The layers, averaged over positions into a last linear layer."""
    pool = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}[dims]
    return nn.Sequential(*layers, pool(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def mlp(*, bias: bool = True, outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6, bias=bias),
        nn.ReLU(),
        nn.Linear(6, 5, bias=bias),
        nn.LeakyReLU(0.2),
        nn.Linear(5, outputs, bias=bias),
    )


def padded(mode: str) -> Case:
    conv = nn.Conv2d
    return Case(
        lambda: pooled(
            conv(2, 3, 3, padding=(1, 2), padding_mode=mode), nn.ReLU(), conv(3, 2, 2), channels=2
        ),
        normal(2, 4, 5),
    )


CASES: dict[str, Case] = {
    "mlp": Case(mlp, normal(4)),
    "mlp_without_bias": Case(lambda: mlp(bias=False), normal(4), "mse"),
    "one_linear_layer": Case(lambda: nn.Linear(4, CLASSES), normal(4)),
    "one_output": Case(lambda: mlp(outputs=1), normal(4), "mse"),
    "outputs_without_a_feature_dimension": Case(
        lambda: nn.Sequential(mlp(outputs=1), nn.Flatten(0)), normal(4), "bce"
    ),
    "conv1d": Case(
        lambda: pooled(
            nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2, groups=2),
            nn.ReLU(),
            nn.Conv1d(4, 2, 2),
            channels=2,
            dims=1,
        ),
        normal(2, 9),
    ),
    "conv2d": Case(
        lambda: then_head(
            nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
            nn.ReLU(),
            nn.Conv2d(3, 2, 2, bias=False),
            nn.ReLU(),
            features=8,
        ),
        normal(2, 5, 5),
        "bce_weighted",
    ),
    "conv2d_with_many_positions": Case(
        lambda: pooled(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 2, 2), channels=2),
        normal(1, 9, 9),
    ),
    "conv2d_wide": Case(  # more weights than positions: contracted through Gram matrices
        lambda: pooled(nn.Conv2d(3, 12, 2), nn.ReLU(), nn.Conv2d(12, 5, 2), channels=5),
        normal(3, 3, 4),
    ),
    "conv_with_a_column_left_over": Case(  # 3 factor columns of 128 rows, contracted as 2 and 1
        lambda: nn.Sequential(
            nn.Conv1d(1, 128, 2), nn.ReLU(), nn.Flatten(), nn.AvgPool1d(64), nn.Linear(8, 4)
        ),
        normal(1, 5),
    ),
    "five_classes": Case(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 5)),
        normal(1, 4, 4),
    ),
    "conv3d": Case(
        lambda: pooled(
            nn.Conv3d(1, 2, (1, 2, 2), stride=(1, 2, 1), padding=(0, 1, 0)),
            nn.ReLU(),
            nn.Conv3d(2, 2, (2, 1, 1), groups=2),
            channels=2,
            dims=3,
        ),
        normal(1, 3, 3, 3),
        "mse",
    ),
    "padding_reflect": padded("reflect"),
    "padding_replicate": padded("replicate"),
    "padding_circular": padded("circular"),
    "padding_same": Case(  # an even reach cannot be split evenly: one more on the right
        lambda: pooled(
            nn.Conv2d(2, 3, (2, 3), padding="same", dilation=(1, 2)),
            nn.ReLU(),
            nn.Conv2d(3, 2, 4, padding="same", padding_mode="circular"),
            channels=2,
        ),
        normal(2, 4, 5),
    ),
    "padding_valid": Case(
        lambda: pooled(nn.Conv1d(2, 3, 2, padding="valid"), nn.ReLU(), channels=3, dims=1),
        normal(2, 4),
    ),
    "grouped_conv": Case(
        lambda: pooled(
            nn.Conv2d(4, 6, 2, groups=2), nn.ReLU(), nn.Conv2d(6, 3, 2, groups=3), channels=3
        ),
        normal(4, 4, 4),
    ),
    "depthwise_conv": Case(
        lambda: pooled(
            nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.ReLU(), nn.Conv2d(6, 3, 1), channels=3
        ),
        normal(3, 4, 4),
        "label_smoothing",
    ),
    "conv_transpose1d": Case(
        lambda: then_head(
            nn.ConvTranspose1d(
                4, 4, 3, stride=3, padding=2, output_padding=1, groups=2, dilation=2
            ),
            nn.ReLU(),
            features=4 * 8,
        ),
        normal(4, 3),
    ),
    "conv_transpose2d": Case(
        lambda: pooled(
            nn.Conv2d(2, 3, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(
                3, 2, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(1, 2)
            ),
            nn.ReLU(),
            nn.ConvTranspose2d(2, 3, 2, groups=1, bias=False),
            nn.ReLU(),
            channels=3,
        ),
        normal(2, 3, 3),
    ),
    "conv_transpose_padded_past_its_kernel": Case(
        lambda: pooled(nn.ConvTranspose2d(2, 3, 2, padding=2), nn.ReLU(), channels=3),
        normal(2, 5, 6),
    ),
    "conv_transpose3d": Case(
        lambda: pooled(
            nn.ConvTranspose3d(2, 2, (2, 1, 2), stride=(1, 2, 2), groups=2),
            nn.ReLU(),
            channels=2,
            dims=3,
        ),
        normal(2, 2, 2, 2),
    ),
    "outputs_are_images": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, stride=2)
        ),
        normal(1, 4, 4),
        "mse",
    ),
    "a_target_a_token": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, CLASSES)),
        normal(4, 3),
        "tokens",
    ),
    "a_target_a_pixel": Case(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, CLASSES, 1)),
        normal(1, 3, 3),
        "pixels",
    ),
    "batchnorm1d": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES)),
        normal(3),
    ),
    "batchnorm1d_on_sequences": Case(
        lambda: pooled(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), channels=3, dims=1),
        normal(2, 5),
        "mse",
    ),
    "batchnorm2d": Case(
        lambda: pooled(
            nn.BatchNorm2d(2), nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), channels=3
        ),
        normal(2, 4, 4),
    ),
    "layernorm": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, CLASSES)),
        normal(3),
        bends=("0",),
    ),
    "layernorm_over_images": Case(
        lambda: then_head(
            nn.Conv2d(1, 2, 2), nn.LayerNorm((2, 3, 3), bias=False), nn.ReLU(), features=18
        ),
        normal(1, 4, 4),
        bends=("0",),
    ),
    "groupnorm": Case(
        lambda: pooled(
            nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 2), channels=3
        ),
        normal(2, 4, 4),
        bends=("0",),
    ),
    "rmsnorm": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4), nn.ReLU(), nn.Linear(4, CLASSES)),
        normal(3),
        bends=("0",),
    ),
    "instancenorm": Case(
        lambda: then_head(
            nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.ReLU(), features=27
        ),
        normal(2, 4, 4),
        bends=("0",),
    ),
    "instancenorm_with_running_statistics": Case(
        lambda: then_head(
            nn.Conv1d(2, 3, 2),
            nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
            nn.ReLU(),
            features=9,
        ),
        normal(2, 4),
    ),
    "residual_sums_in_place": Case(wirings.Residual, normal(2, 4, 4)),
    "shared_input": Case(wirings.SharedInput, normal(3)),
    "max_pooling": Case(
        lambda: then_head(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), features=12),
        normal(1, 5, 5),
    ),
    "average_pooling": Case(
        lambda: then_head(
            nn.Conv2d(1, 3, 2), nn.AvgPool2d(2, stride=1), nn.Hardtanh(-0.2, 0.3), features=27
        ),
        normal(1, 5, 5),
    ),
    "prelu_with_one_slope": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, CLASSES)), normal(3)
    ),
    "prelu_with_a_slope_a_channel": Case(
        lambda: pooled(nn.Conv2d(2, 3, 2), nn.PReLU(3), nn.Conv2d(3, 3, 2), channels=3),
        normal(2, 4, 4),
    ),
    "prelu_on_tokens": Case(
        lambda: then_head(nn.Linear(3, 4), nn.PReLU(5), features=20), normal(5, 3)
    ),
    "embedding": Case(lambda: wirings.MeanEmbedding(padding_idx=None), tokens(6, 5)),
    "embedding_with_padding": Case(lambda: wirings.MeanEmbedding(padding_idx=1), tokens(6, 5)),
    "embedding_bag": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(5, 4), nn.ReLU(), nn.Linear(4, CLASSES)),
        tokens(6, 5),
    ),
    "linear_on_tokens": Case(lambda: wirings.TokenLinear("plain"), normal(5, 3)),
    "linear_on_many_short_tokens": Case(lambda: wirings.TokenLinear("plain"), normal(40, 3)),
    "linear_on_a_grid": Case(
        lambda: then_head(nn.Linear(3, 2), nn.ReLU(), features=12), normal(2, 3, 3), "soft_targets"
    ),
    "linear_on_reshaped_tokens": Case(lambda: wirings.TokenLinear("reshaped"), normal(5, 3)),
    "linear_on_tokens_major": Case(lambda: wirings.TokenLinear("tokens_major"), normal(5, 3)),
    "linear_on_three_tokens_major": Case(lambda: wirings.TokenLinear("tokens_major"), normal(3, 3)),
    "linear_sequence_first": Case(lambda: wirings.TokenLinear("sequence_first"), normal(5, 3)),
    "linear_sequence_first_of_three": Case(
        lambda: wirings.TokenLinear("sequence_first"), normal(3, 3)
    ),
    "only_the_middle_of_three_positions": Case(wirings.MiddlePosition, normal(3, 3)),
    "images_folded_into_the_batch": Case(wirings.FoldedImages, normal(2, 3, 3)),
    "bare_parameters": Case(wirings.BareParameters, normal(3, 4)),
    "tied_in_series": Case(lambda: wirings.Tied("series"), normal(3), bends=("a",)),
    "tied_in_parallel": Case(lambda: wirings.Tied("parallel"), normal(3)),
    "tied_in_two_modules": Case(lambda: wirings.Tied("one_weight_in_two_modules"), normal(3)),
    "tied_convolution": Case(wirings.TiedConv, normal(2, 4, 8), "mse"),
    "embedding_tied_with_decoder": Case(wirings.TiedDecoder, tokens(3, 4), bends=("embedding",)),
    "weight_norm": Case(
        lambda: nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, CLASSES)),
        normal(3),
        bends=("0.parametrizations.weight",),
    ),
    "attention_batch_first": Case(
        lambda: wirings.Attention(batch_first=True), normal(3, 4), bends=("attention",)
    ),
    "attention_sequence_first": Case(
        lambda: wirings.Attention(batch_first=False), normal(5, 4), bends=("attention",)
    ),
    "transformer_block": Case(
        lambda: wirings.Encoder(batch_first=True, norm_first=False),
        normal(3, 4),
        bends=(
            "block.self_attn",
            "block.self_attn.out_proj",
            "block.linear1",
            "block.linear2",
            "block.norm1",
        ),
    ),
    "transformer_block_sequence_first": Case(
        lambda: wirings.Encoder(batch_first=False, norm_first=True),
        normal(3, 4),
        bends=("block.self_attn", "block.self_attn.out_proj", "block.norm1"),
    ),
    "gru": Case(wirings.Recurrent, normal(3, 3), bends=("gru",)),
    "bilinear": Case(wirings.Bilinear, normal(5)),
    "borrowed_weight": Case(wirings.BorrowedWeight, normal(4)),
    "frozen_and_unused": Case(wirings.PartlyFrozen, normal(3)),
    "branching_on_the_data": Case(wirings.Branching, normal(3)),
    "two_inputs": Case(
        wirings.TwoInputs, lambda n, g: (normal(3)(n, g), normal(3)(n, g)), "class_weights"
    ),
    "product_of_branches": Case(wirings.Gated, normal(3)),
    "called_by_keyword": Case(wirings.ByKeyword, normal(3)),
    "subclass_that_changes_forward": Case(
        lambda: nn.Sequential(wirings.ScaledLinear(3, 4), nn.ReLU(), nn.Linear(4, CLASSES)),
        normal(3),
    ),
} | {f"mlp_with_{name}": Case(mlp, normal(4), name) for name in LOSSES}
