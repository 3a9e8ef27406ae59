"""Base of methods with branches: several classifiers on one training, each with statistics and alignment of its own."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import field_validator
from torch import Tensor

from lca.data.background import FAMILIES, PICTURES, SPOILT, background, one_of_each, spoilt
from lca.data.streams import Task
from lca.errors import LcaError
from lca.files import Part, State
from lca.heads.branch import BranchChoice, BranchOptions
from lca.heads.branches import BranchSet
from lca.heads.growing import GrowingHeads, HeadOptions
from lca.methods._base import Method, MethodOptions, Setting, Step
from lca.registry import Registry
from lca.statistics.distances import KnownDistances
from lca.statistics.gaussians import GaussianMemory
from lca.statistics.prototypes import Centre

presets: Registry[Mapping[str, Any]] = Registry("branch", package="lca.methods")
"""Branches by name. Those that belong to a method stand in the method's file."""
PLAIN: dict[str, Any] = {"robustness": 0.0, "average": "samples", "batches": "random", "statistics": "before"}
"""Plain classifier alignment."""
presets.register("none")({"kind": "none"})
presets.register("ca")(PLAIN)
presets.register("lca")({"nearest_mean_filter": True, "batches": "random", "statistics": "before"})
DRIFT: dict[str, Any] = {"model": "affine", "strength": 0.2, "residual": True}
"""How old Gaussians follow the backbone where nothing else is published."""
presets.register("balanced")({"robustness": 0.0, "drift": {"model": "affine"}, "first_task": True, "classes_at_lr": 10})
presets.register("lda")({"kind": "lda", "drift": DRIFT, "shrinkage": None, "means": "bayes"})
presets.register("quadratic")({"kind": "quadratic", "drift": DRIFT})
presets.register("best")({"kind": "quadratic", "drift": DRIFT})


def branch(spec: Any) -> Any:
    """A branch as the recipe writes it: a preset's name, or a mapping that may start from a preset."""
    if isinstance(spec, str):
        spec = {"name": spec, "preset": spec}
    if isinstance(spec, dict) and "preset" in spec:
        try:
            preset = presets[str(spec["preset"])]
        except LcaError as error:
            raise ValueError(str(error)) from None
        return {"name": spec["preset"], **preset, **{key: value for key, value in spec.items() if key != "preset"}}
    return spec


class BranchedOptions(MethodOptions):
    """Base of the options of methods with branches."""

    align: tuple[BranchChoice, ...] = ("best",)  # type: ignore[assignment]
    """Branches on the one trunk, each one row of results: names of presets, such as none, ca, lca, lda and best,
    or mappings."""

    @field_validator("align", mode="before")
    @classmethod
    def _branches(cls, value: Any) -> Any:
        several = [value] if isinstance(value, str | dict) else value
        return [branch(each) for each in several] if isinstance(several, list | tuple) else several

    @field_validator("align")
    @classmethod
    def _consistent_branches(cls, value: tuple[BranchOptions, ...]) -> tuple[BranchOptions, ...]:
        names = [each.name for each in value]
        if not names:
            raise ValueError("align needs at least one branch; `none` is the heads as trained")
        if len(set(names)) < len(names):
            raise ValueError(f"every branch needs a name of its own, got {names}")
        return value


