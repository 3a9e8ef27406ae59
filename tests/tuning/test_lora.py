import json

import peft
import pytest
import torch

from lca.errors import LcaError
from lca.tuning.lora import Lora, LoraLinear, LoraOptions, read_peft

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TARGETS = [("qkv",), ("qkv", "fc1", "fc2"), ("proj",)]


def features(vit):
    with torch.no_grad():
        return vit.forward_head(vit.forward_features(VIEWS), pre_logits=True)


def attached(vit, seed=1, trained=True, **options):
    tuner = Lora(LoraOptions(**{"rank": 4, "alpha": 6.0, **options}))
    random = torch.Generator().manual_seed(seed)
    tuner.attach(vit, random)
    if trained:  # fresh LoRA changes nothing, so give B values
        tuner.load(
            {name: each + 0.1 * torch.randn(each.shape, generator=random) for name, each in tuner.tensors().items()}
        )
    return tuner


def peft_config(targets, **changes):
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": list(targets), **changes})


def into_peft(model, tensors):
    state = {f"base_model.model.{name}.weight": each for name, each in tensors.items()}
    result = peft.set_peft_model_state_dict(model, state)
    assert not result.unexpected_keys


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("kind", ["plain", "distilled", "registers_average"])
def test_outputs_equal_the_peft_library(make_vit, targets, kind):
    plain, vit = make_vit(kind), make_vit(kind)
    tuner = attached(vit, targets=targets)
    theirs = peft.get_peft_model(make_vit(kind), peft_config(targets)).eval()
    into_peft(theirs, tuner.tensors())
    assert not torch.allclose(features(vit), features(plain), atol=1e-3)
    torch.testing.assert_close(features(vit), features(theirs.base_model.model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("targets", TARGETS)
def test_peft_reads_what_we_write(make_vit, tmp_path, targets):
    vit = make_vit()
    tuner = attached(vit, targets=targets)
    tuner.write_adapter(tmp_path)
    theirs = peft.PeftModel.from_pretrained(make_vit(), str(tmp_path)).eval()
    torch.testing.assert_close(features(vit), features(theirs.base_model.model), rtol=1e-4, atol=1e-5)
    adapted = {name.rpartition(".lora_A")[0] for name, _ in theirs.named_parameters() if ".lora_A" in name}
    assert len(adapted) == 2 * len(targets)  # nothing outside the blocks


@pytest.mark.parametrize("targets", [("qkv",), ("fc1", "qkv")])
def test_we_read_what_peft_writes(make_vit, tmp_path, targets):
    theirs = peft.get_peft_model(make_vit(), peft_config(targets, lora_dropout=0.25)).eval()
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    theirs.save_pretrained(str(tmp_path))
    tensors, options = read_peft(tmp_path)
    assert options == LoraOptions(targets=targets, rank=4, alpha=6.0, dropout=0.25)
    vit = make_vit()
    tuner = Lora(options)
    tuner.attach(vit, torch.Generator())
    assert set(tensors) == set(tuner.parameters())
    tuner.load(tensors)
    torch.testing.assert_close(features(vit), features(theirs.base_model.model), rtol=1e-4, atol=1e-5)


def test_what_we_write_we_read(make_vit, tmp_path):
    tuner = attached(make_vit(), targets=("fc2", "qkv"), dropout=0.5)
    tuner.write_adapter(tmp_path)
    tensors, options = read_peft(tmp_path)
    assert options == tuner.options
    assert all(torch.equal(tensors[name], each) for name, each in tuner.tensors().items())


def test_an_adapter_beyond_the_blocks_is_refused(make_vit, tmp_path):
    """For peft `proj` also names the convolution of the patches; reading only the rest would change the outputs."""
    peft.get_peft_model(make_vit(), peft_config(("proj",))).save_pretrained(str(tmp_path))
    with pytest.raises(LcaError, match=r"patch_embed\.proj"):
        read_peft(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"use_dora": True}, {"use_rslora": True}, {"bias": "lora_only"}, {"rank_pattern": {"qkv": 2}}]
)
def test_adapters_with_extras_are_refused(make_vit, tmp_path, changes):
    peft.get_peft_model(make_vit(), peft_config(("qkv",), **changes)).save_pretrained(str(tmp_path))
    with pytest.raises(LcaError, match="not a plain LoRA adapter"):
        read_peft(tmp_path)


def test_another_kind_of_adapter_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    with pytest.raises(LcaError, match="IA3"):
        read_peft(tmp_path)


def test_a_fresh_update_is_none(make_vit):
    vit, plain = make_vit(), make_vit()
    attached(vit, trained=False)
    assert torch.equal(features(vit), features(plain))


def test_only_the_update_can_be_trained(make_vit):
    vit = make_vit()
    tuner = attached(vit, targets=("qkv", "fc1"))
    trainable = {id(each) for each in vit.parameters() if each.requires_grad}
    assert trainable == {id(each) for each in tuner.parameters().values()}
    assert len(tuner.parameters()) == 2 * 2 * 2


def test_by_hand():
    linear = torch.nn.Linear(5, 7)
    layer = LoraLinear(linear, LoraOptions(rank=2, alpha=6.0), torch.Generator().manual_seed(0))
    layer.up.data.normal_()
    x = torch.randn(4, 5)
    torch.testing.assert_close(layer(x), x @ (linear.weight + 3 * layer.up @ layer.down).T + linear.bias)


def test_the_initial_spread_is_pefts_gaussian():
    layer = LoraLinear(torch.nn.Linear(4000, 3), LoraOptions(rank=8), torch.Generator().manual_seed(0))
    assert float(layer.down.detach().std()) == pytest.approx(1 / 8, rel=0.02)


def test_dropout_is_active_in_training_only(make_vit):
    vit = make_vit()
    attached(vit, dropout=0.5)
    plain = make_vit()
    attached(plain, dropout=0.0)
    assert torch.equal(features(vit.eval()), features(plain.eval()))
    vit.train()
    assert not torch.allclose(features(vit), features(vit))
    assert not torch.allclose(features(vit), features(plain))


@pytest.mark.parametrize("training", [True, False])
def test_an_update_takes_over_the_mode(make_vit, training):
    vit = make_vit().train(training)
    attached(vit, dropout=0.5)
    assert {module.training for module in vit.modules()} == {training}


def test_unknown_targets_are_named(make_vit):
    with pytest.raises(LcaError, match=r"no linear layers named \['query'\]; it has \['fc1', 'fc2', 'proj', 'qkv'\]"):
        attached(make_vit(), targets=("query",))


def test_the_patch_projection_is_not_a_target(make_vit):
    tuner = attached(make_vit(), targets=("proj",))
    assert all(name.startswith("blocks.") for name in tuner.parameters())
