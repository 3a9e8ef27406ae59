"""Prefixes, token prompts, and the insertions that prompt methods share with them."""

import math
import warnings

import pytest
import timm
import torch
from torch import nn

from lca.errors import LcaError
from lca.tuning.insertion import PrefixAttention, TokenInsertion, inserting
from lca.tuning.prefix import Prefix, PrefixOptions, chosen_blocks
from lca.tuning.prompt import Prompt, PromptOptions

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
KINDS = ["plain", "distilled", "registers_average", "registers_class_token", "attention_pool"]


def attached(kind, vit, **options):
    tuner = kind(kind.Options(**options))
    tuner.attach(vit, torch.Generator().manual_seed(1))
    return tuner


def features(vit, views=VIEWS):
    return vit.forward_head(vit.forward_features(views), pre_logits=True)


def random(*shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Prefixes


def attention_by_hand(attention, x, keys, values):
    """Explicit softmax, head by head; keys and values (batch, tokens, width)."""
    size = attention.head_dim
    query, key, value = attention.qkv(x).chunk(3, -1)
    heads = []
    for head in range(attention.num_heads):
        part = slice(head * size, (head + 1) * size)
        q, k = attention.q_norm(query[..., part]), attention.k_norm(key[..., part])
        k, v = torch.cat([keys[..., part], k], 1), torch.cat([values[..., part], value[..., part]], 1)
        heads.append((q @ k.mT / math.sqrt(size)).softmax(-1) @ v)
    mixed = attention.norm(torch.cat(heads, -1))
    return attention.proj(mixed if attention.gate is None else mixed * attention.gate(x).sigmoid())


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"scale_norm": True, "gated": True}, {"attn_head_dim": 5}])
@pytest.mark.parametrize("of", ["own", "batch", "each"])
def test_prefix_attention_by_hand(changes, of):
    torch.manual_seed(0)
    inner = timm.layers.Attention(24, num_heads=2, qkv_bias=True, norm_layer=nn.LayerNorm, **changes).eval()
    width = inner.num_heads * inner.head_dim
    x, own, each = random(3, 7, 24), random(2, 4, width), random(3, 2, 6, width)
    prefix = PrefixAttention(inner, own)
    rows = {"own": own.expand(3, -1, -1, -1), "batch": each[:1].expand(3, -1, -1, -1), "each": each}[of]
    with inserting({} if of == "own" else {prefix: each[0] if of == "batch" else each}):
        found = prefix(x)
    torch.testing.assert_close(found, attention_by_hand(inner, x, rows[:, 0], rows[:, 1]), rtol=1e-4, atol=1e-5)


def test_prefixes_are_in_the_chosen_blocks(make_vit):
    vit = make_vit(depth=4)
    tuner = attached(Prefix, vit, tokens=3, layers=(0, 0.5))
    assert {name: tuple(each.shape) for name, each in tuner.parameters().items()} == {
        "blocks.0.attn.prefix": (2, 3, 24),
        "blocks.2.attn.prefix": (2, 3, 24),
    }
    assert [type(block.attn) is PrefixAttention for block in vit.blocks] == [True, False, True, False]
    other = make_vit(depth=4)
    attached(Prefix, other, tokens=3, layers=(0,))
    assert not torch.allclose(features(vit), features(other), atol=1e-3)