class Branched(Method):
    """A trunk of task heads, trained once, and branches that align copies of them. What the trunk is made of besides,
    a subclass adds to `trunk_state`; it fills `observed` for the statistics in the trunk."""

    branch_keys = frozenset({"align"})
    remembers: ClassVar[tuple[str, ...]] = ("heads", "centre", "tasks")
    tells_unknown: ClassVar[bool] = True
    """Whether the branches' statistics tell unknown images from known ones."""
    options: BranchedOptions

    def __init__(self, setting: Setting, options: BranchedOptions) -> None:
        super().__init__(setting, options)
        self.heads = GrowingHeads(setting.extractor.width, self.head_options())
        self.branch_set = BranchSet(options.align, self.heads, self.tells_unknown)
        self.centre = Centre()
        self.tasks = 0
        self.observed: Part = {}
        """Labels and features of the task's images, for the statistics."""

    def head_options(self) -> HeadOptions:
        """What a task's head is."""
        raise NotImplementedError

    def statistics_of_task(self) -> None:
        """Bring what was observed into the branches' statistics."""
        raise NotImplementedError

    def rows_seen(self, images: int) -> tuple[int, int]:
        """In how many views the statistics see an image of a class with so many, and from how many rows of each image
        drift models learn how the backbone moves."""
        return 1, 0

    def observe_background(self, task: Task, moved: bool) -> None:
        """See what known things are told from, on the backbone as it is: generated pictures, where it has moved or
        nobody has seen them yet, and one photo of each class of the task, spoilt."""
        if not self.tells_unknown:
            return
        if moved or not self.tasks or self.branch_set.lacks_background:
            self.observed["families"] = self._background(f"task {task.index + 1}, features of the background")
        extractor = self.setting.extractor
        scaling, draws = extractor.preprocessing, self.setting.generator("spoilt photos", task.index)
        photos = spoilt(
            task.train, one_of_each(task.train), scaling.size, scaling.interpolation, extractor.centre_crop, draws
        )
        what = f"task {task.index + 1}, features of spoilt photos"
        features = self.features(photos, what, self.feature_parts()[:1], centre_crop=1.0)
        self.observed["spoilt"] = features.unflatten(0, (len(SPOILT), -1)).mean(1)

    def _background(self, what: str) -> Tensor:
        """The mean features (families, d) of generated pictures."""
        pictures = background(self.setting.extractor.preprocessing.size)
        features = self.features(pictures, what, self.feature_parts()[:1], centre_crop=1.0)
        return features.unflatten(0, (-1, PICTURES)).mean(1)

    def branch_steps(self, task: Task) -> Iterator[Step]:
        """What follows the trunk of a task."""
        yield Step("statistics", self.statistics_of_task)
        for name in self.branch_set.heads:
            yield Step(f"align {name}", partial(self._align, name, task.index))

    def append_means(self, means: Tensor, task: int) -> None:
        """Add a head for classes that are not trained, made of their mean features (classes, d)."""
        centre = self.centre.beside(means.mean(0, keepdim=True))
        self.heads.append_from_means(means, self.setting.generator("head", task), centre)

    def logits(self, features: Tensor, branch: str) -> Tensor:
        return self.branch_set.logits(features, branch)

    def branches(self) -> list[str]:
        return [each.name for each in self.options.align]

    def derives(self, branch: str) -> bool:
        return self.branch_set.options[branch].derived

    def statistics(self, branch: str) -> tuple[GaussianMemory, KnownDistances] | None:
        return self.branch_set.statistics(branch)

    def forget(self, label: int) -> None:
        super().forget(label)
        self.branch_set.forget(label)

    @property
    def combines(self) -> bool:
        return super().combines or self.branch_set.combines

    def merge_classes(self, label: int, other: int) -> None:
        super().merge_classes(label, other)
        self.branch_set.merge(label, other)

    def refit(self) -> None:
        """What was tuned stays as it is; the heads of the classes that are left are aligned again."""
        if sum(self.heads.sizes) > 1:
            for name in self.branch_set.heads:
                self._align(name, self.tasks)

    def storage(self, branch: str | None = None) -> dict[str, int]:
        sizes = super().storage()
        if branch is None:
            return sizes
        own = self.branch_set.parts_of(branch)
        return {part: size for part, size in sizes.items() if part in own or part not in self.branch_set.state().parts}

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        trunk = super().expected_bytes(tasks, classes, images)
        views, pairs = self.rows_seen(images)
        pairs *= classes // tasks * images
        width = self.setting.extractor.width
        branches = self.branch_set.expected_bytes(tasks, classes, images, width, views, pairs)
        shown = 4 * width * (len(FAMILIES) + len(SPOILT)) * len(self.branch_set.distances)
        return None if trunk is None or branches is None else trunk + branches + shown

    def finish_task(self) -> None:
        self.observed = {}
        self.tasks += 1

    def trunk_state(self) -> State:
        state = super().state()
        state.parts["features"] = self.observed
        return state

    def load_trunk_state(self, state: State) -> None:
        super().load_state(state)
        self.observed = self.on_device(state.parts["features"])

    def state(self) -> State:
        trunk, branches = self.trunk_state(), self.branch_set.state()
        return State(trunk.parts | branches.parts, trunk.meta | branches.meta)

    def load_state(self, state: State) -> None:
        self.load_trunk_state(state)
        self.branch_set.load_state(state, self.setting.extractor.compute.device)
        if self.branch_set.lacks_background and self.tasks:  # as an earlier version left it
            self.branch_set.adopt(self._background("features of the background"))

    def _align(self, name: str, task: int) -> dict[str, float]:
        setting = self.setting
        return self.branch_set.align(
            name,
            task,
            first=self.tasks == 0,
            seed=setting.seed,
            device=setting.extractor.compute.device,
            progress=setting.progress,
        )
