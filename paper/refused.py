"""What is called unknown: things never seen, pictures of nothing, spoilt photos, and photos that should pass.

Four fifths of the classes of a small data set are taught in five lessons on a frozen backbone, as instant lessons of
`lca learn` do it. Asked about are test photos of these classes, as they are and damaged, of the other classes (near),
of another set (far), photos spoilt as a webcam would, and pictures of every family that the background is made of,
painted with other seeds. Then the families of one group after the other are left out of the background, and the
pictures of that group are asked about again. Features are extracted once, into a cache, and the statistics of every
seed are made of them.

Beside that, `ContinualClassifier` is taught the same classes thoroughly on the small embedded backbone: a backbone that
moves in every lesson.

    python paper/refused.py --data DATA --cache FOLDER --moving MOVING.json
    python paper/refused.py --data DATA --cache FOLDER --with-moving MOVING.json --out results/refused.json
    python paper/refused.py --show results/refused.json
    python paper/refused.py --show-left-out results/refused.json
"""

import argparse
from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from lca.backbones import PHOTOS, BackboneOptions, load_backbone
from lca.classifier import UNKNOWN_AT, ContinualClassifier
from lca.damage.corruptions import corrupt
from lca.data.background import FAMILIES, PICTURES, SPOILT, background, defocused, one_of_each, paint, spoilt
from lca.data.images import ImageSet, Pixels
from lca.data.labelled import read_images
from lca.data.sources import working_size
from lca.data.views import evaluation_boxes, resize_crops
from lca.device import Compute, versions
from lca.evaluation.intervals import mean_and_deviation
from lca.features import FeatureExtractor, extract
from lca.files import read_json, write_json
from lca.heads.branches import BranchSet
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.methods._branched import BranchedOptions
from lca.progress import LineProgress, Progress
from lca.randomness import generator
from lca.recipe import load_recipe
from lca.text import markdown_table
from lca.tuning import tuners

SEEDS = (1993, 1994, 1995)
SETS = {"vtab-mini": 0.875, "cifar100-mini": 1.0}
"""What is taught, and how much of an image is seen."""
FAR = {"vtab-mini": "cifar100-mini", "cifar100-mini": "vtab-mini"}
LESSONS = 5
TRAIN, TEST, PAINTED = 20, 10, 12
"""Photos of each class that are taught and asked about, and pictures of each family for each seed."""
MOVED, EPOCHS = "vit_pico_patch8_64", 2
"""The backbone that moves, and how long each lesson trains: enough to see it move on a processor."""
SEVERE = ("brightness", "contrast", "jpeg_compression", "gaussian_blur", "gaussian_noise")
"""The common corruptions at severity 1 that photos are damaged by."""
GROUPS = {
    "noise": ("uniform noise", "Gaussian noise", "grey noise", "coarse noise", "blocks"),
    "blank": ("blank", "black", "white", "gradient"),
    "wall": ("wall", "corner"),
    "pattern": ("checker", "stripes", "clouds", "discs", "rectangles"),
    "writing": ("text", "scribbles"),
}
"""The families of the background by what they have in common."""
ROWS = {
    "known": "test photos of known classes",
    "mild": "the same, mildly damaged (darker, brighter, a little blur or noise, JPEG at 60)",
    "severe": "the same with common corruptions at severity 1",
    "near": "photos of classes of the same set, never taught",
    "far": "photos of the other set",
    "defocus": "photos of known classes, far out of focus",
    "dark": "photos of known classes, in the dark",
    "zoom": "photos of known classes, a tenth of the side",
    "noise": "pictures of noise (five families)",
    "blank": "blank pictures (four)",
    "wall": "walls (two)",
    "pattern": "patterns (five)",
    "writing": "text and scribbles (two)",
}
Features = dict[str, Tensor]


