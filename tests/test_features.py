from unittest.mock import patch

import pytest
import torch

from lca.data.images import ImageSet, Pixels, packed
from lca.data.views import evaluation_view
from lca.device import Compute
from lca.features import FeatureExtractor, extract
from lca.methods.im import ImOptions, IncrementalMerging
from lca.progress import Progress
from lca.tuning.lora import LoraLinear


def disturbed(extractor):
    random = torch.Generator().manual_seed(1)
    return {name: each + 0.1 * torch.randn(each.shape, generator=random) for name, each in extractor.tensors().items()}


@pytest.mark.parametrize("kind", ["plain", "distilled", "registers_average", "registers_class_token", "attention_pool"])
def test_extraction_does_not_depend_on_the_batch(make_extractor, make_images, kind):
    extractor, images = make_extractor(kind=kind), make_images(("a", "b"), 5)
    whole = extract(extractor, images, Progress(), "x")
    assert whole.shape == (10, 24)
    assert whole.dtype == torch.float32
    for size in (1, 3, 10):
        parts = extract(extractor, images, Progress(), "x", batch_size=size)
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)


def test_extraction_is_the_transformer_on_the_evaluation_view(make_extractor, make_images):
    extractor, images = make_extractor(), make_images(("a",), 3)
    with torch.no_grad():
        views = evaluation_view(images.pixels, extractor.preprocessing, 1.0)
        expected = extractor.vit(views)  # a model without head returns its feature
    torch.testing.assert_close(extract(extractor, images, Progress(), "x"), expected)


def test_extraction_never_holds_more_than_a_batch(make_extractor, monkeypatch):
    draws = torch.Generator().manual_seed(0)
    shapes = torch.tensor([[9, 12], [20, 8], [11, 11], [8, 30], [16, 16]])
    row = torch.randint(256, (3 * int(shapes.prod(1).sum()),), generator=draws, dtype=torch.uint8)
    images = ImageSet(packed(row, shapes), torch.zeros(5, dtype=torch.long), ("a",))
    extractor, batches, plain = make_extractor(), [], Pixels.to
    expected = extract(extractor, images.pixels, Progress(), "x")
    monkeypatch.setattr(Pixels, "to", lambda self, device: batches.append(self.canvas.shape) or plain(self, device))
    monkeypatch.setattr(ImageSet, "pixels", property(lambda _: pytest.fail("the whole set was copied")))
    features = extract(extractor, images, Progress(), "x", batch_size=2)
    assert batches == [(2, 3, 20, 12), (2, 3, 11, 30), (1, 3, 16, 16)]
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


def test_the_centre_crop_counts(make_extractor, make_images):
    images, extractor = make_images(("a",), 3), make_extractor()
    usual, whole, half = (extract(extractor, images, Progress(), "x", centre_crop=crop) for crop in (None, 1.0, 0.5))
    assert torch.equal(usual, whole), "as the extractor was made"
    assert not torch.allclose(whole, half, atol=1e-3)


def test_extraction_leaves_the_mode_and_uses_evaluation(make_extractor, make_tuning, make_images):
    extractor, images = make_extractor(make_tuning("lora", dropout=0.5)), make_images(("a",), 3)
    extractor.load(disturbed(extractor))
    expected = extract(extractor.eval(), images, Progress(), "x")
    assert torch.equal(extract(extractor.train(), images, Progress(), "x"), expected)
    assert extractor.training


def test_no_images_give_no_features(make_extractor, make_images):
    none = make_images(("a",), 2).subset(torch.zeros(0, dtype=torch.long))
    assert extract(make_extractor(), none, Progress(), "x").shape == (0, 24)


def test_the_feature_norm_is_tuned_and_applied(make_extractor, make_tuning, make_images):
    plain, normed = make_extractor(), make_extractor(make_tuning(feature_norm=True))
    images = make_images(("a",), 4)
    features = extract(normed, images, Progress(), "x")
    expected = torch.nn.functional.layer_norm(extract(plain, images, Progress(), "x"), (24,))
    torch.testing.assert_close(features, expected)
    assert set(normed.tensors()) - set(plain.tensors()) == {"feature_norm.weight", "feature_norm.bias"}
    normed.load({**normed.tensors(), "feature_norm.weight": torch.full((24,), 2.0)})
    torch.testing.assert_close(extract(normed, images, Progress(), "x"), 2 * expected)


@pytest.mark.parametrize("name", ["lora", "full"])
def test_features_under_other_tensors(make_extractor, make_tuning, make_images, name):
    extractor = make_extractor(make_tuning(name, feature_norm=True)).eval()
    views = extractor.evaluation_views(make_images(("a",), 3).pixels)
    own, other = extractor.tensors(), disturbed(extractor)
    with torch.no_grad():
        before = extractor(views)
        borrowed = extractor.forward_with(other, views)
        assert torch.equal(extractor(views), before)
        extractor.load(other)
        torch.testing.assert_close(borrowed, extractor(views))
        extractor.load(own)
        torch.testing.assert_close(extractor(views), before)
    assert not torch.allclose(borrowed, before, atol=1e-3)


def test_the_seed_decides_the_initial_tensors(make_extractor):
    one, again, other = (make_extractor(seed=seed).tensors() for seed in (1, 1, 2))
    name = next(name for name in one if name.endswith("lora_A"))
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])


def test_bf16_is_close_and_returns_float32(make_backbone, make_tuning, make_images):
    images = make_images(("a", "b"), 4)
    exact, fast = (
        extract(
            FeatureExtractor(make_backbone(), make_tuning(), 3, Compute(torch.device("cpu"), precision)),
            images,
            Progress(),
            "x",
        )
        for precision in ("fp32", "bf16")
    )
    assert fast.dtype == torch.float32
    assert not torch.equal(fast, exact)
    torch.testing.assert_close(fast, exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_are_settled_once_for_all_batches(make_backbone, make_tuning, make_images, precision):
    """LoRA is summed and weights are cast once, not with every batch; the features are the same bits."""
    images = make_images(("a", "b"), 5)
    extractor = FeatureExtractor(make_backbone(), make_tuning(), 3, Compute(torch.device("cpu"), precision))
    extractor.load(disturbed(extractor))
    before = {name: (id(each), each.clone()) for name, each in extractor.named_parameters()}
    with patch.object(LoraLinear, "folded", autospec=True, side_effect=LoraLinear.folded) as sums:
        found = extract(extractor, images, Progress(), "x", batch_size=4)
        assert sums.call_count == len(extractor.vit.blocks)
        with torch.no_grad():
            views = [extractor.evaluation_views(images.batch(index)) for index in torch.arange(len(images)).split(4)]
            assert torch.equal(found, torch.cat([extractor(each) for each in views]))
        assert sums.call_count == (1 + len(views)) * len(extractor.vit.blocks)
    with pytest.raises(ValueError, match="broken"), extractor.settled(), extractor.settled():
        raise ValueError("broken")
    for name, each in extractor.named_parameters():
        assert id(each) == before[name][0]
        assert torch.equal(each, before[name][1])


def test_a_method_that_takes_the_extractors_features_settles_them_too(make_setting, make_images):
    method = IncrementalMerging(make_setting(), ImOptions())
    images = make_images(("a", "b"), 33)
    with patch.object(LoraLinear, "folded", autospec=True, side_effect=LoraLinear.folded) as sums:
        found = method.features(images, "test")
    assert sums.call_count == len(method.setting.extractor.vit.blocks)  # not once for each of the two batches
    assert torch.equal(found, extract(method.setting.extractor, images, Progress(), "x"))
