"""The theorems measured on one classifier of one model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lca.heads.alignment import AlignBranch, AlignmentOptions, nearest_mean_mask
from lca.heads.branch import BranchOptions
from lca.heads.loss import lca_loss
from lca.instruments.theory import bounds
from lca.instruments.theory.bounds import Draws, Terms
from lca.instruments.theory.divergence import Distance, Normal, covariance, distance
from lca.instruments.theory.losses import CLIP, BoundedLoss, bounded_losses
from lca.progress import Progress
from lca.randomness import generator
from lca.results.measured import error_of
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory

ADDED = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Variances added in every direction, to show how the distance of the Gaussians moves with them."""
ROUNDING = 1e-9
"""A total variation that differs from 1 by less is 1."""
AT_ONCE = 256
"""Samples of every class that are drawn at a time."""


@dataclass(frozen=True)
class Settings:
    """How the theorems are measured."""

    samples: int = 4096
    """Fresh samples of every class."""
    seed: int = 0
    """Of the fresh samples, together with the seed of the run: every seed of a recipe has its own. The classifiers of
    a task share theirs, both losses, and the distances with more and more variance, so that chance is in none of their
    differences."""
    delta: float = 0.05
    """The theorems hold with probability 1 - δ."""
    clip: float = CLIP
    """Maximum of the clipped cross-entropy."""
    added: Sequence[float] = ADDED
    """Variances that both Gaussians get in every direction on top of the ridge of the run, beside none."""

    def generator(self, run: int, what: str, task: int, memory: GaussianMemory) -> torch.Generator:
        """For fresh samples about a task of a run, by its seed; on the device of the Gaussians."""
        return generator(self.seed, f"{what} of seed {run}", task, device=memory.means().device)


@dataclass(frozen=True)
class Subject:
    """A classifier, after a task: its logits, the Gaussians it was aligned on, and how."""

    task: int
    logits: Callable[[Tensor], Tensor]
    memory: GaussianMemory
    branch: BranchOptions
    sizes: list[int]
    """Classes of every task head."""
    seed: int
    """Of the run."""
    trained_on: str
    """The type of device that the run drew its samples on."""

    @property
    def learnt_from_drawn(self) -> bool:
        """Whether the heads learnt from what is drawn again here: else the samples are only such as theirs. Another
        type of device draws others."""
        steps = (
            isinstance(self.branch, AlignBranch) and self.options.train_heads != "none" and not self.options.mean_decay
        )
        same = self.trained_on == self.memory.means().device.type
        return same and steps and (self.task > 0 or self.options.first_task)

    @property
    def options(self) -> AlignmentOptions:
        """How it was aligned; for heads that were not, as it usually is."""
        return self.branch if isinstance(self.branch, AlignBranch) else AlignmentOptions()

    def drawn(self) -> Tensor:
        """The samples that the alignment drew, (classes, n, d): randomness is derived, so they can be drawn again."""
        epochs = self.options.epochs if self.options.redraw else 1
        device = self.memory.means().device
        draws = (generator(self.seed, "samples", self.task, epoch, device) for epoch in range(epochs))
        return torch.cat([self.memory.sample(self.options.samples, each)[0] for each in draws], dim=1)

    def alignment_loss(self, drawn: Tensor) -> float:
        """The loss that the branch minimises (Eq. 1 and 2, by its options), of all samples as one batch."""
        rows, labels = _rows(drawn)
        keep = nearest_mean_mask(rows, labels, self.memory.means()) if self.options.nearest_mean_filter else None
        return float(lca_loss(self.logits(rows), labels, self.options, self.sizes, keep))

    def evaluate(self, samples: Tensor, losses: Mapping[str, BoundedLoss]) -> dict[str, Draws]:
        """Losses of samples (classes, n, d), and which of them lie in the cells of the stored means."""
        rows, labels = _rows(samples)
        inside = nearest_mean_mask(rows, labels, self.memory.means()).cpu().view(samples.shape[:2])
        logits = self.logits(rows)
        return {
            name: Draws(list(loss.of(logits, labels).cpu().view(samples.shape[:2])), list(inside))
            for name, loss in losses.items()
        }

    def fresh(self, memory: GaussianMemory, settings: Settings, what: str, progress: Progress) -> dict[str, Draws]:
        """Losses of fresh samples of Gaussians."""
        randomness = settings.generator(self.seed, what, self.task, memory)
        sizes = [min(AT_ONCE, settings.samples - start) for start in range(0, settings.samples, AT_ONCE)]
        losses = bounded_losses(settings.clip)
        tracked = progress.track(sizes, f"task {self.task + 1}, {self.branch.name}, samples of {what}", len(sizes))
        pieces = [self.evaluate(memory.sample(size, randomness)[0], losses) for size in tracked]
        return {name: Draws.joined([piece[name] for piece in pieces]) for name in losses}