def features_of(
    folder: Path, name: str, centre_crop: float, extractor: FeatureExtractor, progress: Progress
) -> Features:
    """Of the photos of a set: those to teach, those to ask about, and these spoilt and damaged."""
    scaling, found = extractor.preprocessing, {}

    def seen(what: str, images: ImageSet | Pixels, crop: float | None = None) -> None:
        found[what] = extract(extractor, images, progress, f"{name}, {what}", centre_crop=crop).cpu()

    for part, most in (("train", TRAIN), ("test", TEST)):
        images, _ = read_images(folder / name / part, working_size(scaling.size), progress)
        images = images.subset(torch.cat([images.rows_of(label)[:most] for label in range(len(images.classes))]))
        seen(part, images, centre_crop)
        found[f"{part} labels"] = images.labels
        rows = one_of_each(images) if part == "train" else torch.arange(0, len(images), 8)
        draws = generator(len(part), "refused, spoilt photos")
        seen(f"{part} spoilt", spoilt(images, rows, scaling.size, scaling.interpolation, centre_crop, draws), 1.0)
        found[f"{part} spoilt labels"] = images.labels[rows]
        if part == "test":
            crops = crops_of(images, rows, centre_crop, extractor)
            for damage in SEVERE:
                seen(f"mild {damage}", Pixels.whole(corrupt(crops, damage, 1)), 1.0)
    return found


def crops_of(images: ImageSet, rows: Tensor, centre_crop: float, extractor: FeatureExtractor) -> Tensor:
    """What is seen of images, in uint8."""
    pixels, scaling = images.batch(rows), extractor.preprocessing
    boxes = evaluation_boxes(pixels.sizes, centre_crop)
    return resize_crops(pixels, boxes, scaling.size, scaling.interpolation).round().byte()


def darker(photo: Tensor, draws: torch.Generator) -> Tensor:
    return 0.8 * photo


def brighter(photo: Tensor, draws: torch.Generator) -> Tensor:
    return 1.2 * photo


def blurred(photo: Tensor, draws: torch.Generator) -> Tensor:
    """By a disc of 1.5 pixels of 224."""
    return defocused(photo, 1.5 / 224)


def noisy(photo: Tensor, draws: torch.Generator) -> Tensor:
    return photo + 0.03 * torch.randn(photo.shape, generator=draws)


def compressed(photo: Tensor, draws: torch.Generator) -> Tensor:
    """As JPEG of quality 60."""
    file = BytesIO()
    Image.fromarray((255 * photo).round().byte().permute(1, 2, 0).numpy()).save(file, "JPEG", quality=60)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255


MILD = {change.__name__: change for change in (darker, brighter, blurred, noisy, compressed)}


def mild_of(folder: Path, name: str, centre_crop: float, extractor: FeatureExtractor, progress: Progress) -> Features:
    """Of the photos of a set that are damaged, damaged mildly."""
    images, _ = read_images(folder / name / "test", working_size(extractor.preprocessing.size), progress)
    images = images.subset(torch.cat([images.rows_of(label)[:TEST] for label in range(len(images.classes))]))
    photos = crops_of(images, torch.arange(0, len(images), 8), centre_crop, extractor) / 255
    found = {}
    for what, change in MILD.items():
        draws = generator(0, f"refused, {what}")
        changed = torch.stack([change(photo, draws) for photo in photos])
        pixels = Pixels.whole((255 * changed.clamp(0, 1)).round().byte())
        found[what] = extract(extractor, pixels, progress, f"{name}, {what}", centre_crop=1.0).cpu()
    return found


def pictures_of(extractor: FeatureExtractor, progress: Progress) -> Features:
    """Features of the background, and of other pictures of its families."""
    size = extractor.preprocessing.size
    found = {"background": extract(extractor, background(size), progress, "background", centre_crop=1.0).cpu()}
    for seed in SEEDS:
        for family in FAMILIES:
            pictures = Pixels.whole(paint(family, PAINTED, size, seed))
            found[f"{seed} {family}"] = extract(extractor, pictures, progress, family, centre_crop=1.0).cpu()
    return found


def cached(path: Path, make: Any) -> Features:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(make(), path)
    found: Features = load_file(path)
    return found


