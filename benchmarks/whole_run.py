"""A whole IM + LCA run of ten tasks, as `lca run` does it, beside the plain and the published way.

Our seconds are the wall-clock of the run, with the images read and everything evaluated, after a short run that fills
the compiler's cache. The plain ways would take hours: their training, their extraction and their alignment are measured
on a part and scaled to the same numbers of images and steps; loading, merging and scoring are left out in their favour.
"""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from alignment_loss import ALL_EPOCHS, heads_and_memory, options_of, scaled_loop
from alignment_loss import Sizes as AlignmentSizes
from lca.files import save_tensors
from lca.recipe import validate_recipe
from lca.runs.experiment import run
from measuring import Comparison, Cost, Numbers, Settings, Size, transformer
from plain_ways import PLAIN, PUBLISHED, measure

SUBJECT = "run"


@dataclass(frozen=True)
class Sizes:
    vit: str
    rank: int
    batch: int
    classes: int
    tasks: int
    train: int
    """Images of a class; a fifth as many are tested."""
    epochs: int
    samples: int
    extracted: int
    """Images of a batch whose features are extracted."""
    workers: tuple[int, int]


SIZES: dict[Size, Sizes] = {
    "tiny": Sizes("vit_pico_patch8_64", 4, 4, 4, 2, 5, 1, 8, 4, (0, 0)),
    "small": Sizes("vit_pico_patch8_64", 16, 32, 10, 5, 10, 1, 32, 64, (2, 2)),
    "full": Sizes("vit_base_patch16_224", 64, 64, 100, 10, 500, 10, 512, 256, (PLAIN.workers, PUBLISHED.workers)),
}


def compare(settings: Settings) -> list[Comparison]:
    sizes = SIZES[settings.size]
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "random.safetensors"
        save_tensors(weights, transformer(sizes.vit).state_dict())
        one_task = replace(sizes, classes=sizes.classes // sizes.tasks, tasks=1, epochs=1)
        _run(one_task, settings, weights, Path(folder) / "first")
        ours, rates = _run(sizes, settings, weights, Path(folder) / "whole")
    images = sizes.classes * sizes.train
    tested = sum(images // 5 * task // sizes.tasks for task in range(1, sizes.tasks + 1))
    numbers: Numbers = {"vit": sizes.vit, "classes": sizes.classes, "tasks": sizes.tasks, "images": images}
    numbers |= {"epochs": sizes.epochs, "batch": sizes.batch}
    rows = []
    loops = _loops(sizes, settings)
    for way, workers in zip((PLAIN, PUBLISHED), sizes.workers, strict=True):
        used = replace(way, workers=workers)
        training = measure("training", sizes.vit, sizes.rank, sizes.batch, used, settings)
        extraction = measure("extraction", sizes.vit, sizes.rank, sizes.extracted, used, settings)
        seconds = {
            "training": images * sizes.epochs * training.seconds,
            "extraction": (images + tested) * extraction.seconds,
            "alignment": loops,
        }
        plain = sum(seconds.values())
        parts = training.sizes("plain training") | extraction.sizes("plain extraction")
        parts |= {f"plain {name} seconds": round(value, 1) for name, value in seconds.items()}
        case = f"{sizes.tasks} tasks, {sizes.classes} classes, {sizes.vit} ({way.name}, scaled from a part)"
        rows.append(
            Comparison(SUBJECT, case, "seconds", Cost(ours, ours), Cost(plain, plain), numbers | parts, None, rates)
        )
    return rows


def _run(sizes: Sizes, settings: Settings, weights: Path, folder: Path) -> tuple[float, dict[str, float]]:
    """Wall-clock, and the seconds of every phase and the peak memory."""
    on_gpu = settings.device.type == "cuda"
    content: dict[str, Any] = {
        "method": {"name": "im", "align": [{"preset": "lca", "samples": sizes.samples}]},
        "backbone": {"name": sizes.vit, "weights": str(weights)},
        "tuning": {"name": "lora", "rank": sizes.rank, "alpha": 2.0 * sizes.rank},
        "training": {"epochs": sizes.epochs, "batch_size": sizes.batch},
        "data": {"source": f"synthetic:classes={sizes.classes},train={sizes.train},test={sizes.train // 5},size=32"},
        "device": str(settings.device),
        "compile": on_gpu,
        "keep_models": "none",
    }
    content["data"]["tasks"] = sizes.tasks
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(settings.device)
    began = time.perf_counter()
    results = run(validate_recipe(content), folder)
    ours = time.perf_counter() - began
    rates = {f"s {phase}": round(seconds, 1) for phase, seconds in results["seconds"].items()}
    if on_gpu:
        rates["peak GB"] = round(torch.cuda.max_memory_allocated(settings.device) / 1e9, 2)
    return ours, rates


def _loops(sizes: Sizes, settings: Settings) -> float:
    """Seconds of all alignments by the loop over classes, in the random batches that `lca` takes as published."""
    per_task, width = sizes.classes // sizes.tasks, transformer(sizes.vit).num_features
    shape = AlignmentSizes((), width, sizes.samples, ALL_EPOCHS, classes_per_task=per_task)
    options = options_of("random", sizes.samples, ALL_EPOCHS)
    counts = [per_task * task for task in range(2, sizes.tasks + 1)]
    tasks = [heads_and_memory(count, shape, settings.device) for count in counts]
    return sum(scaled_loop(*task, options, settings).seconds for task in tasks)
