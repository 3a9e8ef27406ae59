"""FeTrIL: a frozen backbone, and old classes replayed by moving the features of new ones to the old means."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lca.heads.alignment import AlignmentOptions, align
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods._first_task import FirstTaskOptions, TunedOnFirstTask
from lca.randomness import generator
from lca.statistics.prototypes import ClassMeans


class FetrilOptions(FirstTaskOptions):
    name: Literal["fetril"] = "fetril"
    samples: int = Field(64, ge=1)
    """Features of every class that the classifier is trained on, drawn with replacement."""
    epochs: int = Field(20, ge=1)
    """Of the classifier, in every task."""
    lr: float = Field(0.01, gt=0)
    """Learning rate of the classifier."""


class TranslatedFeatures:
    """Features of a task's images stand in for every class: f + μ_c - μ_d, for a class c and the class d of the task
    whose mean is the most similar by cosine. For the task's own classes d = c, and these are their features."""

    def __init__(self, means: Tensor, labels: Tensor, features: Tensor) -> None:
        self._means, self._features = means, features
        donors = labels.unique()
        unit = functional.normalize(means)
        self._donor = donors[(unit @ unit[donors].T).argmax(1)]
        self._donor[donors] = donors
        order = labels.argsort(stable=True)
        counts = torch.bincount(labels, minlength=len(means))
        self._order, self._counts, self._starts = order, counts, counts.cumsum(0) - counts

    def means(self) -> Tensor:
        return self._means

    def sample(self, per_class: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """(classes, per_class, d), and their labels (classes, per_class)."""
        chance = torch.rand(len(self._means), per_class, generator=draws, device=self._features.device)
        counts, starts = self._counts[self._donor, None], self._starts[self._donor, None]
        places = starts + (chance * counts).long().clamp(max=counts - 1)
        shift = self._means - self._means[self._donor]
        labels = torch.arange(len(self._means), device=places.device)[:, None].expand(-1, per_class)
        return self._features[self._order[places]] + shift[:, None], labels


@methods.register("fetril")
class Fetril(TunedOnFirstTask):
    """After the idea of the paper, with our parts: published for convolutional networks trained on many first classes,
    with a support vector machine or a linear layer on top; here the tuner is trained on the first task and the
    classifier is a linear layer that goes on from task to task, on as many features of every class."""

    info = MethodInfo(
        title="FeTrIL (feature translation)",
        reference="Petit et al.: FeTrIL: Feature Translation for Exemplar-Free CIL, WACV 2023",
        trains="the tuner, on the first task; then one linear layer on features moved to the old class means",
    )
    Options: ClassVar = FetrilOptions
    options: FetrilOptions
    remembers: ClassVar[tuple[str, ...]] = (*TunedOnFirstTask.remembers, "means", "heads")

    def __init__(self, setting: Setting, options: FetrilOptions) -> None:
        super().__init__(setting, options)
        self.means = ClassMeans()
        self.heads = GrowingHeads(setting.extractor.width, LinearOptions(bias=True))

    def learn_classes(self, task: int, labels: Tensor, features: Tensor) -> None:
        self.means.observe(labels, features)
        learnt = sum(self.heads.sizes)
        if len(self.means.means) > learnt:
            self.heads.append_from_means(self.means.means[learnt:], self.setting.generator("head", task))
        if len(self.means.means) > 1:
            self.heads = self._trained(TranslatedFeatures(self.means.means, labels, features), task)

    def logits(self, features: Tensor, branch: str) -> Tensor:
        logits: Tensor = self.heads(features)
        return logits

    def _trained(self, features: TranslatedFeatures, task: int) -> GrowingHeads:
        """Plain cross-entropy, by the loop of classifier alignment."""
        options = self.options
        plain = AlignmentOptions(robustness=0.0, samples=options.samples, epochs=options.epochs, lr=options.lr)
        with self.setting.progress.task("classifier", options.epochs) as advance:
            heads, _ = align(
                self.heads,
                features,
                plain,
                lambda purpose, epoch, on: generator(self.setting.seed, purpose, task, epoch, on),
                lambda: advance(1),
            )
        return heads
