"""The study of what is called unknown, on drawn features and a tiny transformer."""

import pytest
import torch

import tiny
from lca.data.background import FAMILIES, PICTURES, SPOILT
from lca.device import Compute
from lca.features import FeatureExtractor
from lca.progress import Progress
from lca.tuning import tuners
from paper import refused

WIDTH, CLASSES = 8, 10


def test_every_family_is_in_one_group():
    assert sorted(family for group in refused.GROUPS.values() for family in group) == sorted(FAMILIES)


def drawn():
    """Classes far apart, damaged a little and much; pictures of every family near a place of their own."""
    random = torch.Generator().manual_seed(0)
    places, empty = (
        9 * torch.randn(CLASSES, WIDTH, generator=random),
        torch.randn(len(FAMILIES), WIDTH, generator=random),
    )

    def around(labels, spread=1.0):
        return places[labels] + spread * torch.randn(len(labels), WIDTH, generator=random)

    train, test = (torch.arange(CLASSES).repeat_interleave(count) for count in (20, 10))
    rows = torch.arange(CLASSES)
    photos = {"train": around(train), "train labels": train, "test": around(test), "test labels": test}
    for part in ("train", "test"):
        photos[f"{part} spoilt"] = 20 + torch.randn(len(SPOILT) * CLASSES, WIDTH, generator=random)
        photos[f"{part} spoilt labels"] = rows
    photos |= {f"mild {damage}": around(rows, 15.0) for damage in refused.SEVERE}
    pictures = {"background": empty.repeat_interleave(PICTURES, 0)}
    pictures |= {f"3 {family}": empty[place].repeat(12, 1) for place, family in enumerate(FAMILIES)}
    return photos, {damage: around(rows) for damage in refused.MILD}, {"test": around(test) + 30}, pictures


def test_what_is_told_is_measured():
    found = refused.measure(*drawn(), 3)
    assert found.keys() == {*refused.ROWS, "by damage", "by family", "left out"}
    assert found["known"] < 10
    assert found["mild"] < 30 < found["severe"]
    assert found["far"] == 100
    assert min(found[way] for way in SPOILT) > 90
    assert min(found[group] for group in refused.GROUPS) > 90, "every family is in the background"
    content = {"cases": [{"backbone": "tiny", "taught": "drawn", "seeds": {"1": found, "2": found}}]}
    moved = {"backbone": "tiny, moving", "taught": "drawn", "seeds": {"1": {"known": 1.0}}}
    shown = refused.show({"cases": [*content["cases"], moved]})
    assert f"| {refused.ROWS['far']} | 100.0 ± 0.0 |  |" in shown
    assert f"{found['known']:.1f} ± 0.0 | 1.0 |" in shown
    assert f"| {found['left out']['wall']['group']:.1f} ± 0.0 |" in refused.show_left_out(content)


def test_a_group_that_is_left_out_is_no_part_of_the_background():
    photos, _, _, pictures = drawn()
    whole, less = (refused.Taught(photos, pictures, 3, families) for families in ((), refused.GROUPS["noise"]))
    assert [len(taught.statistics[1].families) for taught in (whole, less)] == [18, 13]
    assert whole.statistics[1].photos == len(whole.known) == 8


def test_features_are_those_of_photos_and_of_pictures(tmp_path):
    from PIL import Image

    images = tiny.images({"0": 9, "1": 9})
    for number, (picture, label) in enumerate(zip(images.pixels.canvas, images.labels.tolist(), strict=True)):
        folder = tmp_path / "set" / ("train" if number % 9 < 5 else "test") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    extractor = FeatureExtractor(tiny.build_backbone(), tuners["none"].Options(name="none"), 0, Compute.choose("cpu"))
    photos = refused.features_of(tmp_path, "set", 1.0, extractor, Progress())
    assert {name: len(each) for name, each in photos.items() if "mild" not in name} == {
        "train": 10,
        "train labels": 10,
        "train spoilt": 6,
        "train spoilt labels": 2,
        "test": 8,
        "test labels": 8,
        "test spoilt": 3,
        "test spoilt labels": 1,
    }
    mildly = refused.mild_of(tmp_path, "set", 1.0, extractor, Progress())
    plain = photos["test"][:1]
    assert mildly.keys() == refused.MILD.keys()
    apart = {name: float((each - plain).norm() / plain.norm()) for name, each in mildly.items()}
    assert all(0 < each < 1 for each in apart.values()), apart
    calls = []
    path = tmp_path / "cache" / "a.safetensors"
    for _ in range(2):
        refused.cached(path, lambda: (calls.append(1), mildly)[1])
    assert len(calls) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refused, "PAINTED", 2)
        pictures = refused.pictures_of(extractor, Progress())
    assert len(pictures) == 1 + 3 * len(FAMILIES)
    assert len(pictures["background"]) == PICTURES * len(FAMILIES)