@pytest.mark.parametrize(
    ("layers", "depth", "expected"),
    [((0, 1), 12, [0, 1]), ((3, 1, 3), 12, [1, 3]), ((0.0, 0.5, 0.99), 12, [0, 6, 11]), ((0.4, 1), 2, [0, 1])],
)
def test_layers_are_numbers_or_shares(layers, depth, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen_blocks(PrefixOptions(layers=layers).layers, depth) == expected


def test_layers_beyond_the_last_are_clipped_with_a_warning():
    with pytest.warns(UserWarning, match=r"layers \[2, 4\] are clipped to 1: the transformer has 2 blocks"):
        assert chosen_blocks((0, 2, 4), 2) == [0, 1]


@pytest.mark.parametrize("layers", [(), (-1,), (1.5,), (0, 1.0)])
def test_layers_that_are_neither_are_refused(layers):
    with pytest.raises(ValueError, match=r"shares of the depth in \[0, 1\)"):
        PrefixOptions(layers=layers)


@pytest.mark.parametrize("kind", [Prefix, Prompt])
def test_the_initial_spread(make_vit, kind):
    for spread in (1.0, 0.2):
        changes = {"layers": (0,)} if kind is Prefix else {}
        (values,) = attached(kind, make_vit(), tokens=100, spread=spread, **changes).tensors().values()
        assert 0.99 * spread < float(values.abs().max()) <= spread
        assert float(values.std()) == pytest.approx(spread / math.sqrt(3), rel=0.05)


def test_other_attentions_are_refused(make_vit):
    for changes, given in (
        ({"attn_layer": "diff"}, "DiffAttention"),
        ({"block_fn": timm.models.vision_transformer.ParallelScalingBlock}, "ParallelScalingBlock"),
    ):
        with pytest.raises(LcaError, match=f"prefixes need timm's plain Attention, got {given}"):
            attached(Prefix, make_vit(**changes), layers=(0,))


def test_masks_are_refused_with_prefixes(make_vit):
    vit = make_vit()
    attached(Prefix, vit, layers=(0,))
    with pytest.raises(LcaError, match="masked"):
        vit.forward_features(VIEWS, is_causal=True)


def test_attention_dropout_is_kept(make_vit):
    vit = make_vit(attn_drop_rate=0.5)
    attached(Prefix, vit, layers=(0, 1))
    assert torch.equal(features(vit), features(vit))
    assert not torch.allclose(features(vit.train()), features(vit.train()))


# Token prompts


@torch.no_grad()
def prompted_by_hand(vit, prompts, position, pool):
    first = vit.num_prefix_tokens
    x = vit.norm_pre(vit._pos_embed(vit.patch_embed(VIEWS)))
    prompts = prompts.expand(3, -1, -1) + (vit.pos_embed[:, :1] if position == "class" else 0)
    x = torch.cat([x[:, :first], prompts, x[:, first:]], 1)
    for block in vit.blocks:
        x = block(x)
    x, end = vit.norm(x), first + prompts.shape[1]
    if pool == "backbone":
        return vit.forward_head(torch.cat([x[:, :first], x[:, end:]], 1), pre_logits=True)
    mean = x[:, first:end].mean(1)
    return vit.fc_norm(mean if vit.attn_pool is None else vit.attn_pool(mean[:, None]))


@pytest.mark.parametrize("pool", ["backbone", "prompts"])
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_by_hand(make_vit, kind, pool):
    vit, plain = make_vit(kind), make_vit(kind)
    tuner = attached(Prompt, vit, tokens=3, pool=pool)
    with torch.no_grad():
        assert not torch.allclose(features(vit), features(plain), atol=1e-3)
        expected = prompted_by_hand(plain, tuner.tensors()["prompt"], "none", pool)
        torch.testing.assert_close(features(vit), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pool", ["backbone", "prompts"])
@pytest.mark.parametrize("kind", ["plain", "distilled"])
def test_prompts_at_the_position_of_the_class_token(make_vit, kind, pool):
    vit, plain, other = make_vit(kind), make_vit(kind), make_vit(kind)
    for each in (vit, plain, other):
        each.pos_embed.data *= 10
    tuner = attached(Prompt, vit, position="class", pool=pool)
    attached(Prompt, other, position="none", pool=pool)
    with torch.no_grad():
        assert not torch.allclose(features(vit), features(other), atol=1e-3)
        expected = prompted_by_hand(plain, tuner.tensors()["prompt"], "class", pool)
        torch.testing.assert_close(features(vit), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["registers_average", "attention_pool", "registers_class_token"])
def test_a_class_token_without_position_is_an_error(make_vit, kind):
    vit = make_vit(kind)
    with pytest.raises(LcaError, match="position: none"):
        attached(Prompt, vit, position="class")
    assert torch.equal(features(vit), features(make_vit(kind)))


@pytest.mark.parametrize("pool", ["backbone", "prompts"])
def test_detached_prompts_leave_nothing(make_vit, pool):
    vit, plain = make_vit(), make_vit()
    attached(Prompt, vit, pool=pool).detach()
    assert [(name, type(each)) for name, each in vit.named_modules()] == [
        (name, type(each)) for name, each in plain.named_modules()
    ]


# Rows that are chosen outside


def insertions(tuner):
    return [tuner.insertion] if isinstance(tuner, Prompt) else list(tuner.insertions.values())


CHOICES = [
    (Prompt, {"pool": "prompts", "position": "class"}, (6, 24)),
    (Prompt, {"pool": "backbone"}, (6, 24)),
    (Prefix, {"layers": (0, 1)}, (2, 6, 24)),
]


@pytest.mark.parametrize(("kind", "options", "shape"), CHOICES)
def test_rows_for_every_image_of_its_own(make_vit, kind, options, shape):
    """A batch with rows per image is what the images give one by one, each with its rows for a whole batch."""
    vit = make_vit()
    tuner = attached(kind, vit, tokens=2, **options)
    before, rows = features(vit), random(3, *shape)
    with inserting(dict.fromkeys(insertions(tuner), rows)):
        together = features(vit)
    for number in range(3):
        with inserting(dict.fromkeys(insertions(tuner), rows[number])):
            alone = features(vit, VIEWS[number : number + 1])
        torch.testing.assert_close(together[number : number + 1], alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together, before, atol=1e-3)
    assert torch.equal(features(vit), before)


@pytest.mark.parametrize(("kind", "options", "shape"), CHOICES)
def test_gradients_reach_what_the_rows_were_chosen_from(make_vit, kind, options, shape):
    vit = make_vit()
    tuner = attached(kind, vit, **options)
    pool = nn.Parameter(random(4, *shape))
    with inserting(dict.fromkeys(insertions(tuner), pool[torch.tensor([0, 2, 0])])):
        features(vit).square().sum().backward()
    assert [bool(each.any()) for each in pool.grad] == [True, False, True, False]
    assert all(each.grad is None for each in tuner.parameters().values())


@pytest.mark.parametrize(("kind", "options", "shape"), CHOICES)
def test_the_query_sees_no_prompts(make_vit, kind, options, shape):
    vit = make_vit()
    tuner = attached(kind, vit, **options)
    prompted = features(vit)
    with inserting(dict.fromkeys(insertions(tuner))):
        assert torch.equal(features(vit), features(make_vit()))
    assert torch.equal(features(vit), prompted)


def test_insertions_need_no_rows_of_their_own(make_vit):
    vit, plain = make_vit(), make_vit()
    vit.blocks[1].attn = PrefixAttention(vit.blocks[1].attn, None)
    vit.blocks = TokenInsertion(*vit.blocks, own=None, at=1)
    assert list(vit.blocks.parameters()) == [each for block in vit.blocks for each in block.parameters()]
    assert torch.equal(features(vit), features(plain))
    with inserting({vit.blocks: random(2, 24)}):
        assert not torch.allclose(features(vit), features(plain), atol=1e-3)


def test_a_parameter_that_is_inserted_is_not_registered(make_vit):
    vit = make_vit()
    insertion = attached(Prompt, vit).insertion
    names = [name for name, _ in vit.named_parameters()]
    with inserting({insertion: nn.Parameter(random(2, 24))}):
        assert [name for name, _ in vit.named_parameters()] == names


def test_an_error_puts_the_own_rows_back(make_vit):
    insertion = attached(Prompt, make_vit()).insertion
    with pytest.raises(ZeroDivisionError), inserting({insertion: None}):
        raise ZeroDivisionError
    assert insertion.rows() is insertion.own


def test_insertions_nest(make_vit):
    insertion = attached(Prompt, make_vit()).insertion
    outer = random(2, 24)
    with inserting({insertion: outer}):
        with inserting({insertion: None}):
            assert insertion.rows() is None
        assert insertion.rows() is outer


@pytest.mark.parametrize("options", [{"tokens": 0}, {"pool": "mean"}, {"position": "grid"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="PromptOptions"):
        PromptOptions(**options)
