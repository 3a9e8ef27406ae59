"""What holds for every registered tuner."""

import pytest
import torch

from lca.errors import LcaError
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.training.loop import FineTuning
from lca.tuning import tuners

VIEWS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
KINDS = ["plain", "distilled", "registers_average", "registers_class_token", "attention_pool"]


def features(vit):
    with torch.no_grad():
        return vit.forward_head(vit.forward_features(VIEWS), pre_logits=True)


def disturbed(tuner):
    random = torch.Generator().manual_seed(1)
    return {name: each + 0.1 * torch.randn(each.shape, generator=random) for name, each in tuner.tensors().items()}


@pytest.fixture(params=[*tuners, "peft:ia3"])
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


@pytest.mark.parametrize("kind", KINDS)
def test_folded_it_gives_the_same_features(attach, name, make_vit, kind):
    vit, tuner = attach(kind)
    tuner.load(disturbed(tuner))
    before = features(vit)
    tuner.fold()
    torch.testing.assert_close(features(vit), before, rtol=1e-5, atol=1e-5)
    stays = name in {"adapter", "vpt", "prefix", "prompt"}
    assert bool(tuner.parameters()) == stays
    assert (list(vit.state_dict()) == list(make_vit(kind).state_dict())) == (not stays)
    assert {id(each) for each in vit.parameters() if each.requires_grad} == set(map(id, tuner.parameters().values()))
    tuner.detach()  # takes out what stayed and leaves what was folded
    expected = features(make_vit(kind)) if stays or name == "none" else before
    torch.testing.assert_close(features(vit), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_what_is_attached_takes_over_the_mode(make_vit, make_tuning, name, training):
    vit = make_vit().train(training)
    tuners[name](make_tuning(name)).attach(vit, torch.Generator())
    assert {module.training for module in vit.modules()} == {training}


def test_attaching_leaves_the_global_generator_alone(attach):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    attach()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_other_values_can_be_swapped_in_for_one_pass(make_extractor, make_tuning, name, kind):
    extractor = make_extractor(make_tuning(name, feature_norm=True), kind).eval()
    own = extractor.tensors()
    other = {key: each + 0.1 * torch.ones_like(each).cumsum(-1).sin() for key, each in own.items()}
    before = extractor(VIEWS)
    swapped = extractor.forward_with(other, VIEWS)
    assert torch.equal(extractor(VIEWS), before)
    assert not torch.allclose(swapped, before, atol=1e-3)
    extractor.load(other)
    torch.testing.assert_close(extractor(VIEWS), swapped, rtol=1e-5, atol=1e-6)


def test_training_goes_on_from_its_state(make_setting, make_tuning, make_task, name):
    """An epoch in a process of its own, as it were, is the epoch that would have been; and it changes something."""
    task, ends = make_task(1, ("a", "b"), 5), []
    for restart in (False, True):
        setting, stored = make_setting(tuning=make_tuning(name, feature_norm=True)), {}
        before = setting.extractor.tensors()
        for epoch in range(2):
            if restart or epoch == 0:
                setting = make_setting(tuning=make_tuning(name, feature_norm=True))
                training = FineTuning(setting)
                training.load(stored)
            training.epoch(task, epoch, GrowingHeads(24, LinearOptions()))
            stored = training.state()
        ends.append(setting.extractor.tensors())
    assert all(torch.equal(each, ends[1][key]) for key, each in ends[0].items())
    assert not any(torch.equal(each, before[key]) for key, each in ends[0].items())


def test_it_can_be_exported_for_any_number_of_images(attach):
    class Features(torch.nn.Module):
        def __init__(self, vit):
            super().__init__()
            self.vit = vit

        def forward(self, views):
            return self.vit.forward_head(self.vit.forward_features(views), pre_logits=True)

    vit, tuner = attach()
    tuner.load(disturbed(tuner))
    shapes = {"views": {0: torch.export.Dim("images", min=2)}}
    with torch.no_grad():
        exported = torch.export.export(Features(vit), (VIEWS,), dynamic_shapes=shapes).module()
        expected = features(vit)[:2]
        torch.testing.assert_close(exported(VIEWS[:2]), expected, rtol=1e-5, atol=1e-5)


def test_the_docstring_begins_with_a_line_for_lists(name):
    assert (tuners[name].__doc__ or "").partition("\n")[0].strip().endswith(".")