class Taught:
    """Four fifths of the classes of a set, taught in lessons, beside a background without some of its families."""

    def __init__(self, photos: Features, pictures: Features, seed: int, left_out: tuple[str, ...] = ()) -> None:
        classes = int(photos["train labels"].max()) + 1
        self.known = [label for label in range(classes) if (label + seed) % 5]
        order = torch.randperm(len(self.known), generator=generator(seed, "refused, order")).tolist()
        self.order = [self.known[place] for place in order]
        width = photos["train"].shape[1]
        trunk = GrowingHeads(width, LinearOptions(bias=True))
        self.branches = BranchSet(BranchedOptions(name="frozen").align, trunk)
        kept = torch.tensor([family not in left_out for family in FAMILIES])
        families = pictures["background"].unflatten(0, (-1, PICTURES)).mean(1)[kept]
        for lesson in torch.arange(len(self.order)).chunk(LESSONS):
            self._teach(photos, [self.order[place] for place in lesson.tolist()], families)

    def _teach(self, photos: Features, labels: list[int], families: Tensor) -> None:
        rows = [torch.nonzero(photos["train labels"] == label)[:, 0] for label in labels]
        place = {label: number for number, label in enumerate(self.order)}
        taught = torch.cat(rows)
        own = torch.tensor([place[label] for label in photos["train labels"][taught].tolist()])
        features = photos["train"][taught]
        ruined = photos["train spoilt"].unflatten(0, (len(SPOILT), -1))
        spoilt_means = ruined[:, torch.isin(photos["train spoilt labels"], torch.tensor(labels))].mean(1)
        self.branches.observe(own, features, features, features, None, families, spoilt_means)

    @property
    def statistics(self) -> Any:
        return self.branches.statistics("best")

    def refused(self, features: Tensor) -> float:
        """Per cent of them that are called unknown."""
        memory, known = self.statistics
        return float(100 * (known.percentiles(memory, features).amin(1) >= UNKNOWN_AT).double().mean())


def measure(photos: Features, mildly: Features, far: Features, pictures: Features, seed: int) -> dict[str, Any]:
    taught = Taught(photos, pictures, seed)
    known = torch.tensor(taught.known)
    own, spoilt_own = torch.isin(photos["test labels"], known), torch.isin(photos["test spoilt labels"], known)
    mild = {damage: taught.refused(features[spoilt_own]) for damage, features in mildly.items()}
    severe = {damage: taught.refused(photos[f"mild {damage}"][spoilt_own]) for damage in SEVERE}
    ruined = photos["test spoilt"].unflatten(0, (len(SPOILT), -1))[:, spoilt_own]
    painted = {family: pictures[f"{seed} {family}"] for family in FAMILIES}
    families = {family: taught.refused(features) for family, features in painted.items()}

    def of_group(told: Mapping[str, float], group: str) -> float:
        return sum(told[family] for family in GROUPS[group]) / len(GROUPS[group])

    def left_out(group: str) -> dict[str, float]:
        less = Taught(photos, pictures, seed, GROUPS[group])
        told = {family: less.refused(painted[family]) for family in GROUPS[group]}
        return {"group": of_group(told, group), "known": less.refused(photos["test"][own]), **told}

    return {
        "known": taught.refused(photos["test"][own]),
        "mild": sum(mild.values()) / len(mild),
        "severe": sum(severe.values()) / len(severe),
        "near": taught.refused(photos["test"][~own]),
        "far": taught.refused(far["test"]),
        **{way: taught.refused(some) for way, some in zip(SPOILT, ruined, strict=True)},
        **{group: of_group(families, group) for group in GROUPS},
        "by damage": mild | severe,
        "by family": families,
        "left out": {group: left_out(group) for group in GROUPS},
    }


def moving(folder: Path, name: str, seed: int, progress: Progress) -> dict[str, float]:
    """The same classes and lessons, thoroughly taught: the backbone moves in each."""
    recipe = load_recipe("best", [f"seed={seed}", f"backbone.name={MOVED}", f"training.epochs={EPOCHS}"])
    model = ContinualClassifier(recipe, progress=progress)
    names = sorted(path.name for path in (folder / name / "train").iterdir())
    known = [each for label, each in enumerate(names) if (label + seed) % 5]
    order = torch.randperm(len(known), generator=generator(seed, "refused, order")).tolist()

    def files(part: str, classes: list[str], most: int) -> list[Any]:
        return [(path, each) for each in classes for path in sorted((folder / name / part / each).iterdir())[:most]]

    for lesson in torch.arange(len(known)).chunk(LESSONS):
        model.learn(files("train", [known[order[place]] for place in lesson.tolist()], TRAIN), effort="thorough")

    def refused(images: list[Any]) -> float:
        return 100 * sum(answer.unknown for answer in model.predict(images)) / len(images)

    size = model.extractor.preprocessing.size
    told = {family: refused(list(paint(family, PAINTED, size, seed))) for family in FAMILIES}
    far = sorted((folder / FAR[name] / "test").iterdir())
    return {
        "known": refused([path for path, _ in files("test", known, TEST)]),
        "near": refused([path for path, _ in files("test", sorted({*names} - {*known}), TEST)]),
        "far": refused([path for each in far for path in sorted(each.iterdir())[:TEST]]),
        **{group: sum(told[family] for family in GROUPS[group]) / len(GROUPS[group]) for group in GROUPS},
    }