@dataclass(frozen=True)
class Truth:
    """What no continual learner knows: the features of all training images so far under the current backbone."""

    gaussians: GaussianMemory
    """P_t."""
    drift: list[dict[str, Any]]
    """TV(P_t, P̂_t), first with the ridge of the samples alone, for Theorem 2, then with more variance."""

    @classmethod
    def about(
        cls, subject: Subject, features: Tensor, labels: Tensor, settings: Settings, progress: Progress
    ) -> "Truth":
        """Beside the Gaussians stored after a task, on their device."""
        stored = subject.memory
        true = true_gaussians(features, labels, stored.options).to(stored.means().device)
        return cls(true, _drift(true, subject, settings, progress))


@torch.no_grad()
def measure(
    subject: Subject,
    test: tuple[Tensor, Tensor],
    truth: Truth | None,
    settings: Settings,
    progress: Progress,
) -> dict[str, Any]:
    """Everything about one classifier, as JSON.

    `test` are features and labels of test images. With the truth about old classes Theorem 2 is evaluated.
    """
    losses, memory = bounded_losses(settings.clip), subject.memory
    samples = subject.drawn()
    drawn, fresh = subject.evaluate(samples, losses), subject.fresh(memory, settings, "stored Gaussians", progress)
    found = {name: bounds.terms(drawn[name], fresh[name], loss.maximum) for name, loss in losses.items()}
    facts: dict[str, Any] = {
        "task": subject.task + 1,
        "classes": len(samples),
        "samples_per_class": samples.shape[1],
        "heads_learnt_from_samples": subject.learnt_from_drawn,
        "alignment_loss": subject.alignment_loss(samples),
        "lambda": subject.options.robustness,
        "inside_own_cell": float(found["clipped"].inside.mean()),
        error_of("inside_own_cell"): found["clipped"].error("inside"),
        "cells_without_samples": sum(not mask.any() for mask in drawn["clipped"].inside),
        "losses": {name: _terms_and_measured(terms, settings.delta) for name, terms in found.items()},
    }
    for name, loss in losses.items():
        facts["losses"][name]["test_images"] = _class_mean(loss.of(subject.logits(test[0]), test[1]), test[1])
    sides = {name: _right_sides_1(terms, settings.delta) for name, terms in found.items()}
    if truth is not None:
        facts["drift"] = truth.drift
        for name, each in subject.fresh(truth.gaussians, settings, "true Gaussians", progress).items():
            mean, error = each.mean_loss()
            facts["losses"][name] |= {"true_gaussians": mean, error_of("true_gaussians"): error}
            sides[name] |= _right_sides_2(sides[name], truth.drift[0]["at_most"], losses[name].maximum)
    for name, own in sides.items():
        vacuous = [side for side in bounds.SIDES if side in own and bounds.is_vacuous(own[side], losses[name].maximum)]
        facts["losses"][name] |= {**own, "vacuous": vacuous}
    return facts


def true_gaussians(features: Tensor, labels: Tensor, stored: CovarianceOptions) -> GaussianMemory:
    """P_t: a full Gaussian of every class's true features, with the ridge of the stored ones."""
    memory = GaussianMemory(CovarianceOptions(kind="full", ridge=stored.ridge, unbiased=stored.unbiased))
    for label in labels.unique().tolist():
        memory.observe(label, features[labels == label])
    return memory


