"""What a run stored about its test images, and what follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lca.errors import LcaError
from lca.evaluation.accuracy import AccuracyRecord, correct_by_class
from lca.evaluation.calibration import calibration_error, reliability
from lca.evaluation.confusion import confusion_matrix, most_confused
from lca.evaluation.detection import detection
from lca.evaluation.intervals import Outcomes
from lca.evaluation.transfer import forward_transfer
from lca.files import FORMAT, load_tensors, read_json
from lca.results.folder import RunFiles, SweepFiles


@dataclass(frozen=True)
class StoredAnswers:
    """The answers of one branch about all test images after every task."""

    classes: Sequence[str]
    task_sizes: list[int]
    """Classes that the test images of each task can have."""
    labels: Tensor
    """(n,) of all test images, task by task and there class by class."""
    after: Sequence[Mapping[str, Tensor]]
    """After task t, about the images of the classes seen so far: `prediction`, `confidence` (the probability of the
    prediction), `prediction within task` (the best class of the image's own task), and, where there are class
    statistics, `unknown`; `ood` are the same scores of all images of later tasks. `next task` and `next task,
    pretrained` name the images of the next task after its nearest class means. Old runs lack some of them."""
    domains: Sequence[str] = ()
    """That of every task, where all classes come back in them."""
    tasks: Tensor | None = None
    """(n,) of all test images, in a stream of domains; in others their labels say it."""

    @classmethod
    def of_branch(
        cls, branch: str, data: Mapping[str, Any], images: Mapping[str, Tensor], after: Sequence[Mapping[str, Tensor]]
    ) -> "StoredAnswers":
        """One branch's tensors of all, under their own names; those that belong to no branch are everyone's. `data` is
        what results.json says of the images, `images` are their labels and tasks."""
        own = f"{branch}/"
        chosen = [
            {key.removeprefix(own): each for key, each in part.items() if key.startswith(own) or "/" not in key}
            for part in after
        ]
        for part in chosen:
            if "strangers" in part:  # as earlier versions called it
                part["ood"] = part.pop("strangers")
        domains, tasks = data.get("domains", ()), images["tasks"].long() if data.get("domains") else None
        return cls(tuple(data["class_order"]), data["task_sizes"], images["labels"].long(), chosen, domains, tasks)

    @property
    def places(self) -> Tensor:
        """(n,): the count of right answers to which every test image adds, that of its class. Every domain has counts
        of its own."""
        return self.labels if self.tasks is None else self.tasks * len(self.classes) + self.labels

    def record(self, what: str = "prediction") -> AccuracyRecord:
        """Right answers by class after every task."""
        places = self.places
        correct = [
            correct_by_class(right, places[places < end], end)
            for right, end in zip(self._right(what), self._ends, strict=True)
        ]
        total = torch.bincount(places, minlength=self._ends[-1]).tolist()
        return AccuracyRecord(correct, total, self.task_sizes, self.domains)

    def outcomes(self) -> Outcomes:
        """Which images were recognised, for resampling."""
        names = ["/".join(filter(None, each)) for each in counted(self.classes, self.domains)]
        return Outcomes(names, self.task_sizes, self.places, self._right(), self.domains)

    def _right(self, what: str = "prediction") -> list[Tensor]:
        """After every task, of each image asked about so far."""
        return [part[what].long() == self.seen(task) for task, part in enumerate(self.after)]

    def fits(self) -> bool:
        """Whether there is an answer about every image, and all of them and the labels name classes."""
        if self.tasks is not None and self.tasks.shape != self.labels.shape:
            return False
        answers = [part["prediction"] for part in self.after]
        named = all(bool(((each >= 0) & (each < len(self.classes))).all()) for each in (self.labels, *answers))
        whole = all(len(each) == len(self.seen(task)) for task, each in enumerate(answers))
        counts = len(self.classes) * max(len(self.domains), 1)
        return named and whole and sum(self.task_sizes) == counts and bool((self.places < counts).all())

    def seen(self, task: int) -> Tensor:
        """Labels of the test images of the tasks up to this one."""
        return self.labels[self.places < self._ends[task]]

    def confusion(self) -> Tensor:
        """The confusion matrix after the last task."""
        return confusion_matrix(self.after[-1]["prediction"], self.labels, len(self.classes))

    def task_known(self) -> AccuracyRecord | None:
        """The record with the task of every image given: the answer is the best class of that task."""
        what = "prediction within task"
        return self.record(what) if all(what in part for part in self.after) else None

    def calibration(self) -> dict[str, Any]:
        """Calibration error after each task, and the reliability table after the last. The probabilities are the
        softmax of the logits as they are: a run fits no temperature."""
        answers = [(part["confidence"], right) for part, right in zip(self.after, self._right(), strict=True)]
        errors = [calibration_error(*each) for each in answers]
        return {
            "error": errors[-1],
            "after_each_task": errors,
            "reliability": [asdict(each) for each in reliability(*answers[-1])],
        }

    def unknown_detection(self) -> dict[str, Any] | None:
        """AUROC and FPR95 of the unknown score after each task but the last, the images of later tasks being the
        OOD images, and their means. None where the scores were not stored, and for a single task."""
        if not (parts := self._before_the_last("ood")):
            return None
        found = [detection(part["unknown"], part["ood"]) for part in parts]
        columns = {name: [each[name] for each in found] for name in found[0]}
        return {
            **{name: sum(values) / len(values) for name, values in columns.items()},
            "after_each_task": columns,
        }

    def forward_transfer(self) -> dict[str, Any] | None:
        """Forward transfer by nearest class means; None where it was not measured, and for a single task."""
        if not (parts := self._before_the_last(*NEXT)):
            return None
        accuracies: dict[str, list[float | None]] = {name: [] for name in NEXT}
        for task, part in enumerate(parts, start=1):
            start, end = self._ends[task - 1], self._ends[task]
            labels = self.places[(self.places >= start) & (self.places < end)] - start
            for name, found in accuracies.items():
                share = (part[name].long() == labels).double().mean()
                found.append(100 * float(share) if end - start > 1 else None)
        return forward_transfer(*accuracies.values())

    def most_confused(self) -> list[list[Any]]:
        """The class of an image, the one it was called, and how often, after the last task."""
        pairs = most_confused(self.confusion())
        return [[self.classes[truth], self.classes[answer], times] for truth, answer, times in pairs]

    def _before_the_last(self, *names: str) -> Sequence[Mapping[str, Tensor]]:
        """What was stored after all tasks but the last, if these are in all of it."""
        parts = self.after[:-1]
        return parts if all(name in part for part in parts for name in names) else []

    @property
    def _ends(self) -> list[int]:
        return [*accumulate(self.task_sizes)]


NEXT = ("next task", "next task, pretrained")


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, StoredAnswers]]:
    """The results of a finished run and the answers of every branch."""
    files = RunFiles.of(folder)
    if not files.results.exists() or not files.predictions.exists():
        raise LcaError(f"{files.path} {_what_is_missing(files)}")
    results = read_json(files.results)
    given = results.get("format") if isinstance(results, dict) else None
    if given != FORMAT:
        raise LcaError(f"{files.results} has format {given}, this version reads {FORMAT}")
    tensors = load_tensors(files.predictions)
    try:
        found = _by_branch(results, tensors)
        fit = all(each.fits() for each in found.values())
    except (KeyError, TypeError):
        fit = False
    if not fit:
        raise LcaError(f"{files.results} and {files.predictions.name} do not fit together; one was changed or damaged")
    return results, found


def _by_branch(results: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, StoredAnswers]:
    data = results["data"]
    after = [
        {key.removeprefix(f"{task}/"): each for key, each in tensors.items() if key.startswith(f"{task}/")}
        for task in range(len(data["task_sizes"]))
    ]
    return {branch: StoredAnswers.of_branch(branch, data, tensors, after) for branch in results["branches"]}


def counted(classes: Sequence[str], domains: Sequence[str]) -> list[tuple[str, str]]:
    """What each count of right answers is about: a domain, or nothing, and a class."""
    return [(domain, name) for domain in domains or [""] for name in classes]


def same_tasks(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two runs have the same classes and domains in the same tasks."""

    def tasks(results: Mapping[str, Any]) -> Any:
        data = results["data"]
        return data["class_order"], data["task_sizes"], data.get("domains", [])

    return bool(tasks(one) == tasks(two))


def same_test_images(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two runs were tested on the same images. The images that a validation share holds out depend on seed and
    share."""

    def tested(results: Mapping[str, Any]) -> Any:
        data, recipe = results["data"], results["recipe"]["data"]
        drawn = recipe["evaluate"] == "validation"
        share = (results["recipe"]["seed"], recipe["validation"], recipe["train_limit"]) if drawn else None
        counts = zip(counted(data["class_order"], data.get("domains", [])), data["test_images"], strict=True)
        return data["sha256"], share, dict(counts)

    return bool(tested(one) == tested(two))


def _what_is_missing(files: RunFiles) -> str:
    if not files.path.exists():
        return "does not exist; `lca run` makes a run folder"
    if SweepFiles(files.path).pack.exists():
        return "is a sweep: give one of its runs, " + str(files.path / "cells" / "*")
    if files.results.exists():
        return "has no predictions.safetensors, from which the metrics are computed"
    if files.recipe.exists():
        return "holds a run that is not finished yet"
    return "is no run folder: it holds no results.json"
