"""Losses that models of transformers compute from coarse scores, or add something to."""

import pytest
import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.model.surface import Surface

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 8}
IGNORED = 255


def segformer(**more):
    four = {"num_attention_heads": [1] * 4, "depths": [1, 0, 0, 0], "mlp_ratios": [1] * 4}
    sizes = {"hidden_sizes": [2] * 4, "decoder_hidden_size": 3, "sr_ratios": [2, 2, 1, 1]}
    return transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(**four, **sizes, num_labels=3, **more)
    )


def mobilevit():
    config = transformers.MobileViTConfig(
        image_size=32,
        hidden_sizes=[8] * 3,
        neck_hidden_sizes=[4] * 6 + [8],
        num_attention_heads=2,
        mlp_ratio=1.0,
        expand_ratio=1.0,
        aspp_out_channels=4,
        atrous_rates=[1, 2, 3],
        num_labels=3,
    )
    return transformers.MobileViTForSemanticSegmentation(config)


def mobilenet():
    config = transformers.MobileNetV2Config(
        image_size=32, depth_multiplier=0.02, min_depth=2, depth_divisible_by=2, num_labels=3
    )
    return transformers.MobileNetV2ForSemanticSegmentation(config)


def upernet(head=False):
    backbone = transformers.ConvNextConfig(
        patch_size=2,
        hidden_sizes=[4] * 4,
        depths=[1] * 4,
        out_features=[f"stage{i}" for i in range(1, 5)],
    )
    config = transformers.UperNetConfig(
        backbone_config=backbone,
        hidden_size=4,
        pool_scales=[1, 2],
        use_auxiliary_head=head,
        auxiliary_in_channels=4,
        auxiliary_channels=4,
        num_labels=3,
    )
    return transformers.UperNetForSemanticSegmentation(config)


def dpt(head=True):
    config = transformers.DPTConfig(
        image_size=16,
        patch_size=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[4] * 4,
        fusion_hidden_size=4,
        is_hybrid=False,
        use_auxiliary_head=head,
        num_labels=3,
        **SMALL,
    )
    return transformers.DPTForSemanticSegmentation(config)


def beit(head=False):
    config = transformers.BeitConfig(
        image_size=16,
        patch_size=4,
        out_indices=[1, 2, 3, 4],
        use_auxiliary_head=head,
        num_labels=3,
        **SMALL,
    )
    return transformers.BeitForSemanticSegmentation(config)


def built(build, *args, **kwargs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(*args, **kwargs).double().eval()
        with torch.no_grad():  # biases of 0 and gains of 1 hide a lot
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def pictures(size, counts=(2, 1)):
    generator = torch.Generator().manual_seed(1)
    data = []
    for count in counts:
        x = torch.randn(count, 3, size, size, generator=generator, dtype=torch.float64)
        y = torch.randint(3, (count, size, size), generator=generator)
        y[:, 0, :3] = IGNORED
        data.append({"pixel_values": x, "labels": y})
    return data


def mean_loss(model, data, **options):
    surface = Surface(model, data, **options)
    value = weight = 0.0
    with torch.no_grad():
        for where, batch in surface.batches():
            outputs, targets = surface.outputs(batch, where=where)
            value += float(surface.loss.values(outputs.double(), targets).sum())
            weight += float(surface.loss.weights(outputs, targets).sum())
    return value / weight


@pytest.mark.parametrize("build", [segformer, mobilevit, mobilenet, upernet, beit])
def test_the_mean_loss_of_a_segmentation_is_the_models_own(build):
    model, data = built(build), pictures(32)
    if build is beit:
        data = pictures(16)
    with torch.no_grad():
        own = [(int((b["labels"] != IGNORED).sum()), float(model(**b).loss)) for b in data]
    expected = sum(n * loss for n, loss in own) / sum(n for n, _ in own)
    assert mean_loss(model, data) == pytest.approx(expected, rel=1e-9)
    given = torch.nn.CrossEntropyLoss(ignore_index=IGNORED)
    assert mean_loss(model, data, loss=given) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("build", [upernet, dpt, beit])
def test_an_auxiliary_head_is_refused_and_may_be_left_out(build):
    model, data = built(build, head=True), pictures(16)
    with pytest.raises(sl.SpiritlevelError, match=r"auxiliary head.*model\.auxiliary_head = None"):
        sl.measure(model, data, measures="curvature.trace")
    model.auxiliary_head = None
    counted = scores = 0
    with torch.no_grad():
        for batch in data:
            labels = batch["labels"]
            z = F.interpolate(
                model(batch["pixel_values"]).logits, labels.shape[1:], mode="bilinear"
            )
            scores += float(F.cross_entropy(z, labels, ignore_index=IGNORED, reduction="sum"))
            counted += int((labels != IGNORED).sum())
    assert mean_loss(model, data) == pytest.approx(scores / counted, rel=1e-9)


@pytest.mark.nightly
def test_products_and_traces_of_a_segformer_are_those_of_its_own_loss():
    model, data = built(segformer), pictures(32)
    parameters = list(model.decode_head.parameters())
    counts = [int((batch["labels"] != IGNORED).sum()) for batch in data]
    loss = sum(n * model(**b).loss for n, b in zip(counts, data, strict=True)) / sum(counts)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    rows = [
        torch.cat(
            [part.flatten() for part in torch.autograd.grad(g, parameters, retain_graph=True)]
        )
        for g in torch.cat([gradient.flatten() for gradient in gradients])
    ]
    H, identity = torch.stack(rows), torch.eye(len(rows), dtype=torch.float64)
    chosen = {"layers": "decode_head*"}
    torch.testing.assert_close(
        sl.operator(model, data, **chosen) @ identity, H, rtol=1e-7, atol=1e-10
    )
    trace = sl.measure(model, data, measures="curvature.trace", method="exact", **chosen)
    assert trace["curvature.trace"].value == pytest.approx(float(H.trace()), rel=1e-8)


def mixtral(coefficient, output=True):
    config = transformers.MixtralConfig(
        vocab_size=12,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=10,
        max_position_embeddings=16,
        num_local_experts=3,
        num_experts_per_tok=2,
        output_router_logits=output,
        router_aux_loss_coef=coefficient,
        experts_implementation="eager",  # the others know no float64
    )
    return built(transformers.MixtralForCausalLM, config)


def tokens():
    ids = torch.randint(12, (3, 6), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("coefficient", [1e-6, 1e-3, 1.0])
def test_a_loss_of_the_routers_is_refused_however_small(coefficient):
    with pytest.raises(sl.SpiritlevelError, match=r"aux_loss.*output_router_logits = False"):
        sl.measure(mixtral(coefficient), [tokens()], measures="curvature.ggn_trace")


@pytest.mark.parametrize(("coefficient", "output"), [(0.0, True), (1.0, False)])
def test_without_a_loss_of_the_routers_the_loss_is_the_models_own(coefficient, output):
    model, batch = mixtral(coefficient, output), tokens()
    with torch.no_grad():
        own = float(model(**batch).loss)
    assert mean_loss(model, [batch]) == pytest.approx(own, rel=1e-6)  # float32 in transformers


def test_a_difference_below_a_percent_is_noticed():
    """Whatever a model adds to its loss: half a percent of it once was left out silently."""
    model, batch = mixtral(0.0, output=False), tokens()
    forward = model.forward

    def penalized(*args, **kwargs):
        output = forward(*args, **kwargs)
        if output.loss is not None:
            output.loss = 1.005 * output.loss
        return output

    model.forward = penalized
    with pytest.raises(sl.SpiritlevelError, match="the model's own loss is"):
        mean_loss(model, [batch])
