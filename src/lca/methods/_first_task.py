"""Base of methods that tune the backbone on their first task and learn every class on top of it, frozen."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from lca.data.streams import Task
from lca.features import Tuned
from lca.heads.growing import CosineOptions, GrowingHeads, HeadChoice
from lca.methods._base import Method, MethodOptions, Setting, Step
from lca.training.loop import FineTuning


class FirstTaskOptions(MethodOptions):
    head: HeadChoice = CosineOptions(scale=1.0)
    """The head the first task is tuned with; it is dropped afterwards."""


class TunedOnFirstTask(Method):
    """Base of methods that tune the backbone on their first task and keep it so. A first task of one class has nothing
    to be told apart: then the backbone stays as it was pre-trained, for good."""

    options: FirstTaskOptions
    remembers: ClassVar[tuple[str, ...]] = ("tuned", "training", "tasks")
    defaults: ClassVar = {"tuning": {"name": "adapter"}, "training": {"epochs": 20, "batch_size": 48, "final_lr": 0.0}}

    def __init__(self, setting: Setting, options: FirstTaskOptions) -> None:
        super().__init__(setting, options)
        self.tuned = Tuned(setting.extractor)
        self.training = FineTuning(setting)
        self.tasks = 0

    def trains(self, task: Task) -> bool:
        return self.tasks == 0 and len(task.classes) > 1 and bool(self.tuned.tensors)

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        heads = GrowingHeads(self.setting.extractor.width, self.options.head)
        if self.trains(task):
            yield from self.finetuning(lambda epoch: self.training.epoch(task, epoch, heads))
            yield Step("freeze", lambda: self._freeze(task, heads))
        yield Step("learn classes", lambda: self._learn(task, labels))

    def learn_classes(self, task: int, labels: Tensor, features: Tensor) -> None:
        """Learn the classes of a task from the labels and the features of its images on the frozen backbone."""
        raise NotImplementedError

    def feature_parts(self) -> list[str]:
        return ["tuned"]

    def finish_task(self) -> None:
        self.tasks += 1

    def _learn(self, task: Task, labels: list[int]) -> None:
        features = self.features(task.train, "features")
        self.learn_classes(task.index, torch.tensor(labels)[task.train.labels].to(features.device), features)

    def _freeze(self, task: Task, heads: GrowingHeads) -> None:
        self.training.finish(task, heads, list(range(len(task.classes))))
        self.tuned.take()