def _terms_and_measured(found: Terms, delta: float) -> dict[str, float]:
    return {
        "maximum": found.maximum,
        "drawn": float(found.weights @ found.drawn),
        "robustness": float(found.weights @ found.robustness),
        error_of("robustness"): found.error("robustness"),
        "uncertainty": bounds.uncertainty(len(found.counts), int(found.counts.sum()), delta, found.maximum),
        "gaussians": float(found.expected.mean()),
        error_of("gaussians"): found.error("expected"),
    }


def _right_sides_1(found: Terms, delta: float) -> dict[str, float]:
    """Bounds on the loss under the stored Gaussians."""
    sides = {
        "theorem_1": (bounds.theorem_1(found, delta), "robustness"),
        "corollary_1": (bounds.corollary_1(found, delta), "robustness"),
        "within_cells": (bounds.within_cells(found), "within_cells"),
        "without_cells": (bounds.without_cells(found), "without_cells"),
    }
    values = {name: value for name, (value, _) in sides.items()}
    return values | {error_of(name): found.error(key) for name, (_, key) in sides.items()}


def _right_sides_2(sides: Mapping[str, float], total_variation: float, maximum: float) -> dict[str, float]:
    """Bounds on the loss under the true Gaussians; the distance in them is in closed form."""
    lowest = min(("within_cells", "without_cells"), key=lambda name: sides[name])
    return {
        "theorem_2": bounds.theorem_2(sides["theorem_1"], total_variation, maximum),
        error_of("theorem_2"): sides[error_of("theorem_1")],
        "theorem_2_corrected": bounds.theorem_2_corrected(sides[lowest], total_variation, maximum),
        error_of("theorem_2_corrected"): sides[error_of(lowest)],
    }


def _drift(true: GaussianMemory, subject: Subject, settings: Settings, progress: Progress) -> list[dict[str, Any]]:
    stored, task = subject.memory, subject.task
    ridge, labels = stored.options.ridge, sorted(stored.classes)
    now, kept = (
        [Normal.of(memory.classes[label].mean, covariance(memory, label)).widened(ridge) for label in labels]
        for memory in (true, stored)
    )
    lines = []
    steps = sorted({0.0, *settings.added})
    with progress.task(f"task {task + 1}, drift", len(steps) * len(labels)) as advance:
        for added in steps:
            randomness = settings.generator(subject.seed, "distance", task, stored)
            distances = []
            for one, two in zip(now, kept, strict=True):
                distances.append(distance(one.widened(added), two.widened(added), settings.samples, randomness))
                advance(1)
            lines.append({"ridge": ridge, "added": added, **_mean_distance(distances)})
    return lines


def _mean_distance(distances: Sequence[Distance]) -> dict[str, Any]:
    """The mean over classes, which is the total variation of features and labels together."""
    names = ("at_least", "hellinger", "pinsker", "estimate", "at_most")
    means: dict[str, Any] = {name: _mean_or_none([getattr(each, name) for each in distances]) for name in names}
    square = _mean_or_none([None if each.error is None else each.error**2 for each in distances])
    means[error_of("estimate")] = None if square is None else math.sqrt(square / len(distances))
    means["classes_at_1"] = sum(each.at_most > 1 - ROUNDING for each in distances)
    return means | {"vacuous": means["at_most"] > 1 - ROUNDING}


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if len(known) == len(values) else None


def _rows(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Samples (classes, n, d) as rows, and their labels."""
    labels = torch.arange(len(samples), device=samples.device)
    return samples.flatten(0, 1), labels.repeat_interleave(samples.shape[1])


def _class_mean(losses: Tensor, labels: Tensor) -> float:
    """The mean over classes of their mean losses: P weights all classes alike."""
    return float(torch.stack([losses[labels == label].mean() for label in labels.unique()]).mean())
