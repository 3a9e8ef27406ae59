import pytest
import timm
import torch
from torch import nn

from lca.errors import LcaError
from lca.tuning.ssf import ScaledShifted, Ssf, SsfOptions

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def attached(vit, **options):
    tuner = Ssf(SsfOptions(**options))
    tuner.attach(vit, torch.Generator().manual_seed(1))
    return tuner


@torch.no_grad()
def features(vit):
    return vit.forward_head(vit.forward_features(VIEWS), pre_logits=True)


@torch.no_grad()
def by_hand(vit, tensors):
    """An untouched transformer with a hook that scales and shifts each output."""
    handles = []
    for name in {key.rpartition(".")[0] for key in tensors}:
        scale, shift = tensors[f"{name}.scale"], tensors[f"{name}.shift"]

        def change(module, inputs, output, scale=scale, shift=shift):
            return output * scale + shift

        handles.append(vit.get_submodule(name).register_forward_hook(change))
    result = features(vit)
    for handle in handles:
        handle.remove()
    return result


@pytest.mark.parametrize(
    ("kind", "last"), [("plain", "norm"), ("registers_average", "fc_norm"), ("attention_pool", "norm")]
)
def test_by_hand(make_vit, kind, last):
    vit, plain = make_vit(kind), make_vit(kind)
    tuner = attached(vit, noise=0.3)
    layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    expected = {f"blocks.{number}.{name}" for number in range(2) for name in layers}
    assert {key.rpartition(".")[0] for key in tuner.tensors()} == {"patch_embed.proj", last} | expected
    assert not torch.allclose(features(vit), features(plain), atol=1e-2)
    torch.testing.assert_close(features(vit), by_hand(plain, tuner.tensors()), rtol=1e-5, atol=1e-5)


def test_the_noise_of_the_start(make_vit):
    vit = make_vit()
    attached(vit, noise=0)
    assert torch.equal(features(vit), features(make_vit()))
    layer = ScaledShifted(nn.Linear(2, 5000), 0.02, torch.Generator().manual_seed(0))
    for values, mean in ((layer.scale.detach(), 1), (layer.shift.detach(), 0)):
        assert float(values.mean()) == pytest.approx(mean, abs=0.001)
        assert float(values.std()) == pytest.approx(0.02, rel=0.05)


def test_the_published_number_of_parameters():
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    assert sum(each.numel() for each in attached(vit).parameters().values()) == 205_824


def test_folding_gives_a_bias_to_a_layer_without_one(make_vit):
    vit = make_vit(pre_norm=True, qkv_bias=False)
    tuner = attached(vit, noise=0.3)
    before = features(vit)
    tuner.fold()
    assert vit.patch_embed.proj.bias is not None
    assert vit.blocks[0].attn.qkv.bias is not None
    torch.testing.assert_close(features(vit), before, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_folded_stays(make_vit):
    """An RMS norm has no place for a shift."""
    vit = make_vit(norm_layer="rmsnorm")
    tuner = attached(vit, noise=0.3)
    before = features(vit)
    tuner.fold()
    assert {key.split(".")[-2] for key in tuner.parameters()} == {"norm1", "norm2", "norm"}
    torch.testing.assert_close(features(vit), before, rtol=1e-5, atol=1e-5)
    tuner.detach()
    assert not any(isinstance(module, ScaledShifted) for module in vit.modules())


def test_layers_that_are_not_there_are_named():
    vit = timm.create_model("vit_tiny_patch16_224", block_fn=timm.models.vision_transformer.ParallelScalingBlock)
    with pytest.raises(LcaError, match=r"blocks\.0\.norm1"):
        attached(vit)
