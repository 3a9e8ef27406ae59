"""MACIL: sequential fine-tuning that keeps the shape of classes, with means that follow the backbone."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from lca.data.streams import Task
from lca.heads.branch import BranchChoice
from lca.heads.growing import CosineOptions, HeadChoice
from lca.merging.operators import Last, OperatorChoice
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods.im import ImOptions, IncrementalMerging
from lca.training.loop import FineTuning, Inputs

ALIGNMENT: dict[str, Any] = {"preset": "slca", "name": "macil", "epochs": 5, "drift": {"model": "mean_shift"}}


class MacilOptions(ImOptions):
    name: Literal["macil"] = "macil"  # type: ignore[assignment]
    merge: OperatorChoice = Last()
    head: HeadChoice = CosineOptions(train_scale=False)
    align: tuple[BranchChoice, ...] = (ALIGNMENT,)  # type: ignore[assignment]
    calibration: float = Field(1.0, ge=0)
    """Weight of the covariance calibration, from the second task on."""
    shrinkage: float = Field(10.0, gt=0)
    """What is added to the variances of the covariances that measure, in units of the mean variance."""


class CalibratedTraining(FineTuning):
    """Fine-tuning that keeps the Mahalanobis distances between images of one class as they were before the task."""

    def __init__(self, method: "Macil") -> None:
        super().__init__(method.setting)
        self._method = method
        self._whitening = torch.zeros(0)

    def inputs(self, task: Task) -> Inputs:
        if "before" in self._method.observed:
            before, labels = self._method.plain("before"), task.train.labels
            rows = [before[(labels == place).to(before.device)] for place in range(len(task.classes))]
            self._whitening = torch.stack([whitening(each, self._method.options.shrinkage) for each in rows])
        return super().inputs(task)

    def penalty(
        self, views: Tensor, features: Tensor, labels: Tensor, teacher: Mapping[str, Tensor] | None
    ) -> Tensor | None:
        weight = self._method.options.calibration
        if teacher is None or not weight:
            return None
        old = within_distances(self.features_before(views, teacher), labels, self._whitening)
        new = within_distances(features, labels, self._whitening)
        pairs = (labels[:, None] == labels).sum() - len(labels)
        return weight * (new - old).abs().sum() / pairs.clamp(min=1)


def whitening(features: Tensor, shrinkage: float) -> Tensor:
    """W with WᵀW = (Σ + s tr(Σ)/d I)⁻¹, Σ the covariance of features (n, d): the inverse of its Cholesky factor."""
    centred = features.double() - features.double().mean(0)
    covariance = centred.T @ centred / max(len(features) - 1, 1)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    level = (shrinkage * covariance.trace() / len(covariance)).clamp(min=1e-6)
    factor = torch.linalg.cholesky(covariance + level * identity)
    return torch.linalg.solve_triangular(factor, identity, upper=False).float()


def within_distances(features: Tensor, labels: Tensor, whitenings: Tensor) -> Tensor:
    """|W_c (x_i - x_j)| for images i and j of one class c, 0 for others: (n, n); the W_c are (classes, d, d)."""
    white = torch.einsum("cij,nj->nci", whitenings, features)
    white = white.take_along_dim(labels[:, None, None], dim=1)[:, 0]
    same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return torch.cdist(white, white) * same


@methods.register("macil")
class Macil(IncrementalMerging):
    """After the idea of the paper, with our parts: one LoRA on all of qkv that goes from task to task, where the
    published ones are on keys and values, one a task, summed; all tasks have as many epochs, where the first has twice
    as many; the mean shift is our drift model of that name (in the published code its weights are all but equal), the
    alignment SLCA's with our ridge. Its patch distillation is not built."""

    info = MethodInfo(
        title="MACIL (mean shift and covariance calibration)",
        reference="Navigating Semantic Drift in Task-Agnostic Class-Incremental Learning, arXiv 2502.07560",
        trains="the tuner and the task's head, then all heads on samples of the shifted class Gaussians",
    )
    Options: ClassVar = MacilOptions
    distils = False
    options: MacilOptions
    defaults: ClassVar = {
        "tuning": {"name": "lora", "rank": 32, "alpha": 64.0},
        "training": {"batch_size": 48, "weight_decay": 0.0, "final_lr": 0.0},
    }

    def __init__(self, setting: Setting, options: MacilOptions) -> None:
        super().__init__(setting, options)
        self.training = CalibratedTraining(self)

    def couples_images(self) -> str | None:
        return "method.calibration" if self.options.calibration else super().couples_images()
