"""What holds for every registered tuner."""

import pytest
import torch

from lca.errors import LcaError
from lca.tuning import tuners

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
KINDS = ["plain", "distilled", "registers_average", "registers_class_token", "attention_pool"]


def features(vit):
    with torch.no_grad():
        return vit.forward_head(vit.forward_features(VIEWS), pre_logits=True)


def disturbed(tuner):
    random = torch.Generator().manual_seed(1)
    return {name: each + 0.1 * torch.randn(each.shape, generator=random) for name, each in tuner.tensors().items()}


@pytest.fixture(params=list(tuners))
def name(request):
    return request.param


@pytest.fixture
def attach(make_vit, make_tuning, name):
    def build(kind="plain", seed=1):
        vit = make_vit(kind)
        tuner = tuners[name](make_tuning(name))
        tuner.attach(vit, torch.Generator().manual_seed(seed))
        return vit, tuner

    return build


@pytest.mark.parametrize("kind", KINDS)
def test_attach_load_and_detach(attach, make_vit, kind):
    before = {key: each.clone() for key, each in make_vit(kind).state_dict().items()}
    vit, tuner = attach(kind)
    tuner.load(disturbed(tuner))
    changed = features(vit)
    assert changed.shape == (3, 24)
    if tuner.parameters():
        assert not torch.allclose(changed, features(make_vit(kind)), atol=1e-3)
    tuner.detach()
    after = vit.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert not any(each.requires_grad for each in vit.parameters())
    assert torch.equal(features(vit), features(make_vit(kind)))


def test_load_overwrites_in_place_and_tensors_are_copies(attach):
    _, tuner = attach()
    live = {key: id(each) for key, each in tuner.parameters().items()}
    copies, values = tuner.tensors(), disturbed(tuner)
    kept = {key: each.clone() for key, each in copies.items()}
    tuner.load(values)
    assert {key: id(each) for key, each in tuner.parameters().items()} == live
    assert all(torch.equal(tuner.tensors()[key], values[key]) for key in values)
    assert all(torch.equal(copies[key], kept[key]) for key in kept)


def test_names_and_values_are_the_same_between_runs(attach):
    one, two = attach()[1].tensors(), attach()[1].tensors()
    assert list(one) == list(two)
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_every_tuned_tensor_receives_a_gradient(attach):
    vit, tuner = attach()
    tuner.load(disturbed(tuner))
    trainable = {id(each) for each in vit.parameters() if each.requires_grad}
    assert trainable == {id(each) for each in tuner.parameters().values()}
    if not trainable:
        return
    vit.forward_head(vit.forward_features(VIEWS), pre_logits=True).square().sum().backward()
    for key, parameter in tuner.parameters().items():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def test_a_missing_tensor_is_an_error(attach):
    _, tuner = attach()
    values = tuner.tensors()
    if values:
        values.pop(next(iter(values)))
        with pytest.raises(LcaError):
            tuner.load(values)
    else:
        tuner.load({})


def test_a_feature_does_not_depend_on_its_neighbours(attach):
    vit, tuner = attach()
    tuner.load(disturbed(tuner))
    with torch.no_grad():
        alone = vit.forward_head(vit.forward_features(VIEWS[1:2]), pre_logits=True)
    torch.testing.assert_close(features(vit)[1:2], alone, rtol=1e-4, atol=1e-5)
