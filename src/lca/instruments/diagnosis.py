"""A finished run, diagnosed: one pass over the test images for every model it kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lca.classifier import ContinualClassifier
from lca.evaluation.overlap import by_task, overlaps
from lca.evaluation.similarity import similarity
from lca.instruments.kept import KeptModels
from lca.methods._branched import Branched
from lca.progress import Progress
from lca.results.measured import AS_TRAINED

PAIRS = 10
"""How many pairs of classes are named: those that overlap most, whichever classifier it is under."""


def diagnose_run(
    run: Path,
    *,
    device: str | None = None,
    weights: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Backbone similarity and class overlap of a run, as JSON.

    The images are all test images of the run, those of classes not learnt yet as well: the set must not change for the
    similarity. Overlap is about the classes learnt. The first task's model is what the others are compared with.
    """
    progress = progress or Progress()
    kept = KeptModels(run, device, weights, progress)
    first: Tensor | None = None
    facts: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    images = 0
    for task in kept.tasks:
        model = kept.open(task)
        stream = kept.stream(model)
        test = stream.test(len(stream) - 1)
        images, labels = len(test), test.labels
        features = model.features(test, f"task {task + 1}, test")
        first = features.cpu() if task == 0 else first
        homes = [home for home, new in enumerate(stream.task_classes) for _ in new][: len(model.classes)]
        known = (labels < len(model.classes)).to(features.device)
        found = _overlaps(model, features[known], labels[known.cpu()], task, progress)
        facts.append(
            {
                "task": task + 1,
                "classes": len(model.classes),
                "width": features.shape[1],
                "similarity": None if first is None else similarity(features.cpu(), first),
                "overlap": {
                    name: {"best": by_task(best, homes), "as_answered": by_task(answered, homes)}
                    for name, (best, answered) in found.items()
                },
            }
        )
        pairs = _closest(found, model.classes)
    return {**kept.facts, "images": images, "tasks": facts, "pairs": pairs}


def _overlaps(
    model: ContinualClassifier, features: Tensor, labels: Tensor, task: int, progress: Progress
) -> dict[str, tuple[Tensor, Tensor]]:
    """Of every classifier of a model; where there are branches, the heads before they did anything come first."""
    method = model.method
    names = method.branches()
    if isinstance(method, Branched):
        names = [AS_TRAINED, *(each.name for each in method.options.align if each.keeps_statistics)]
    with torch.no_grad():
        logits = {name: method.logits(features, name) for name in names}
    return {
        name: overlaps(each, labels, progress, f"task {task + 1}, {name}, overlap") for name, each in logits.items()
    }


def _closest(found: Mapping[str, tuple[Tensor, Tensor]], classes: list[str]) -> list[dict[str, Any]]:
    """The pairs of classes that overlap most under any classifier."""
    most = torch.stack([best.nan_to_num(-1.0) for best, _ in found.values()]).amax(0).triu(1)
    order = most.flatten().argsort(descending=True, stable=True)[:PAIRS]
    places = [divmod(place, len(classes)) for place in order.tolist() if most.flatten()[place] > 0]
    return [
        {
            "classes": [classes[i], classes[j]],
            "overlap": {
                name: {"best": float(a[i, j]), "as_answered": float(b[i, j])} for name, (a, b) in found.items()
            },
        }
        for i, j in places
    ]
