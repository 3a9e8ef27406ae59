import pytest
import timm
import torch
from torch.nn.functional import linear

from lca.errors import LcaError
from lca.tuning.adapter import Adapter, AdapterOptions

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def attached(vit, trained=True, **options):
    tuner = Adapter(AdapterOptions(**{"bottleneck": 4, **options}))
    random = torch.Generator().manual_seed(1)
    tuner.attach(vit, random)
    if trained:  # a fresh adapter adds nothing, so give it values
        noise = {name: 0.3 * torch.randn(each.shape, generator=random) for name, each in tuner.tensors().items()}
        tuner.load({name: each + noise[name] for name, each in tuner.tensors().items()})
    return tuner


@torch.no_grad()
def features(vit):
    return vit.forward_head(vit.forward_features(VIEWS), pre_logits=True)


@torch.no_grad()
def by_hand(vit, tensors, scale):
    """The blocks of an untouched transformer with the adapter's formula written out."""
    x = vit.norm_pre(vit._pos_embed(vit.patch_embed(VIEWS)))
    for number, block in enumerate(vit.blocks):
        down, down_bias, up, up_bias = (
            tensors[f"blocks.{number}.adapter.{name}"] for name in ("down", "down_bias", "up", "up_bias")
        )
        x = x + block.ls1(block.attn(block.norm1(x)))
        beside = linear(linear(x, down, down_bias).clamp(min=0), up, up_bias)
        x = x + block.ls2(block.mlp(block.norm2(x))) + scale * beside
    return vit.forward_head(vit.norm(x), pre_logits=True)


@pytest.mark.parametrize("scale", [0.1, 0.7])
@pytest.mark.parametrize("kind", ["plain", "registers_class_token", "registers_average", "attention_pool"])
def test_by_hand(make_vit, kind, scale):
    """One of the kinds has a layer scale, which the adapter is beside of."""
    vit, plain = make_vit(kind), make_vit(kind)
    tuner = attached(vit, scale=scale)
    assert not torch.allclose(features(vit), features(plain), atol=1e-3)
    torch.testing.assert_close(features(vit), by_hand(plain, tuner.tensors(), scale), rtol=1e-5, atol=1e-5)


def test_a_fresh_adapter_adds_nothing(make_vit):
    vit, plain = make_vit(), make_vit()
    tuner = attached(vit, trained=False)
    assert torch.equal(features(vit), features(plain))
    values = tuner.tensors()
    assert all(not each.any() for name, each in values.items() if not name.endswith(".down"))


def test_the_initial_spread_is_that_of_a_linear_layer(make_vit):
    """Kaiming-uniform with a = sqrt(5) is uniform within 1 / sqrt(width)."""
    tuner = attached(make_vit(), trained=False, bottleneck=200)
    down = tuner.tensors()["blocks.0.adapter.down"]
    assert down.shape == (200, 24)
    assert 0.99 < float(down.abs().max()) * 24**0.5 <= 1
    assert float(down.std()) == pytest.approx((1 / 24 / 3) ** 0.5, rel=0.02)


def test_dropout_is_active_in_training_only(make_vit):
    vit, plain = make_vit(), make_vit()
    attached(vit, dropout=0.5)
    attached(plain, dropout=0.0)
    assert torch.equal(features(vit), features(plain))
    assert not torch.allclose(features(vit.train()), features(vit.train()))
    assert torch.equal(features(plain.train()), features(plain.eval()))


@pytest.mark.parametrize(("bottleneck", "count"), [(64, 1_189_632), (16, 304_320)])
def test_the_published_number_of_parameters(bottleneck, count):
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    tuner = Adapter(AdapterOptions(bottleneck=bottleneck))
    tuner.attach(vit, torch.Generator())
    assert sum(each.numel() for each in tuner.parameters().values()) == count


def test_other_blocks_are_refused():
    vit = timm.create_model("vit_tiny_patch16_224", block_fn=timm.models.vision_transformer.ParallelScalingBlock)
    with pytest.raises(LcaError, match="ParallelScalingBlock"):
        attached(vit)
