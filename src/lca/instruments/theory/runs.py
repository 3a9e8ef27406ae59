"""The theorems measured on a whole run: every task whose model was kept, every classifier that has Gaussians."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lca.classifier import ContinualClassifier
from lca.data.images import ImageSet
from lca.data.streams import Stream
from lca.errors import LcaError, nearest
from lca.files import write_json
from lca.instruments.kept import KeptModels
from lca.instruments.theory.measure import Settings, Subject, Truth, measure
from lca.methods._branched import Branched
from lca.methods._subspaces import AlignedSubspaces
from lca.progress import Progress
from lca.results.measured import THEORY
from lca.statistics.gaussians import GaussianMemory


def theory_of_run(
    run: Path,
    settings: Settings,
    *,
    branch: str | None = None,
    old_data: bool = False,
    device: str | None = None,
    weights: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the theorems on a finished run, write them into its folder and return them.

    Needed are the models after the tasks (`keep_models: all`) and the data set. `old_data` reads the training images of
    earlier tasks, for diagnosis only.
    """
    progress = progress or Progress()
    kept = KeptModels(run, device, weights, progress)
    trained_on = kept.results["machine"]["device"]
    found: dict[str, list[dict[str, Any]]] = {}
    for task in kept.tasks:
        model = kept.open(task)
        if task == kept.tasks[0] and trained_on != (here := model.compute.device.type):
            progress.warning(
                f"the run was computed on {trained_on}, and {here} draws other samples than the heads learnt from: "
                "their part of the bounds is that of fresh samples"
            )
        names, stream = _branches(model, branch), kept.stream(model)
        test = _features(model, stream.test(task), f"task {task + 1}, test")
        old = _old_features(model, stream, task) if old_data else None
        truths: dict[int, Truth] = {}
        for name in names:
            subject, shared = _subject(model, name, task, trained_on), id(_stored(model, name))  # by branches
            if old is not None and shared not in truths:
                truths[shared] = Truth.about(subject, *old, settings, progress)
            found.setdefault(name, []).append(measure(subject, test, truths.get(shared), settings, progress))
    facts = {
        **kept.facts,
        "measured_on": model.compute.describe(),
        "settings": asdict(settings),
        "old_data": old_data,
        "branches": found,
    }
    write_json(run / THEORY.file, facts)
    return facts


def _branches(model: ContinualClassifier, wanted: str | None) -> list[str]:
    """The classifiers that have Gaussians, or the wanted one."""
    method = model.method
    if isinstance(method, AlignedSubspaces):
        raise LcaError(
            f"{model.recipe.method.name} keeps the Gaussians of every task's classes in a feature space of their own; "
            "the theorems are about Gaussians and heads in one space, as of method im with align: [lca]"
        )
    able = [name for name in method.branches() if isinstance(method, Branched) and method.statistics(name) is not None]
    if not able:
        raise LcaError(
            f"no classifier of this run keeps Gaussians of its features (method {model.recipe.method.name}, branches "
            f"{', '.join(method.branches())}); the theorems are about those, as of method im with align: [lca]"
        )
    if len(method.feature_parts()) > 1:
        raise LcaError(
            f"{model.recipe.method.name} answers in two passes here; the theorems are about heads that answer from the "
            "features that the Gaussians are of, as with second_pass: none"
        )
    if wanted is None:
        return able
    if wanted not in able:
        why = "keeps no Gaussians" if wanted in method.branches() else "is no branch of this run"
        raise LcaError(f"{wanted!r} {why}; {nearest(wanted, able)}")
    return [wanted]


def _subject(model: ContinualClassifier, branch: str, task: int, trained_on: str) -> Subject:
    method = model.method
    assert isinstance(method, Branched)
    return Subject(
        task,
        lambda features: model.logits(features, branch),
        _stored(model, branch).to(model.compute.device),
        method.branch_set.options[branch],
        method.heads.sizes,
        model.recipe.seed,
        trained_on,
    )


def _stored(model: ContinualClassifier, branch: str) -> GaussianMemory:
    statistics = model.method.statistics(branch)
    assert statistics is not None
    return statistics[0]


def _old_features(model: ContinualClassifier, stream: Stream, task: int) -> tuple[Tensor, Tensor]:
    """Features of all training images so far under the backbone of now, on the CPU. No learner may do this."""
    parts = []
    for earlier in range(task + 1):
        with stream.open(earlier) as opened:
            parts.append(_features(model, opened.train, f"task {task + 1}, images of task {earlier + 1}"))
    features, labels = zip(*parts, strict=True)
    return torch.cat(features).cpu(), torch.cat(labels).cpu()


def _features(model: ContinualClassifier, images: ImageSet, what: str) -> tuple[Tensor, Tensor]:
    """Features of images, and their labels as the model counts classes."""
    features = model.features(images, what)
    labels = torch.tensor([model.classes.index(name) for name in images.classes])[images.labels]
    return features, labels.to(features.device)
