"""Class means: the mean feature of every class, with its count, so that a class can be learnt in several lessons."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from lca.errors import LcaError
from lca.files import Part, Stored


class ClassMeans(Stored):
    """The mean features of all classes learnt so far, by label; labels are learnt in order."""

    combines: ClassVar[bool] = True

    def __init__(self, side_by_side: int = 1) -> None:
        """Of features, or of so many side by side."""
        self._side_by_side = side_by_side
        self.means, self.counts = torch.zeros(0, 0), torch.zeros(0)

    def observe(self, labels: Tensor, features: Tensor) -> None:
        """Add features (n, d) of classes, new or known."""
        classes = max(int(labels.max()) + 1, len(self.counts))
        means, counts = features.new_zeros(classes, features.shape[1]), features.new_zeros(classes)
        if len(self.counts):
            means[: len(self.counts)], counts[: len(self.counts)] = self.means, self.counts
        self.means, self.counts = updated(means, counts, labels, features)

    def cosines(self, features: Tensor) -> Tensor:
        """Cosine of features (n, d) with every class mean: (n, classes)."""
        return functional.linear(functional.normalize(features), functional.normalize(self.means.to(features)))

    def forget(self, label: int) -> None:
        kept = torch.arange(len(self.counts), device=self.counts.device) != label
        self.means, self.counts = self.means[kept], self.counts[kept]

    def merge(self, label: int, other: int) -> None:
        self.means, self.counts = combined(self.means, self.counts, label, other)

    def state(self) -> tuple[Part, None]:
        return {"means": self.means, "counts": self.counts} if len(self.counts) else {}, None

    def load(self, part: Part, meta: None = None) -> None:
        self.means, self.counts = part.get("means", torch.zeros(0, 0)), part.get("counts", torch.zeros(0))
        if self.means.ndim != 2 or self.counts.shape != self.means.shape[:1] or not (self.counts >= 0).all():
            raise LcaError(f"{tuple(self.means.shape)} means do not go with {tuple(self.counts.shape)} counts")

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int:
        return 4 * classes * (self._side_by_side * width + 1)


class Centre(ClassMeans):
    """The mean of all features so far, whatever their class: what all of them share tells no class from another."""

    combines: ClassVar[bool] = False

    def add(self, features: Tensor) -> None:
        self.observe(torch.zeros(len(features), dtype=torch.long), features)

    def beside(self, mean: Tensor) -> Tensor:
        """The centre of what else was seen than a new class with this mean feature: before all else, that mean."""
        return self.means if len(self.counts) else mean

    def forget(self, label: int) -> None:
        """What all classes share stays as it was."""

    def merge(self, label: int, other: int) -> None:
        """And so here."""

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int:
        return super().expected_bytes(tasks, 1, images, width)


def updated(means: Tensor, counts: Tensor, labels: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Means (classes, ..., d) and counts (classes, ...) with features (n, ..., d) added to the classes of their labels:
    μ <- μ + (mean of the k new - μ) k / (n + k)."""
    labels = labels.to(features.device)
    added = torch.zeros_like(counts).index_add(0, labels, torch.ones_like(features[..., 0]))
    sums = torch.zeros_like(means).index_add(0, labels, features)
    total = counts + added
    return means + (sums - added[..., None] * means) / total.clamp(min=1)[..., None], total


def combined(means: Tensor, counts: Tensor, label: int, other: int) -> tuple[Tensor, Tensor]:
    """Means (classes, ..., d) and counts (classes, ...) of which those of two classes are one, in the place of `label`:
    (n1 μ1 + n2 μ2) / (n1 + n2)."""
    pair = [label, other]
    total = counts[pair].sum(0)
    mean = (means[pair] * counts[pair][..., None]).sum(0) / total.clamp(min=1)[..., None]
    means, counts = means.clone(), counts.clone()
    means[label], counts[label] = mean, total
    kept = torch.arange(len(counts), device=counts.device) != other
    return means[kept], counts[kept]


def nearest_mean(train_labels: Tensor, train: Tensor, test: Tensor) -> Tensor:
    """The label, int32 (m,), of the class mean of the features `train` (n, d) nearest to each of `test` (m, d)."""
    means = ClassMeans()
    means.observe(train_labels, train)
    return means.cosines(test.to(train)).argmax(1).cpu().int()
