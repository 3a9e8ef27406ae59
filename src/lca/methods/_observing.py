"""Base of methods whose statistics are of all of a task's images on one backbone, in one or several looks."""

import torch
from torch import Tensor

from lca.data.looks import Look, LookOptions, looks
from lca.data.streams import Task
from lca.methods._branched import Branched, BranchedOptions


class ObservingOptions(BranchedOptions):
    looks: LookOptions = LookOptions()
    """In which views the statistics see the images."""


class Observing(Branched):
    """What is observed of a task has a row for every look at an image."""

    options: ObservingOptions

    def see(self, task: Task, labels: list[int], sparing: bool = False) -> None:
        """Begin to observe a task: which image and which class every row of features is of. The plain views come first;
        anchors, which are of no class, last. An instant lesson is sparing with looks."""
        looks, of_classes = self._looks(task, sparing)
        images = [torch.arange(len(task.train)), *(look.rows for look in looks)]
        classes = [torch.tensor(labels)[task.train.labels[rows]] for rows in images[: 1 + of_classes]]
        none = [torch.full_like(rows, -1) for rows in images[1 + of_classes :]]
        self.observed = {"labels": torch.cat([*classes, *none])}
        if looks:
            self.observed["images"] = torch.cat(images)

    def extract(self, task: Task, what: str, parts: list[str] | None = None, sparing: bool = False) -> Tensor:
        """Features of the task's images in all looks, a row each as `see` says."""
        what = f"task {task.index + 1}, features {what}".rstrip()
        looks, _ = self._looks(task, sparing)
        plain = self.features(task.train, what, parts)
        return torch.cat([plain, *(self.features(task.train, what, parts, look=look) for look in looks)])

    def plain(self, name: str) -> Tensor:
        """Those of the observed rows that are plain views."""
        rows, images = self.observed[name], self.observed.get("images")
        return rows if images is None else rows[: int(images.max()) + 1]

    def _looks(self, task: Task, sparing: bool) -> tuple[list[Look], int]:
        crop, chosen = self.setting.extractor.centre_crop, self.options.looks
        draws = self.setting.generator("looks", task.index)
        return looks(task.train, chosen.sparing() if sparing else chosen, crop, draws)

    def left_out_logits(self, branch: str) -> tuple[Tensor, Tensor] | None:
        labels, features = self.observed["labels"], self.statistics_features(branch)
        return self.branch_set.left_out_logits(branch, features, labels, self.observed.get("images"))

    def statistics_features(self, branch: str) -> Tensor:
        """What of the observed features the statistics of a branch are made of."""
        raise NotImplementedError

    def class_means(self, first: int, name: str) -> Tensor:
        """Mean features of the task's classes from label `first` on."""
        labels, features = self.plain("labels"), self.plain(name)
        return torch.stack([features[labels == label].mean(0) for label in labels.unique().tolist() if label >= first])
