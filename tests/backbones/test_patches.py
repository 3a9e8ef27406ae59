"""The first layer as a matrix product."""

import copy

import pytest
import timm
import torch

from lca.backbones.patches import PatchProjection, project_by_product

SHAPE = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 0}


def test_the_product_gives_what_the_convolution_gives_with_the_same_parameters():
    vit = timm.create_model("vit_tiny_patch16_224", **SHAPE).double()
    plain = copy.deepcopy(vit)
    project_by_product(vit)
    assert type(vit.patch_embed.proj) is PatchProjection
    assert vit.state_dict().keys() == plain.state_dict().keys()
    images = torch.randn(3, 3, 24, 24, dtype=torch.double)
    torch.testing.assert_close(vit(images), plain(images))
    for model in (vit, plain):
        model(images).square().sum().backward()
    torch.testing.assert_close(vit.patch_embed.proj.weight.grad, plain.patch_embed.proj.weight.grad)


@pytest.mark.parametrize("change", [{"stride": (4, 4)}, {"padding": (1, 1)}, {"dilation": (2, 2)}])
def test_a_convolution_of_another_kind_stays(change):
    vit = timm.create_model("vit_tiny_patch16_224", **SHAPE)
    for name, value in change.items():
        setattr(vit.patch_embed.proj, name, value)
    project_by_product(vit)
    assert type(vit.patch_embed.proj) is torch.nn.Conv2d
