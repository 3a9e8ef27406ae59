"""How cost grows: alignment with the classes, a run with its tasks and images, training with the backbone's width.

python benchmarks/growth.py --out growth.json                    # small sizes, minutes on a CPU
python benchmarks/growth.py --full --out growth.json             # the sizes of real runs, on a GPU
python benchmarks/growth.py --plot growth.json --to docs/images  # a picture of each
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from alignment_loss import Sizes as AlignmentSizes
from alignment_loss import draws_of, heads_and_memory, options_of
from backbone_speed import Case, build, synthetic, training_cost
from lca.alignment import align
from lca.config import validate_recipe
from lca.device import Compute, versions
from lca.files import read_json, write_json
from lca.progress import LineProgress, Progress
from lca.report.figures import growth_curve
from lca.runs.experiment import run
from measuring import Settings, clock_of

SMALL = {
    "classes": (10, 30, 100),
    "width": 192,
    "samples": 32,
    "tasks": (2, 5, 10),
    "images": (5, 10, 20),
    "vits": ("vit_pico_patch8_64",),
    "batch": 16,
    "trained": 64,
}
FULL = {
    "classes": (100, 1_000, 10_000),
    "width": 768,
    "samples": 64,
    "tasks": (5, 10, 20, 50),
    "images": (20, 50, 100),
    "vits": ("deit_tiny_patch16_224", "deit_small_patch16_224", "vit_base_patch16_224"),
    "batch": 256,
    "trained": 20 * 256,
}


def measure(sizes: dict[str, Any], settings: Settings, progress: Progress) -> dict[str, Any]:
    progress.line("alignment")
    by_classes = [_alignment(classes, sizes, settings) for classes in sizes["classes"]]
    progress.line("tasks")
    by_tasks = [_run(tasks, sizes["images"][0], settings) for tasks in sizes["tasks"]]
    progress.line("images")
    by_images = [_run(sizes["tasks"][0], images, settings) for images in sizes["images"]]
    progress.line("width")
    by_width = [_training(name, sizes, settings) for name in sizes["vits"]]
    return {"classes": by_classes, "tasks": by_tasks, "images": by_images, "width": by_width}


def _alignment(classes: int, sizes: dict[str, Any], settings: Settings) -> dict[str, float]:
    """One epoch in balanced batches over classes of ten images; memory beyond what was there before."""
    shape = AlignmentSizes((), sizes["width"], sizes["samples"], 1, images=10)
    heads, memory = heads_and_memory(classes, shape, settings.device)
    options = options_of("balanced", sizes["samples"], 1)
    clock, on_gpu = clock_of(settings), settings.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = clock()
    align(heads, memory, options, draws_of)
    measured = {"classes": classes, "seconds": clock() - began}
    measured["microseconds a sample"] = 1e6 * measured["seconds"] / (classes * sizes["samples"])
    measured["stored MB"] = memory.expected_bytes(classes, 10, sizes["width"]) / 1e6
    if on_gpu:
        measured["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return measured


def _run(tasks: int, images: int, settings: Settings) -> dict[str, float]:
    """IM with its `best` branch on two classes a task, with the embedded transformer."""
    classes = 2 * tasks
    content = {
        "method": {"name": "im", "align": ["best"]},
        "training": {"epochs": 2},
        "data": {"source": f"synthetic:classes={classes},train={images},test=5,size=32", "tasks": tasks},
        "device": str(settings.device),
        "keep_models": "none",
    }
    with tempfile.TemporaryDirectory() as folder:
        results = run(validate_recipe(content), Path(folder) / "run")
    stored = results["branches"]["best"].get("storage_bytes", results["storage_bytes"])
    return {
        "tasks": tasks,
        "images": classes * images,
        "seconds": sum(results["seconds"].values()),
        "stored MB": sum(stored.values()) / 1e6,
    }


def _training(name: str, sizes: dict[str, Any], settings: Settings) -> dict[str, float]:
    case = Case(name, 16, sizes["batch"], sizes["trained"], 0)
    extractor = build(case, settings)
    cost = training_cost(extractor, synthetic(case.images), case, settings)
    return {"width": extractor.width, "images/s": case.images / cost.best}


AXES = {
    "classes": ("classes", "microseconds a sample"),
    "tasks": ("tasks", "seconds"),
    "images": ("images", "seconds"),
    "width": ("width", "images/s"),
}


def plot(results: dict[str, Any], folder: Path) -> list[Path]:
    """A picture of each, with the machine in its title."""
    paths = []
    for name, (x, y) in AXES.items():
        paths.append(folder / f"growth-{name}.png")
        points = [(point[x], point[y]) for point in results["growth"][name]]
        growth_curve(points, paths[-1], x, y, results["machine"]["name"])
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the sizes of real runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a written result, and stop")
    parser.add_argument("--to", type=Path, default=Path("docs/images"), help="where the pictures go")
    options = parser.parse_args()
    if options.plot:
        print(*plot(read_json(options.plot), options.to), sep="\n")
        return
    compute = Compute.choose(options.device)
    growth = measure(FULL if options.full else SMALL, Settings(device=compute.device), LineProgress())
    results = {"machine": compute.describe(), "versions": versions(), "growth": growth}
    if options.out:
        write_json(options.out, results)
    for name, points in growth.items():
        print(name, *points, sep="\n  ")


if __name__ == "__main__":
    main()
