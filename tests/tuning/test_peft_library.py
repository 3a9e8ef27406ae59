import sys

import peft
import pytest
import torch

from lca.errors import LcaError
from lca.recipe import load_recipe, merge_mappings, validate_recipe
from lca.tuning import tuners
from lca.tuning.lora import Lora, LoraOptions
from lca.tuning.peft_library import PeftOptions, PeftTuning

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
QKV = {"target_modules": ["qkv"]}
TYPES = {
    "lora": {"r": 4, **QKV},
    "adalora": {"total_step": 10, **QKV},
    "ia3": {"target_modules": ["qkv", "fc2"], "feedforward_modules": ["fc2"]},
    "loha": {"r": 2, **QKV},
    "lokr": {"r": 2, **QKV},
    "oft": {"oft_block_size": 4, **QKV},
    "hra": {"r": 2, **QKV},
    "ln_tuning": {"target_modules": ["norm1", "norm2"]},
    "randlora": {"r": 2, **QKV},
    "lily": {"r": 2, **QKV},
}


def attached(vit, name, options, seed=1):
    tuner = PeftTuning(PeftOptions(name=f"peft:{name}", options=options))
    tuner.attach(vit, torch.Generator().manual_seed(seed))
    return tuner


def disturb(tuner):
    random = torch.Generator().manual_seed(2)
    tuner.load({name: each + 0.1 * torch.randn(each.shape, generator=random) for name, each in tuner.tensors().items()})


@torch.no_grad()
def features(vit):
    return vit.forward_head(vit.forward_features(VIEWS), pre_logits=True)


@pytest.mark.parametrize("name", TYPES)
def test_attach_train_fold_and_detach(make_vit, name):
    vit, plain = make_vit(), make_vit()
    tuner = attached(vit, name, TYPES[name])
    assert {id(each) for each in vit.parameters() if each.requires_grad} == {id(p) for p in tuner.parameters().values()}
    again = attached(make_vit(), name, TYPES[name]).tensors()
    assert list(again) == list(tuner.tensors())
    assert all(torch.equal(again[key], each) for key, each in tuner.tensors().items())
    disturb(tuner)
    tuned = features(vit)
    assert not torch.allclose(tuned, features(plain), atol=1e-3)

    tuner.detach()
    before, after = plain.state_dict(), vit.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(after[key], each) for key, each in before.items())
    assert [type(each) for each in vit.modules()] == [type(each) for each in plain.modules()]
    assert torch.equal(features(vit), features(plain))
    assert not any(each.requires_grad for each in vit.parameters())

    tuner = attached(vit, name, TYPES[name])
    disturb(tuner)
    tuner.fold()
    torch.testing.assert_close(features(vit), tuned, rtol=1e-4, atol=1e-5)
    merges = name != "lily"  # the library cannot merge that one, so it stays
    assert bool(tuner.parameters()) == (not merges)
    assert (list(vit.state_dict()) == list(before)) == merges
    tuner.detach()
    torch.testing.assert_close(features(vit), tuned if merges else features(plain), rtol=1e-4, atol=1e-5)


def test_the_same_as_the_library_alone(make_vit):
    """IA3 multiplies the outputs of a layer: compare with the library's own model with the same vectors."""
    vit, options = make_vit(), {**QKV, "feedforward_modules": []}
    tuner = attached(vit, "ia3", options)
    disturb(tuner)
    theirs = peft.get_peft_model(make_vit(), peft.IA3Config(**options)).eval()
    state = {f"base_model.model.{name.removesuffix('.default')}": each for name, each in tuner.tensors().items()}
    assert not peft.set_peft_model_state_dict(theirs, state).unexpected_keys
    assert torch.equal(features(vit), features(theirs.base_model.model))
    layer, plain = vit.blocks[0].attn.qkv, make_vit().blocks[0].attn.qkv
    x = torch.randn(2, 24)
    vector = tuner.tensors()["blocks.0.attn.qkv.ia3_l.default"].flatten()
    torch.testing.assert_close(layer(x), plain(x) * vector, rtol=1e-4, atol=1e-5)


def test_its_lora_is_our_lora(make_vit):
    vit, other = make_vit(), make_vit()
    theirs = attached(vit, "lora", {"r": 4, "lora_alpha": 6, "init_lora_weights": "gaussian", **QKV})
    disturb(theirs)
    ours = Lora(LoraOptions(rank=4, alpha=6.0))
    ours.attach(other, torch.Generator())
    ours.load({name.removesuffix(".default.weight"): each for name, each in theirs.tensors().items()})
    torch.testing.assert_close(features(vit), features(other), rtol=1e-4, atol=1e-5)


def test_trained_biases_and_rewritten_weights_are_put_back(make_vit):
    for changes in ({"bias": "lora_only"}, {"init_lora_weights": "pissa"}, {"modules_to_save": ["norm"]}):
        vit, plain = make_vit(), make_vit()
        tuner = attached(vit, "lora", {"r": 4, **QKV, **changes})
        disturb(tuner)
        tuned = features(vit)
        tuner.fold()
        torch.testing.assert_close(features(vit), tuned, rtol=1e-4, atol=1e-5)
        other = make_vit()
        tuner = attached(other, "lora", {"r": 4, **QKV, **changes})
        disturb(tuner)
        tuner.detach()
        assert all(torch.equal(other.state_dict()[key], each) for key, each in plain.state_dict().items())


