"""The experiment loop: a stream of tasks through a classifier, evaluated after each, resumable anywhere."""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from lca.backbones import load_backbone
from lca.classifier import ContinualClassifier
from lca.data.images import ImageSet
from lca.data.sources import load_source
from lca.data.streams import Stream, Task
from lca.device import versions
from lca.errors import LcaError
from lca.features import extract
from lca.files import FORMAT, Part, State, has_state, load_state, save_state, save_tensors, write_json
from lca.methods import Step
from lca.progress import Progress
from lca.ranks import current
from lca.recipe import Recipe
from lca.results.metrics import metrics_of
from lca.results.stored import StoredAnswers
from lca.runs.budget import Budget, BudgetSpent
from lca.runs.folder import RunFolder
from lca.runs.trunks import TrunkCache
from lca.statistics.prototypes import nearest_mean

T = TypeVar("T")


def run(
    recipe: Recipe,
    folder: Path,
    *,
    trunks: Path | None = None,
    budget: Budget | None = None,
    progress: Progress | None = None,
    checkpoint_every: float = 5.0,
) -> dict[str, Any]:
    """Run a recipe in a folder, or go on with the run that is there; returns the results.

    `trunks` is where trunks are kept and looked for. After a step, the state is written if the last one is at least
    `checkpoint_every` seconds old. A spent budget raises `BudgetSpent` with everything saved. Several ranks call this
    together (see `lca.ranks`): the first one decides, reads, writes and shows for all.
    """
    home, ranks = RunFolder(folder), current()
    if progress is None or not ranks.leads:
        progress = Progress()
    with home.hold(recipe):
        results = ranks.first(home.finished)
        if results is None:
            results = _Experiment(recipe, home, trunks, budget or Budget(), progress, checkpoint_every).run()
        return results


