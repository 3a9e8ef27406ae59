"""The contracts of a tuner, on tiny transformers of every kind."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import SkipTest

import timm
import torch
from timm.models import VisionTransformer
from torch import Tensor

from lca.backbones.pooling import Pooled
from lca.data.views import AugmentOptions
from lca.device import Compute
from lca.errors import LcaError
from lca.features import FeatureExtractor
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.progress import Progress
from lca.testing.contracts import Contracts, contract, expect, expect_equal, expect_near, expect_sentence, run_contracts
from lca.testing.parts import VITS, build_backbone, build_vit, task
from lca.training.loop import FineTuning
from lca.training.options import TrainingOptions
from lca.training.setting import Setting
from lca.tuning import Tuner, tuners

SIDE = 32
VIEWS = torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))

TUNER_CONTRACTS: Contracts["TunerSubject"] = {}
"""What every tuner promises, by name."""


def check_tuner(tuner: type[Tuner] | str, *, contracts: Iterable[str] | None = None, **options: Any) -> None:
    """Check that a tuner, by its class or name and with these options, keeps all contracts or those named."""
    run_contracts(TUNER_CONTRACTS, tuners, tuner, partial(TunerSubject, options=options), contracts)


class TunerSubject:
    """A tuner with its options."""

    def __init__(self, tuner: str, options: dict[str, Any]) -> None:
        self.name, self.tuner, self.given = f"tuner {tuner!r}", tuners[tuner], {**options, "name": tuner}

    def attached(self, kind: str = "plain", disturb: bool = True) -> tuple[VisionTransformer, Tuner]:
        """A transformer and the tuner on it, by default with other values than it begins with."""
        vit = build_vit(kind, img_size=SIDE)
        tuner = self.tuner(self.tuner.Options(**self.given))
        tuner.attach(vit, torch.Generator().manual_seed(1))
        if disturb:
            tuner.load(_disturbed(tuner))
        return vit, tuner

    def extractor(self, kind: str = "plain") -> FeatureExtractor:
        options = self.tuner.Options(**{**self.given, "feature_norm": True})
        return FeatureExtractor(build_backbone(kind, img_size=SIDE), options, 3, Compute.choose("cpu"), centre_crop=1.0)


@contract(TUNER_CONTRACTS, "attached and detached it leaves the transformer as it was", VITS)
def _attach_and_detach(subject: TunerSubject, kind: str) -> None:
    plain = build_vit(kind, img_size=SIDE)
    vit, tuner = subject.attached(kind)
    changed = _features(vit)
    expect_equal(tuple(changed.shape), (3, 24), "shape of the features")
    if tuner.parameters():
        same = torch.allclose(changed, _features(plain), atol=1e-3)
        expect(not same, "expected that other values of the tensors make other features")
    tuner.detach()
    expect_equal(dict(vit.state_dict()), dict(plain.state_dict()), "the transformer's weights after detach")
    expect(not any(each.requires_grad for each in vit.parameters()), "expected that nothing is trained after detach")
    expect(torch.equal(_features(vit), _features(plain)), "expected the transformer's own features after detach")


@contract(TUNER_CONTRACTS, "load overwrites in place, and tensors are copies")
def _in_place(subject: TunerSubject) -> None:
    _, tuner = subject.attached(disturb=False)
    live = {key: id(each) for key, each in tuner.parameters().items()}
    copies, values = tuner.tensors(), _disturbed(tuner)
    kept = {key: each.clone() for key, each in copies.items()}
    tuner.load(values)
    expect({key: id(each) for key, each in tuner.parameters().items()} == live, "expected the same parameters")
    expect_equal(tuner.tensors(), values, "tensors() after load")
    expect_equal(copies, kept, "what tensors() gave before load")


@contract(TUNER_CONTRACTS, "names and values are the same between runs")
def _reproducible(subject: TunerSubject) -> None:
    (_, one), (_, two) = subject.attached(disturb=False), subject.attached(disturb=False)
    expect_equal(one.tensors(), two.tensors(), "tensors from the same generator")


@contract(TUNER_CONTRACTS, "every tuned tensor receives a gradient")
def _gradients(subject: TunerSubject) -> None:
    vit, tuner = subject.attached()
    _expect_trained(vit, tuner)
    if not tuner.parameters():
        return
    Pooled(vit)(VIEWS).square().sum().backward()
    idle = [key for key, each in tuner.parameters().items() if each.grad is None or not each.grad.abs().sum() > 0]
    expect(not idle, f"expected a gradient on every tensor, got none on {idle}")


@contract(TUNER_CONTRACTS, "a missing tensor is an error")
def _missing(subject: TunerSubject) -> None:
    _, tuner = subject.attached(disturb=False)
    values = tuner.tensors()
    if values:
        values.pop(next(iter(values)))
        try:
            tuner.load(values)
        except LcaError:
            return
        expect(False, "expected that load refuses tensors of which one is missing")
    tuner.load({})


@contract(TUNER_CONTRACTS, "a feature does not depend on its neighbours")
def _neighbours(subject: TunerSubject) -> None:
    vit, _ = subject.attached()
    expect_near(
        _features(vit)[1:2], _features(vit, VIEWS[1:2]), "the feature of an image in a batch and alone", rtol=1e-4
    )


@contract(TUNER_CONTRACTS, "folded it gives the same features", VITS)
def _folded(subject: TunerSubject, kind: str) -> None:
    plain = build_vit(kind, img_size=SIDE)
    vit, tuner = subject.attached(kind)
    tuned, before = bool(tuner.parameters()), _features(vit)
    tuner.fold()
    expect_near(_features(vit), before, "features after fold", rtol=1e-5)
    stays = bool(tuner.parameters())
    own = list(vit.state_dict()) == list(plain.state_dict())
    expect(own != stays, "expected that fold leaves either parameters() or a transformer without modules of the tuner")
    _expect_trained(vit, tuner)
    tuner.detach()  # takes out what stayed and leaves what was folded
    expected = _features(plain) if stays or not tuned else before
    expect_near(_features(vit), expected, "features after fold and detach", rtol=1e-5)


@contract(TUNER_CONTRACTS, "what is attached takes over the mode", ("training", "evaluation"))
def _mode(subject: TunerSubject, mode: str) -> None:
    vit = build_vit(img_size=SIDE).train(mode == "training")
    subject.tuner(subject.tuner.Options(**subject.given)).attach(vit, torch.Generator())
    expect_equal({module.training for module in vit.modules()}, {mode == "training"}, "training of all modules")


@contract(TUNER_CONTRACTS, "attaching leaves the global generator alone")
def _global_generator(subject: TunerSubject) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        subject.attached()
        expect(torch.equal(torch.rand(3), expected), "expected that all is drawn from the generator that is given")


@contract(TUNER_CONTRACTS, "other values can be swapped in for one pass", VITS)
def _swapped(subject: TunerSubject, kind: str) -> None:
    extractor = subject.extractor(kind).eval()
    other = {key: each + 0.1 * torch.ones_like(each).cumsum(-1).sin() for key, each in extractor.tensors().items()}
    before = extractor(VIEWS)
    swapped = extractor.forward_with(other, VIEWS)
    expect(torch.equal(extractor(VIEWS), before), "expected the tuner's own features after the pass")
    expect(not torch.allclose(swapped, before, atol=1e-3), "expected other features with other values")
    extractor.load(other)
    expect_near(extractor(VIEWS), swapped, "features with the values loaded, and swapped in", atol=1e-6, rtol=1e-5)


@contract(TUNER_CONTRACTS, "training goes on from its state")
def _training(subject: TunerSubject) -> None:
    """An epoch in a process of its own, as it were, is the epoch that would have been; and it changes something."""
    ends = []
    options = TrainingOptions(epochs=2, batch_size=4, lr=0.05)
    for restart in (False, True):
        stored: dict[str, Tensor] = {}
        for epoch in range(2):
            if restart or epoch == 0:
                setting = Setting(subject.extractor(), options, AugmentOptions(crop_scale=(0.5, 1.0)), 3, Progress())
                training = FineTuning(setting)
                before = setting.extractor.tensors()
                training.load(stored)
            training.epoch(task(1, {"3": 5, "7": 5}), epoch, GrowingHeads(24, LinearOptions()))
            stored, _ = training.state()
        ends.append(setting.extractor.tensors())
    expect_equal(ends[1], ends[0], "tensors after a restart between two epochs")
    idle = [key for key, each in ends[0].items() if torch.equal(each, before[key])]
    expect(not idle, f"expected that training changes all tensors, but not {idle}")


@contract(TUNER_CONTRACTS, "it can be exported for any number of images")
def _exported(subject: TunerSubject) -> None:
    vit, _ = subject.attached()
    shapes = {"views": {0: torch.export.Dim("images", min=2)}}
    with torch.no_grad():
        exported = torch.export.export(Pooled(vit), (VIEWS,), dynamic_shapes=shapes).module()
        expect_near(exported(VIEWS[:2]), _features(vit)[:2], "features of the exported transformer", rtol=1e-5)


@contract(TUNER_CONTRACTS, "it fits other backbones if it says so")
def _other_backbones(subject: TunerSubject) -> None:
    """In training, too, an image's feature does not depend on the others: batch normalisation does not see them."""
    if not subject.tuner.any_backbone:
        raise SkipTest("for vision transformers only")
    vit = timm.create_model("test_resnet", num_classes=0).requires_grad_(False).eval()
    backbone = replace(build_backbone(img_size=SIDE), vit=vit)
    before = _features(vit)
    extractor = FeatureExtractor(backbone, subject.tuner.Options(**subject.given), 3, Compute.choose("cpu"))
    extractor.tuner.load(_disturbed(extractor.tuner))
    extractor.train()
    expect_near(extractor(VIEWS[:1]), extractor(VIEWS)[:1], "features alone, and in a batch", rtol=1e-4, atol=1e-5)
    extractor.eval().tuner.detach()
    expect(torch.equal(_features(vit), before), "expected the backbone's own features after detach")


@contract(TUNER_CONTRACTS, "the docstring begins with a line for lists")
def _docstring(subject: TunerSubject) -> None:
    expect_sentence(subject.tuner.__doc__)


@torch.no_grad()
def _features(vit: VisionTransformer, views: Tensor = VIEWS) -> Tensor:
    return Pooled(vit)(views)


def _expect_trained(vit: VisionTransformer, tuner: Tuner) -> None:
    trained = {id(each) for each in vit.parameters() if each.requires_grad}
    expect(trained == {*map(id, tuner.parameters().values())}, "parameters() is not what requires a gradient")


def _disturbed(tuner: Tuner) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    return {name: each + 0.1 * torch.randn(each.shape, generator=random) for name, each in tuner.tensors().items()}