def test_the_start_depends_on_the_generator_only(make_vit):
    torch.manual_seed(1)
    one = attached(make_vit(), "lora", TYPES["lora"]).tensors()
    torch.manual_seed(2)
    two = attached(make_vit(), "lora", TYPES["lora"]).tensors()
    other = attached(make_vit(), "lora", TYPES["lora"], seed=2).tensors()
    assert all(torch.equal(each, two[key]) for key, each in one.items())
    assert any(not torch.equal(each, other[key]) for key, each in one.items())


def test_options_change_the_tuner(make_vit):
    shapes = [
        {tuple(each.shape) for each in attached(make_vit(), "lora", {"r": rank, **QKV}).tensors().values()}
        for rank in (2, 3)
    ]
    assert shapes == [{(2, 24), (72, 2)}, {(3, 24), (72, 3)}]


@pytest.mark.parametrize(
    ("name", "layers"),
    [("ia3", ["attn.qkv"]), ("lora", ["attn.qkv"]), ("loha", ["attn.qkv"]), ("ln_tuning", ["norm1", "norm2"])],
)
def test_without_options_the_layers_are_chosen(make_vit, name, layers):
    recipe = load_recipe("best", [f"tuning=peft:{name}"])
    tuner = PeftTuning(recipe.tuning)
    tuner.attach(make_vit(), torch.Generator())
    assert tuner.parameters()
    for parameter in tuner.parameters():
        assert any(f".{layer}." in parameter for layer in layers), parameter
    assert all(any(f".{layer}." in parameter for parameter in tuner.parameters()) for layer in layers)


def test_given_layers_are_kept(make_vit):
    tuned = attached(make_vit(), "ia3", {"target_modules": ["fc1"]}).tensors()
    assert tuned
    assert all(".mlp.fc1." in each for each in tuned)
    weights = {"target_parameters": ["mlp.fc1.weight"]}  # another way to choose
    assert not any(".qkv." in each for each in attached(make_vit(), "lora", weights).tensors())


def section(**tuning):
    return validate_recipe({"tuning": tuning})


def test_a_recipe_survives_dump_and_validation():
    recipe = section(name="peft:IA3", options={**QKV, "feedforward_modules": []}, feature_norm=True)
    assert recipe.tuning.name == "peft:ia3"
    assert tuners[recipe.tuning.name] is PeftTuning
    assert validate_recipe(recipe.dump()) == recipe
    assert recipe.dump()["tuning"]["options"] == {**QKV, "feedforward_modules": []}


def test_overrides_reach_the_options():
    recipe = load_recipe("best", ["tuning={name: peft:lora, options: {target_modules: [qkv]}}", "tuning.options.r=3"])
    assert recipe.tuning.options == {**QKV, "r": 3}
    merged = merge_mappings({"tuning": {"name": "peft:lora", "options": QKV}}, {"tuning": "lora"})
    assert merged == {"tuning": {"name": "lora"}}


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"name": "peft:ia4"}, "peft has no type 'ia4' .* did you mean 'ia3'"),
        ({"name": "peft:prefix_tuning"}, "peft has no type 'prefix_tuning'"),
        ({"name": "peft:"}, "peft:"),
        ({"name": "peft:lora", "options": {"rnk": 3}}, "peft:lora has no option 'rnk'"),
        ({"name": "peft:loha", "options": {"rank_dropot": 3}}, "no option 'rank_dropot'; did you mean 'rank_dropout'"),
        ({"name": "peft:lora", "options": {"inference_mode": True}}, "no option 'inference_mode'"),
        ({"name": "peft:adalora", "options": QKV}, "total_step"),
        ({"name": "peft:ia3", "option": {}}, "unknown key 'option'; did you mean 'options'"),
        (
            {"name": "peft:ia3", "target_modules": ["qkv"]},
            "tuning: 'target_modules' is an option of peft:ia3: put it under tuning.options",
        ),
        ({"name": "peft:lora", "r": 4}, "tuning: 'r' is an option of peft:lora: put it under tuning.options"),
        ({"name": "peft:lora", "rnk": 4}, "unknown key 'rnk'"),
        ({"name": "peft:ia4", "r": 4}, "unknown key 'r'"),
        ({"name": "pfet:ia3"}, "unknown tuner 'pfet:ia3'; did you mean 'peft:NAME'"),
    ],
)
def test_mistakes_are_named(tuning, message):
    with pytest.raises(LcaError, match=message):
        section(**tuning)


def test_layers_that_are_not_there_are_an_error_and_leave_nothing(make_vit):
    vit, plain = make_vit(), make_vit()
    for options in ({"target_modules": ["query"]}, {"target_modules": ["qkv"], "init_lora_weights": "nonsense"}):
        with pytest.raises(LcaError, match="peft:lora does not fit this transformer"):
            attached(vit, "lora", options)
        assert list(vit.state_dict()) == list(plain.state_dict())
        assert torch.equal(features(vit), features(plain))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(LcaError, match=r"pip install peft"):
        section(name="peft:ia3", options=QKV)
