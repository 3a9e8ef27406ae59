"""Base of methods whose statistics are of all of a task's images on one backbone, in one or several looks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lca.data.images import ImageSet
from lca.data.looks import Look, LookOptions, looks
from lca.data.streams import Task
from lca.files import State
from lca.methods._base import Passes, Setting, Step
from lca.methods._branched import Branched, BranchedOptions
from lca.methods._second_pass import NoSecondPass, SecondPassChoice


class ObservingOptions(BranchedOptions):
    looks: LookOptions = LookOptions()
    """In which views the statistics see the images."""
    second_pass: SecondPassChoice = NoSecondPass()
    """What else is seen of an image that is to be answered: `mirror`, its mirror image, or `frozen`, the image on the
    backbone as it was pre-trained. It doubles what an answer costs."""


class Observing(Branched):
    """What is observed of a task has a row for every look at an image.

    With a second pass, an image's feature has a second part. What it is learnt by, and how far it lies from what is
    known, are by the first one alone. Where the second part has class statistics of its own, a `partner` keeps them:
    a method that learns beside this one, whose state is a part of this one's.
    """

    first_part: ClassVar[str] = ""
    """Name of the part of features that is learnt by."""
    options: ObservingOptions

    def __init__(self, setting: Setting, options: ObservingOptions) -> None:
        super().__init__(setting, options)
        self.partner = options.second_pass.partner(setting, options)

    def observe(self, task: Task, labels: list[int], sparing: bool = False) -> None:
        """Begin a task: see its images on the backbone as it is."""
        raise NotImplementedError

    def statistics_features(self, branch: str) -> Tensor:
        """What of the observed features the statistics of a branch are made of."""
        raise NotImplementedError

    @property
    def passes(self) -> Passes:
        return "2" if len(self.feature_parts()) > 1 else super().passes

    def feature_parts(self) -> list[str]:
        return [self.first_part, *self.options.second_pass.parts(self.first_part)]

    def logits(self, features: Tensor, branch: str) -> Tensor:
        """Features without a second part, such as samples of Gaussians, are answered in one pass."""
        first, *others = features.split(self.setting.extractor.width, dim=1)
        logits = super().logits(first, branch)
        for second in others:
            answer = super().logits(second, branch) if self.partner is None else self.partner.logits(second, branch)
            logits = self.options.second_pass.joined(logits, answer)
        return logits

    def branch_steps(self, task: Task) -> Iterator[Step]:
        """A partner takes every step along with this method."""
        steps = super().branch_steps(task)
        if self.partner is None:
            return steps
        return (_both(*pair) for pair in zip(self.partner.branch_steps(task), steps, strict=True))

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
        if self.partner is not None:
            self.partner.observe(task, labels, sparing)

    def extract(self, task: Task, what: str, sparing: bool = False) -> Tensor:
        """The first part of the features of the task's images in all looks, a row each as `see` says."""
        what = f"features {what}".rstrip()
        looks, _ = self._looks(task, sparing)
        plain = self.features(task.train, what, [self.first_part])
        return torch.cat([plain, *(self.features(task.train, what, [self.first_part], look=look) for look in looks)])

    def plain(self, name: str) -> Tensor:
        """Those of the observed rows that are plain views."""
        rows, images = self.observed[name], self.observed.get("images")
        return rows if images is None else rows[: int(images.max()) + 1]

    def class_means(self, first: int, name: str) -> Tensor:
        """Mean features of the task's classes from label `first` on."""
        labels, features = self.plain("labels"), self.plain(name)
        return torch.stack([features[labels == label].mean(0) for label in labels.unique().tolist() if label >= first])

    def left_out_logits(self, branch: str, images: ImageSet) -> tuple[Tensor, Tensor] | None:
        """A second view of an image is asked as it is; what the statistics lose is all they saw of the image."""
        labels, features = self.observed["labels"], self.statistics_features(branch)
        views, parts = self.observed.get("images"), self.feature_parts()[1:]
        told = self.branch_set.left_out_logits(branch, features, labels, views)
        if told is None or not parts:
            return told
        if self.partner is None:
            asked = self.features(images, "left-out images", parts)
            second = self.branch_set.left_out_logits(branch, features, labels, views, asked)
        else:
            second = self.partner.left_out_logits(branch, images)
        assert second is not None  # the same heads
        return self.options.second_pass.joined(told[0], second[0]), told[1]

    def finish_task(self) -> None:
        super().finish_task()
        if self.partner is not None:
            self.partner.finish_task()

    def forget(self, label: int) -> None:
        super().forget(label)
        if self.partner is not None:
            self.partner.forget(label)

    def merge_classes(self, label: int, other: int) -> None:
        super().merge_classes(label, other)
        if self.partner is not None:
            self.partner.merge_classes(label, other)

    def refit(self) -> None:
        super().refit()
        if self.partner is not None:
            self.partner.refit()

    def storage(self, branch: str | None = None) -> dict[str, int]:
        sizes = super().storage(branch)
        if self.partner is None or branch is None:
            return sizes
        others = {part: size for part, size in sizes.items() if not part.startswith(_PARTNER)}
        return others | {_PARTNER + part: size for part, size in self.partner.storage(branch).items()}

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        own = super().expected_bytes(tasks, classes, images)
        partner = 0 if self.partner is None else self.partner.expected_bytes(tasks, classes, images)
        return None if own is None or partner is None else own + partner

    def trunk_state(self) -> State:
        state = super().trunk_state()
        return state if self.partner is None else _with_partner(state, self.partner.trunk_state())

    def load_trunk_state(self, state: State) -> None:
        super().load_trunk_state(state)
        if self.partner is not None:
            self.partner.load_trunk_state(_of_partner(state))

    def state(self) -> State:
        state = super().state()
        return state if self.partner is None else _with_partner(state, self.partner.state())

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if self.partner is not None:
            self.partner.load_state(_of_partner(state))

    def _looks(self, task: Task, sparing: bool) -> tuple[list[Look], int]:
        crop, chosen = self.setting.extractor.centre_crop, self.options.looks
        draws = self.setting.generator("looks", task.index)
        return looks(task.train, chosen.sparing() if sparing else chosen, crop, draws)


_PARTNER = "second/"
"""Begins the names of a partner's parts."""


def _with_partner(state: State, partner: State) -> State:
    parts = {_PARTNER + name: part for name, part in partner.parts.items()}
    return State(state.parts | parts, state.meta | {_PARTNER: partner.meta})


def _of_partner(state: State) -> State:
    parts = {name.removeprefix(_PARTNER): part for name, part in state.parts.items() if name.startswith(_PARTNER)}
    return State(parts, state.meta[_PARTNER])


def _both(first: Step, second: Step) -> Step:
    """Two steps as one, which measures what the second one does."""

    def run() -> dict[str, float] | None:
        first.run()
        return second.run()

    return replace(second, run=run)