def show(content: Mapping[str, Any]) -> str:
    cases = content["cases"]
    header = ["called unknown, %", *(f"{case['backbone']}, {case['taught']}" for case in cases)]
    return markdown_table(header, [[meaning, *(_cell(case, key) for case in cases)] for key, meaning in ROWS.items()])


def show_left_out(content: Mapping[str, Any]) -> str:
    cases = [case for case in content["cases"] if all("left out" in seed for seed in case["seeds"].values())]
    header = ["left out, and asked about: called unknown, %", *(case["taught"] for case in cases)]
    rows = [
        [f"{group}: {', '.join(families)}", *(_cell(case, "left out", group, "group") for case in cases)]
        for group, families in GROUPS.items()
    ]
    return markdown_table(header, rows)


def _cell(case: Mapping[str, Any], *keys: str) -> str:
    """Mean and deviation over the seeds of what the keys lead to; empty where that was not measured."""
    values = []
    for seed in case["seeds"].values():
        for key in keys:
            seed = seed.get(key) if seed is not None else None
        values.append(seed)
    if None in values:
        return ""
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation is not None else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with vtab-mini and cifar100-mini")
    parser.add_argument("--cache", type=Path, help="folder for features, of the backbone that is measured alone")
    parser.add_argument("--backbone", default=PHOTOS)
    parser.add_argument("--moving", type=Path, help="measure the backbone that moves alone, and write this JSON file")
    parser.add_argument("--with-moving", type=Path, help="a JSON file of --moving, to go into the table")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--show", type=Path, help="print the table of a JSON file")
    parser.add_argument("--show-left-out", type=Path, help="print what the background is worth without its families")
    arguments = parser.parse_args()
    for shown, table in ((arguments.show, show), (arguments.show_left_out, show_left_out)):
        if shown:
            print(table(read_json(shown)), end="")
            return
    progress, compute = LineProgress(), Compute.choose("auto")
    if arguments.moving:
        name = next(iter(SETS))
        seeds = {str(seed): moving(arguments.data, name, seed, progress) for seed in SEEDS[:1]}
        write_json(arguments.moving, {"backbone": f"{MOVED}, moving", "taught": name, "seeds": seeds})
        return
    backbone = load_backbone(BackboneOptions(name=arguments.backbone))
    extractor = FeatureExtractor(backbone, tuners["none"].Options(name="none"), 0, compute)
    pictures = cached(arguments.cache / "pictures.safetensors", lambda: pictures_of(extractor, progress))
    photos, mildly = (
        {
            name: cached(
                arguments.cache / f"{name}{suffix}.safetensors",
                partial(made, arguments.data, name, crop, extractor, progress),
            )
            for name, crop in SETS.items()
        }
        for suffix, made in (("", features_of), ("-mild", mild_of))
    )
    cases = []
    for name in SETS:
        known, far = photos[name], photos[FAR[name]]
        seeds = {str(seed): measure(known, mildly[name], far, pictures, seed) for seed in SEEDS}
        cases.append({"backbone": arguments.backbone, "taught": name, "seeds": seeds})
    if arguments.with_moving:
        cases.append(read_json(arguments.with_moving))
    content = {
        "unknown_at": UNKNOWN_AT,
        "machine": compute.describe(),
        "versions": versions(),
        "cases": cases,
    }
    if arguments.out:
        write_json(arguments.out, content)
    print(show(content))
    print(show_left_out(content), end="")


if __name__ == "__main__":
    main()
