"""What a lesson of a person's photos costs, and what its head costs beside a thousand known classes.

An instant lesson reads photo files, sees them in some views, and takes statistics, distances and calibration from
them; the plain way is one view of each photo, decoded by Pillow and sent through the same transformer as timm alone
would. The plain head inverts a covariance of every class. One run each does not count: imports and first passes.
"""

import copy
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from lca.backbones import PHOTOS, Backbone, load_backbone
from lca.classifier import ContinualClassifier
from lca.data.options import DataOptions
from lca.data.sources import load_source
from lca.heads.discriminant import Discriminant
from lca.heads.quadratic import QuadraticBranch
from lca.progress import Progress
from lca.randomness import generator
from lca.recipe import load_recipe
from lca.statistics.gaussians import GaussianMemory
from measuring import Agreement, Comparison, Numbers, Settings, Size, time_both

SUBJECT = "lessons"
SIDES = (640, 480)
"""Of a photo file, in pixels."""


@dataclass(frozen=True)
class Sizes:
    backbones: tuple[str, ...]
    classes: int
    images: int
    known: int
    """Classes before the lesson of which the head is measured."""
    width: int


PICO = "vit_pico_patch8_64"
SIZES: dict[Size, Sizes] = {
    "tiny": Sizes((PICO,), classes=2, images=3, known=6, width=8),
    "small": Sizes((PICO, PHOTOS), classes=5, images=30, known=1000, width=192),
    "full": Sizes((PICO, PHOTOS), classes=5, images=30, known=1000, width=768),
}


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    with tempfile.TemporaryDirectory() as folder:
        paint(Path(folder), sizes)
        rows = [_instant(name, Path(folder), sizes, settings) for name in sizes.backbones]
    return [*rows, _head(sizes, settings)]


def paint(folder: Path, sizes: Sizes) -> None:
    """Patterns as JPEG files, a folder for each class."""
    source = f"synthetic:classes={sizes.classes},train={sizes.images},test=1,size=64"
    painted = load_source(DataOptions(source=source), 0, 64, Progress()).train
    for number, label in enumerate(painted.labels.tolist()):
        path = folder / painted.classes[label] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        pixels = painted.image(number).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize(SIDES).save(path, quality=90)


def _instant(name: str, folder: Path, sizes: Sizes, settings: Settings) -> Comparison:
    recipe = load_recipe("best", changes={"backbone": {"name": name}, "device": settings.device.type})
    backbone = load_backbone(recipe.backbone)

    def ours() -> ContinualClassifier:
        model = ContinualClassifier(recipe, backbone=load_backbone(recipe.backbone))
        model.learn(folder, effort="instant")
        return model

    cost = time_both(ours, lambda: one_view(backbone, folder, settings.device), settings)
    worked = time.process_time()
    ours()
    worked = time.process_time() - worked
    lesson = f"{sizes.classes} classes of {sizes.images} photos"
    numbers: Numbers = {"classes": sizes.classes, "images": sizes.images, "backbone": name}
    case = f"instant lesson, {lesson}, {name} (plain: one pass over each photo)"
    return Comparison(SUBJECT, case, "seconds", *cost, numbers, None, {"CPU s": round(worked, 2)})


@torch.inference_mode()
def one_view(backbone: Backbone, folder: Path, device: torch.device) -> Tensor:
    """Features of every photo as it is."""
    preprocessing = backbone.preprocessing
    view = v2.Compose(
        [
            v2.Resize(preprocessing.size),
            v2.CenterCrop(preprocessing.size),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(preprocessing.mean, preprocessing.std),
        ]
    )
    vit = backbone.vit.to(device).eval()
    batches = torch.stack([view(Image.open(path)) for path in sorted(folder.rglob("*.jpg"))]).split(32)
    return torch.cat([vit(batch.to(device)) for batch in batches])


def _head(sizes: Sizes, settings: Settings) -> Comparison:
    """Ten more classes beside those that are known: their statistics and the new head."""
    branch, images, more = QuadraticBranch(name="quadratic"), 8, 10
    draws = generator(0, "benchmark lessons")
    classes = sizes.known + more
    centres = 3 * torch.randn(classes, 1, sizes.width, generator=draws)
    features = centres + torch.randn(classes, images, sizes.width, generator=draws)
    asked = features[:, 0] + torch.randn(classes, sizes.width, generator=draws)
    asked = asked[:: 1 + classes // 20]
    known = GaussianMemory(branch.covariance)
    for label in range(sizes.known):
        known.observe(label, features[label])

    def ours() -> Tensor:
        memory = copy.deepcopy(known)
        for label in range(sizes.known, classes):
            memory.observe(label, features[label])
        answers: Tensor = branch.derive(memory)(asked)
        return answers

    def plain() -> Tensor:
        return inverted(branch, features, asked)

    difference = (ours() - plain()).diff(dim=1).abs().max()
    agreement = Agreement(float(difference), 1e-2, "largest difference between differences of scores")
    numbers: Numbers = {"classes": sizes.known, "more": more, "width": sizes.width}
    case = f"head of {sizes.known} + {more} classes, d = {sizes.width} (plain: a covariance inverted for every class)"
    return Comparison(SUBJECT, case, "seconds", *time_both(ours, plain, settings), numbers, agreement)


def inverted(branch: QuadraticBranch, features: Tensor, asked: Tensor) -> Tensor:
    """(n, classes): the score of docs/method.md as it is written, with a matrix for every class of (classes, images, d)
    features; the means and the shared covariance are taken from our code, for they cost the plain way nothing more."""
    memory = GaussianMemory(branch.covariance)
    for label, rows in enumerate(features):
        memory.observe(label, rows)
    shared = Discriminant.of(memory, branch)
    covariance = shared.root @ shared.root.T
    scores = []
    for own, mean, share in zip(
        features.double(), shared.means, branch.shares(shared.counts, len(covariance)), strict=True
    ):
        matrix = (1 - share) * covariance + share * own.T.cov()
        apart = asked.double() - mean
        distance = (apart @ torch.linalg.inv(matrix) * apart).sum(1)
        scores.append(-(distance + torch.linalg.slogdet(matrix).logabsdet) / 2)
    return torch.stack(scores, 1)
