import pytest
import timm
import torch

from lca.tuning.vpt import Vpt, VptOptions

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def attached(vit, **options):
    tuner = Vpt(VptOptions(**{"tokens": 3, "spread": 1.0, **options}))
    tuner.attach(vit, torch.Generator().manual_seed(1))
    return tuner


def features(vit):
    return vit.forward_head(vit.forward_features(VIEWS), pre_logits=True)


@torch.no_grad()
def by_hand(vit, tensors):
    """An untouched transformer, block by block, with the tokens concatenated here."""
    x = vit.norm_pre(vit._pos_embed(vit.patch_embed(VIEWS)))
    length = x.shape[1]
    if "vpt" in tensors:
        x = torch.cat([x, tensors["vpt"].expand(3, -1, -1)], 1)
    for number, block in enumerate(vit.blocks):
        if "vpt" not in tensors:
            x = torch.cat([x[:, :length], tensors[f"blocks.{number}.vpt"].expand(3, -1, -1)], 1)
        x = block(x)
    return vit.forward_head(vit.norm(x[:, :length]), pre_logits=True)


@pytest.mark.parametrize("choice", ["deep", "shallow"])
@pytest.mark.parametrize("kind", ["plain", "distilled", "registers_average", "registers_class_token", "attention_pool"])
def test_by_hand(make_vit, kind, choice):
    vit, plain = make_vit(kind), make_vit(kind)
    tuner = attached(vit, kind=choice)
    assert len(tuner.parameters()) == (2 if choice == "deep" else 1)
    with torch.no_grad():
        assert not torch.allclose(features(vit), features(plain), atol=1e-3)
        torch.testing.assert_close(features(vit), by_hand(plain, tuner.tensors()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("choice", ["deep", "shallow"])
@pytest.mark.parametrize(("spread", "equal"), [(0.0, True), (0.5, False)])
def test_zero_tokens_learn_but_stay_equal(make_vit, choice, spread, equal):
    vit = make_vit()
    tuner = attached(vit, kind=choice, spread=spread)
    assert all(bool(each.any()) == (spread > 0) for each in tuner.tensors().values())
    features(vit).square().sum().backward()
    for parameter in tuner.parameters().values():
        assert parameter.grad.abs().max() > 0
        assert torch.allclose(parameter.grad[0], parameter.grad[1], rtol=1e-3, atol=1e-6) == equal


def test_the_initial_spread(make_vit):
    tokens = attached(make_vit(), tokens=200, spread=0.3).tensors()["blocks.1.vpt"]
    assert 0.297 < float(tokens.abs().max()) <= 0.3


@pytest.mark.parametrize("choice", ["deep", "shallow"])
def test_the_blocks_can_still_be_counted(make_vit, choice):
    vit, plain = make_vit(), make_vit()
    tuner = attached(vit, kind=choice)
    assert len(vit.blocks) == 2
    blocks = vit.blocks
    tuner.detach()
    assert vit.blocks is not blocks
    assert type(vit.blocks) is type(plain.blocks)


@pytest.mark.parametrize(
    ("choice", "tokens", "count"),
    [("deep", 5, 46_080), ("deep", 30, 276_480), ("shallow", 5, 3_840), ("shallow", 30, 23_040)],
)
def test_the_published_number_of_parameters(choice, tokens, count):
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    tuner = attached(vit, kind=choice, tokens=tokens)
    assert sum(each.numel() for each in tuner.parameters().values()) == count
