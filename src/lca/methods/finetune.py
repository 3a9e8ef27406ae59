"""Sequential fine-tuning: train on each task in turn and forget. The lower bound every method should beat."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lca.data.streams import Task
from lca.features import Tuned
from lca.heads.growing import GrowingHeads, HeadChoice, LinearOptions, PrototypeHead
from lca.methods import methods
from lca.methods._base import Method, MethodInfo, MethodOptions, Setting, Step
from lca.statistics.prototypes import Centre
from lca.training.loop import FineTuning

_CENTRED_ON = 128
"""Images of a task that the mean of all features is taken from."""


class SequentialOptions(MethodOptions):
    head: HeadChoice = LinearOptions()
    """The head a task is trained with; all heads together answer."""


class FinetuneOptions(SequentialOptions):
    name: Literal["finetune"] = "finetune"


@methods.register("finetune")
class SequentialFineTuning(Method):
    """Its settings are those of incremental merging, so that the two differ in the merge and the alignment only. The
    published baseline trains the whole backbone: `tuning: full`, 20 epochs in batches of 128 at a rate of 0.001."""

    info = MethodInfo(
        title="Sequential fine-tuning",
        reference="the plain baseline",
        trains="the tuner and the task's head",
    )
    Options: ClassVar[type[MethodOptions]] = FinetuneOptions
    options: SequentialOptions
    distils: ClassVar = True
    remembers: ClassVar[tuple[str, ...]] = ("tuned", "heads", "centre", "training")

    def __init__(self, setting: Setting, options: SequentialOptions) -> None:
        super().__init__(setting, options)
        self.heads = GrowingHeads(setting.extractor.width, options.head)
        self.training = FineTuning(setting)
        self.centre = Centre()
        self.tuned = Tuned(setting.extractor)

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        if len(task.classes) > 1:
            yield from self.finetuning(lambda epoch: self._finetune(task, epoch))
            yield Step("keep", lambda: self._keep(task, labels))
        elif labels[0] == sum(self.heads.sizes):
            yield Step("head from mean", lambda: self._head_from_mean(task))

    def logits(self, features: Tensor, branch: str) -> Tensor:
        logits: Tensor = self.heads(features)
        return logits

    def some_features(self, task: Task) -> Tensor:
        """Of a task that was trained, for the mean of all."""
        few = torch.linspace(0, len(task.train) - 1, min(len(task.train), _CENTRED_ON)).long()
        return self.features(task.train.subset(few), "mean feature")

    def _finetune(self, task: Task, epoch: int) -> dict[str, float]:
        return self.training.epoch(task, epoch, self.heads, teacher=self.tuned.tensors if self.heads.sizes else None)

    def _keep(self, task: Task, labels: list[int]) -> None:
        new = self.heads.new_places(labels)
        self.training.finish(task, self.heads, new)
        self.tuned.take()
        self.centre.add(self.some_features(task))
        newest = self.heads.tasks[-1]
        if new and isinstance(newest, PrototypeHead):
            features = self.features(task.train, "class means")
            means = [features[(task.train.labels == place).to(features.device)].mean(0) for place in new]
            newest.set_from_means(torch.stack(means), norm=1.0)

    def _head_from_mean(self, task: Task) -> None:
        features = self.features(task.train, "class mean")
        mean = features.mean(0, keepdim=True)
        self.heads.append_from_means(mean, self.setting.generator("head", task.index), self.centre.beside(mean))
        self.centre.add(features)
