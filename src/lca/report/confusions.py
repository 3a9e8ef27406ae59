"""What a classifier takes for what, with pictures where the images are at hand."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lca.data.images import ImageSet
from lca.errors import LcaError
from lca.progress import Progress
from lca.recipe import validate_recipe
from lca.report.thumbnails import data_uri
from lca.results.reading import Run
from lca.results.stored import StoredAnswers

PAIRS, EXAMPLES, SIDE = 8, 6, 72
"""Confused pairs that are shown, pictures of each, and their longer side in pixels."""


@dataclass(frozen=True)
class Confusion:
    """Images of one class that were called another."""

    truth: str
    answer: str
    times: int
    images: int
    """All test images of the true class."""
    mistaken: Sequence[str] = ()
    """Some of those images, as data URIs."""
    typical: Sequence[str] = ()
    """Images of the answer that were recognised."""


def test_images(run: Run, progress: Progress) -> ImageSet:
    """The test images of a run in the order of its predictions, read again from its data source."""
    from lca.backbones import input_size
    from lca.data.sources import load_source
    from lca.data.streams import Stream

    recipe = validate_recipe(run.results["recipe"], f"the recipe of {run.folder}")
    side = input_size(recipe.backbone.name)
    if side is None:
        raise LcaError(f"timm has no card of {recipe.backbone.name!r}, which would say how large images were seen")
    source = load_source(recipe.data, recipe.seed, side, progress)
    if source.fingerprint != run.results["data"]["sha256"]:
        raise LcaError(
            f"the images of {source.name} are not those of the run: they have changed, or are read otherwise"
        )
    stream = Stream(source, recipe.data, recipe.seed)
    return stream.test(len(stream) - 1)


def confusions(answers: Sequence[StoredAnswers], images: ImageSet | None = None) -> list[Confusion]:
    """The most frequent confusions of several seeds together; pictures are from the first one, to which `images`
    belong."""
    times: Counter[tuple[str, str]] = Counter()
    asked: Counter[str] = Counter()
    for each in answers:
        matrix, names = each.confusion(), each.classes
        asked.update({name: int(row.sum()) for name, row in zip(names, matrix, strict=True)})
        for truth, answer in torch.nonzero(matrix).tolist():
            if truth != answer:
                times[names[truth], names[answer]] += int(matrix[truth, answer])
    return [
        Confusion(truth, answer, count, asked[truth], *_pictures(answers[0], images, truth, answer))
        for (truth, answer), count in sorted(times.items(), key=lambda item: (-item[1], item[0]))[:PAIRS]
    ]


def _pictures(answers: StoredAnswers, images: ImageSet | None, truth: str, answer: str) -> tuple[list[str], list[str]]:
    if images is None:
        return [], []
    true, other = answers.classes.index(truth), answers.classes.index(answer)
    prediction = answers.after[-1]["prediction"].long()

    def some(label: int, count: int) -> list[str]:
        rows = torch.nonzero((answers.labels == label) & (prediction == other))[:count, 0]
        return [data_uri(images.image(row), SIDE) for row in rows.tolist()]

    return some(true, EXAMPLES), some(other, EXAMPLES // 2)