class _Experiment:
    """One run in progress."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        trunks: Path | None,
        budget: Budget,
        progress: Progress,
        checkpoint_every: float,
    ) -> None:
        self.recipe, self.folder, self.budget, self.progress, self.ranks = recipe, folder, budget, progress, current()
        backbone = load_backbone(recipe.backbone)

        def load() -> None:
            self.source = load_source(recipe.data, recipe.seed, backbone.preprocessing.size, progress)

        self.ranks.first(load)
        if not self.ranks.leads:  # after the first one, whose decoded images they may find in the cache
            load()
        self.ranks.check_same(
            lambda: (recipe.dump(), backbone.fingerprint, self.source.fingerprint), "recipe, weights and images"
        )
        self.stream = Stream(self.source, recipe.data, recipe.seed)
        self.labels = self.stream.test(len(self.stream) - 1).labels
        counts = [len(self.stream.test_of(number)) for number in range(len(self.stream))]
        self.task_of_image = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        if 0 in counts:
            number, domains = counts.index(0), self.stream.domains
            what = f"domain {domains[number]}" if domains else f"classes {', '.join(self.stream.asked(number)[:5])}"
            more = "" if domains else ", or put more classes into a task with data.tasks"
            raise LcaError(f"task {number + 1} has no images to evaluate on ({what}): add images{more}")
        if recipe.ood and self.stream.domains:
            progress.line("ood: images of later domains are of known classes, so there are no OOD images to measure on")
        self.classifier = ContinualClassifier(recipe, self.source.view, progress, backbone)
        coupled = self.classifier.method.couples_images()
        if self.ranks.count > 1 and coupled:
            raise LcaError(
                f"{coupled} lets the images of a batch influence each other, so that ranks cannot share them out; "
                "switch it off, or run this recipe in one process"
            )
        self.cache = None if trunks is None else TrunkCache(trunks, self.classifier, self.source)
        self.task = 0
        self.learnt = False
        self.done: dict[str, int] = {}
        self.evaluations: list[Part] = []
        self._frozen: dict[tuple[str, int], Tensor] = {}  # features of the test images of a task that cannot change
        self.seconds: dict[str, float] = defaultdict(float)
        self._has_trunk = False
        self._checkpoint_cost = 0.0
        self._every = checkpoint_every
        self._last_checkpoint = time.monotonic()
        stored = self.ranks.first(lambda: load_state(folder.checkpoint) if has_state(folder.checkpoint) else None)
        if stored is not None:
            self._restore(stored)
            folder.log("resumed", task=self.task, done=self.done)
            progress.line(f"going on with {folder.path}: task {self.task + 1} of {len(self.stream)}")
        else:
            folder.log("started", tasks=len(self.stream), classes=len(self.stream.classes))

    def run(self) -> dict[str, Any]:
        if self.classifier.method.info.needs_all_data:
            self._run_joint()
        else:
            while self.task < len(self.stream):
                self._run_task()
        return self.ranks.first(self._write_results)

    # The steps of a task

    def _learn(self, opened: AbstractContextManager[Task]) -> None:
        """Do what is left of a task, with a checkpoint after every step."""
        if self.learnt:
            return
        trunk_seconds: dict[str, float] = defaultdict(float)
        with opened as task:
            for step in self._steps_left(task):
                began = time.perf_counter()
                measured = step.run() or {}
                seconds = time.perf_counter() - began
                self.done[step.phase] = step.number + 1
                self.seconds[step.phase] += seconds
                where = {"task": self.task, "phase": step.phase, "step": step.number}
                self.folder.log("step", **where, seconds=round(seconds, 4), **measured)
                if step.trunk:
                    trunk_seconds[step.phase] += seconds
                if step.ends_trunk and self.cache is not None:
                    self._share_trunk(self.cache, trunk_seconds)
                self._checkpoint()
        self._task_learnt()

    def _steps_left(self, task: Task) -> Iterator[Step]:
        """The steps without those that were done before the run was resumed, and without the trunk if it is in the
        cache: then it is taken from there."""
        cached: bool | None = None
        for step in self.classifier.steps(task):
            self._has_trunk |= step.trunk
            if step.number < self.done.get(step.phase, 0):
                continue
            if step.trunk and cached is None:
                cached = self.cache is not None and self._trunk_from(self.cache)
            if step.trunk and cached:
                self.done[step.phase] = step.number + 1
            else:
                yield step

    def _trunk_from(self, cache: TrunkCache) -> bool:
        """Take the task's trunk from the cache; whether it was there."""
        stored = self.ranks.first(lambda: cache.load(self.task))
        if stored is None:
            return False
        self._take_trunk(stored)
        for name, seconds in stored.meta["seconds"].items():
            self.seconds[name] += seconds
        self.folder.log("trunk from cache", task=self.task)
        return True

    def _share_trunk(self, cache: TrunkCache, seconds: dict[str, float]) -> None:
        """Put the trunk into the cache; if another run was faster, go on with the other's, so that all agree."""
        state = self.classifier.method.trunk_state()
        state.meta = {"method": state.meta, "seconds": dict(seconds)}
        stored = self.ranks.first(lambda: None if cache.save(self.task, state) else cache.load(self.task))
        if stored is not None:
            self._take_trunk(stored)

    def _take_trunk(self, stored: State) -> None:
        self.classifier.method.load_trunk_state(State(stored.parts, stored.meta["method"]))

    # The loop

    def _run_task(self) -> None:
        self._learn(self.stream.open(self.task))
        cache = self.cache if self._has_trunk else None  # without a trunk of its own, a method shares no features
        features = self.ranks.first(lambda: cache.load_test_features(self.task) if cache else None)
        if features is None:
            features = self._timed("evaluate", self._test_features)
            if cache is not None and self.ranks.leads:
                cache.save_test_features(self.task, features)
        self._evaluated(features.to(self.classifier.compute.device), len(self.classifier.classes))
        if self.task + 1 < len(self.stream):
            with self.classifier.compute.determinism():
                self._look_ahead(self.evaluations[-1])
        self.task, self.learnt, self.done = self.task + 1, False, {}
        self._checkpoint()

    def _run_joint(self) -> None:
        """All data as one task; then the accuracy after task t is that on the images of the tasks up to t, among their
        classes."""
        self._learn(self.stream.everything())
        images = self.stream.test(len(self.stream) - 1)
        features = self._timed("evaluate", lambda: self.classifier.features(images, "test"))
        for task, classes in enumerate(accumulate(map(len, self.stream.task_classes))):
            self._evaluated(features[(self.task_of_image <= task).to(features.device)], classes)
            self.task += 1

    def _test_features(self) -> Tensor:
        """Features of the test images so far. What cannot change is computed once, task by task, so that a resumed run
        computes it in the same batches."""
        method = self.classifier.method
        if not any(map(method.lasts, [*method.frozen_inputs(), *method.feature_parts()])):
            return self.classifier.features(self.stream.test(self.task), f"task {self.task + 1}, test")
        with self.classifier.compute.determinism():
            return torch.cat([self._features_of(task, "test") for task in range(self.task + 1)])

    def _features_of(self, task: int, what: str) -> Tensor:
        """Features of the test images of one task, on the CPU; their parts that cannot change are kept."""
        method, what = self.classifier.method, f"task {self.task + 1}, {what}"
        inputs, parts = method.frozen_inputs(), method.feature_parts()
        found = {part: self._frozen[part, task] for part in [*inputs, *parts] if (part, task) in self._frozen}
        missing = [part for part in [*inputs, *parts] if part not in found]
        for part in missing:
            known = [found[each] for each in inputs if each in found]
            found[part] = method.features(self.stream.test_of(task), what, [part], known).cpu()
        self._frozen |= {(part, task): each for part, each in found.items() if method.lasts(part)}
        return torch.cat([found[part] for part in parts], dim=1)

    def _evaluated(self, features: Tensor, classes: int) -> None:
        """Predictions of every branch for the test images so far, among the first `classes` classes."""
        part: Part = {}
        accuracies: dict[str, float] = {}
        labels, unknown = self.stream.test(self.task).labels, self.classifier.method.unknown_scores(features)
        names = self.stream.classes[:classes]
        own_classes = torch.tensor(
            [[name in self.stream.asked(task) for name in names] for task in range(self.task + 1)]
        )
        elsewhere = ~own_classes[self.task_of_image[: len(labels)]]
        for branch in self.classifier.method.branches():
            logits = self.classifier.logits(features, branch)[:, :classes]
            confidence, prediction = logits.softmax(1).max(1)
            part[f"{branch}/prediction"] = prediction.cpu().int()
            part[f"{branch}/confidence"] = confidence.cpu()
            own = logits.masked_fill(elsewhere.to(logits.device), -torch.inf)
            part[f"{branch}/prediction within task"] = own.argmax(1).cpu().int()
            if branch in unknown:
                part[f"{branch}/unknown"] = unknown[branch].cpu()
            accuracies[branch] = 100 * int((prediction.cpu() == labels).sum()) / len(labels)
        self.evaluations.append(part)
        self.folder.log("evaluated", task=self.task, accuracy=accuracies)
        told = ", ".join(f"{branch} {accuracy:.1f}" for branch, accuracy in accuracies.items())
        self.progress.line(f"after task {self.task + 1} of {len(self.stream)}: accuracy {told}")

    def _look_ahead(self, part: Part) -> None:
        """What the recipe asks about the tasks to come. Nothing of it reaches the method."""
        method, following = self.classifier.method, self.task + 1
        known = [branch for branch in method.branches() if f"{branch}/unknown" in part]
        if self.recipe.ood and known and not self.stream.domains:
            later = range(following, len(self.stream))
            scores = method.unknown_scores(torch.cat([self._features_of(task, "ood") for task in later]))
            part |= {f"{branch}/ood": scores[branch].cpu() for branch in known}
        if self.recipe.forward_transfer:
            extractor, what = self.classifier.extractor, f"task {following + 1}, not yet learnt"

            def pretrained(images: ImageSet) -> Tensor:
                return extract(extractor, images, self.progress, what, embed=extractor.pretrained)

            asked = self.stream.asked(following)
            with self.stream.open(following) as task:
                new = task.train.of_classes([name for name in asked if name in task.classes])
                labels = torch.tensor([asked.index(name) for name in new.classes]).int()
                test, own = self.stream.test_of(following), method.features(new, what)
                answers = nearest_mean(new.labels, own, self._features_of(following, "next task"))
                before = nearest_mean(new.labels, pretrained(new), pretrained(test))
                part |= {"next task": labels[answers], "next task, pretrained": labels[before]}

    def _task_learnt(self) -> None:
        self.learnt = True
        self.folder.log("learnt", task=self.task)
        if self.recipe.keep_models != "none" and self.ranks.leads:
            self.classifier.save(self.folder.model(self.task))
            if self.recipe.keep_models == "last":
                self.folder.drop_older_models(self.task)
        self._checkpoint()

    def _timed(self, name: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = work()
        self.seconds[name] += time.perf_counter() - began
        return result

    # The state

    def _checkpoint(self) -> None:
        """Write the state if the last one is old enough, also for what writing it costs (at most a twentieth)."""
        spent = self.ranks.first(self.budget.spent)
        began = time.monotonic()
        due = max(self._every, 20 * self._checkpoint_cost) if self._every else 0.0
        if self.ranks.leads and (spent or began - self._last_checkpoint >= due):
            state = self.classifier.state()
            for number, part in enumerate(self.evaluations):
                state.parts[f"evaluation/{number}"] = part
            state.meta["run"] = {
                "task": self.task,
                "learnt": self.learnt,
                "done": self.done,
                "evaluations": len(self.evaluations),
                "seconds": dict(self.seconds),
                "data": self.source.fingerprint,
            }
            save_state(self.folder.checkpoint, state)
            self._last_checkpoint = time.monotonic()
            self._checkpoint_cost = self._last_checkpoint - began
        if spent:
            raise BudgetSpent

    def _restore(self, state: State) -> None:
        position = state.meta.pop("run")
        if position["data"] != self.source.fingerprint:
            raise LcaError(
                f"the images of {self.source.name} have changed since this run was begun. Nothing was written. Put "
                "them back to go on, or use another --out for a new run."
            )
        self.task, self.learnt, self.done = position["task"], position["learnt"], position["done"]
        self.seconds.update(position["seconds"])
        self.evaluations = [state.parts.pop(f"evaluation/{number}") for number in range(position["evaluations"])]
        self.classifier.load_state(state)

    # The results

    def _write_results(self) -> dict[str, Any]:
        stream = self.stream
        data = {
            "source": self.source.name,
            "sha256": self.source.fingerprint,
            "class_order": list(stream.classes),
            "task_sizes": [len(stream.asked(task)) for task in range(len(stream))],
            "domains": list(stream.domains),
            "train_images": stream.train_counts(),
            "test_images": stream.test_counts(),
            "near_copies": self.source.near_copies,
            "as_published": self.source.as_published,
        }
        labels = {"labels": self.labels.int()} | ({"tasks": self.task_of_image.int()} if stream.domains else {})
        branches = {
            branch: StoredAnswers.of_branch(branch, data, labels, self.evaluations)
            for branch in self.classifier.method.branches()
        }
        results = {
            "format": FORMAT,
            "recipe": self.recipe.dump(),
            "data": data,
            "backbone": {"name": self.classifier.backbone.name, "sha256": self.classifier.backbone.fingerprint},
            "versions": versions(),
            "machine": self.classifier.compute.describe(),
            "branches": {
                branch: {
                    "correct": answers.record().correct,
                    "metrics": metrics_of(answers),
                    "storage_bytes": self.classifier.method.storage(branch),
                }
                for branch, answers in branches.items()
            },
            "storage_bytes": self.classifier.memory(),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }
        tensors = {f"{number}/{name}": t for number, part in enumerate(self.evaluations) for name, t in part.items()}
        save_tensors(self.folder.predictions, labels | tensors)
        write_json(self.folder.results, results)
        shutil.rmtree(self.folder.checkpoint, ignore_errors=True)
        self.folder.log("finished")
        return results
