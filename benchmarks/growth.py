"""How cost grows: alignment with the classes, a run with its tasks and images, training with the backbone's width.

python benchmarks/growth.py --out growth.json                    # small sizes, minutes on a CPU
python benchmarks/growth.py --full --out growth.json             # the sizes of real runs, on a GPU
python benchmarks/growth.py --full classes --out growth.json     # only that again; the file keeps the others
python benchmarks/growth.py --plot growth.json --to docs/images  # a picture of each
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from alignment_loss import Sizes as AlignmentSizes
from alignment_loss import draws_of, heads_and_memory, options_of
from backbone_speed import Case, build, training_cost
from lca.device import Compute, versions
from lca.files import nbytes, read_json, write_json
from lca.heads.alignment import align
from lca.progress import LineProgress
from lca.recipe import validate_recipe
from lca.report.drawing import MARKERS, PALETTE, new_figure, save
from lca.runs.experiment import run
from measuring import Settings, clock_of, synthetic, threads_beside

SMALL: dict[str, Any] = {
    "classes": (10, 30, 100),
    "aligned": 1_000,
    "width": 192,
    "samples": 32,
    "tasks": (2, 5, 10),
    "split": (20, 5),
    "images": (5, 10, 20),
    "vits": ("vit_pico_patch8_64",),
    "batch": 16,
    "trained": 64,
}
FULL: dict[str, Any] = {
    "classes": (100, 1_000, 10_000),
    "aligned": 20_000,
    "width": 768,
    "samples": 64,
    "tasks": (5, 10, 20, 50),
    "split": (100, 20),
    "images": (50, 200, 800, 3_200),
    "vits": ("deit_tiny_patch16_224", "deit_small_patch16_224", "vit_base_patch16_224"),
    "batch": 256,
    "trained": 20 * 256,
}


def measure(name: str, sizes: dict[str, Any], settings: Settings) -> list[dict[str, float]]:
    """The points of one curve; the first is measured twice, because what comes first also starts the device.

    `tasks` splits the same classes, with the same images (`split`: how many, and how many of each), into more and more
    tasks; `images` gives more images to two classes a task.
    """
    if name == "classes":
        _alignment(sizes["classes"][0], sizes, settings)
        return [_alignment(classes, sizes, settings) for classes in sizes["classes"]]
    if name == "width":
        return [_training(vit, sizes, settings) for vit in sizes["vits"]]
    fewest = sizes["tasks"][0]
    shapes = {
        "tasks": [(tasks, *sizes["split"]) for tasks in sizes["tasks"]],
        "images": [(fewest, 2 * fewest, images) for images in sizes["images"]],
    }[name]
    _run(*shapes[0], settings)
    return [_run(*shape, settings) for shape in shapes]


def _alignment(classes: int, sizes: dict[str, Any], settings: Settings) -> dict[str, float]:
    """In balanced batches over classes of ten images. The first epoch also draws the features and captures a step, so
    a sample's share is of the later ones: at least two, and many of few classes."""
    epochs = 1 + max(2, sizes["aligned"] // classes)
    shape = AlignmentSizes((), sizes["width"], sizes["samples"], epochs, images=10)
    heads, memory = heads_and_memory(classes, shape, settings.device)
    options = options_of("balanced", sizes["samples"], epochs)
    clock, on_gpu = clock_of(settings), settings.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ends: list[float] = []
    align(heads, memory, options, draws_of, lambda: ends.append(clock()))
    seconds = (ends[-1] - ends[0]) / (epochs - 1)
    measured = {"classes": classes, "epochs": epochs, "seconds an epoch": seconds}
    measured["microseconds a sample"] = 1e6 * seconds / (classes * sizes["samples"])
    measured["stored MB"] = nbytes(memory.state()[0]) / 1e6
    if on_gpu:
        measured["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return measured


def _run(tasks: int, classes: int, images: int, settings: Settings) -> dict[str, float]:
    """IM with its `best` branch on so many images of every class, with the embedded transformer."""
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
        "classes": classes,
        "images": classes * images,
        "seconds": sum(results["seconds"].values()),
        "stored MB": sum(stored.values()) / 1e6,
    }


def _training(name: str, sizes: dict[str, Any], settings: Settings) -> dict[str, float]:
    case = Case(name, 16, sizes["batch"], sizes["trained"])
    extractor = build(case, settings)
    cost = training_cost(extractor, synthetic(case.images), case, settings)
    return {"width": extractor.width, "images/s": case.images / cost.best}


AXES = {
    "classes": ("microseconds a sample", "stored MB", "peak GB"),
    "tasks": ("seconds", "stored MB"),
    "images": ("seconds", "stored MB"),
    "width": ("microseconds an image",),
}
"""What is drawn over the curve's name, a picture each."""
MEMORY = {"stored MB": "-stored", "peak GB": "-peak"}
"""How the names of their pictures end."""


def _cost(point: dict[str, float], name: str) -> float:
    return 1e6 / point["images/s"] if name == "microseconds an image" else point[name]


def draw(points: Sequence[tuple[float, float]], path: Path, x: str, y: str, title: str) -> None:
    """How y grows with x, both on logarithmic axes; a dotted line shows what grows in proportion."""
    figure = new_figure(5, 3.6)
    axes = figure.subplots()
    across, up = zip(*points, strict=True)
    axes.loglog(across, up, color=PALETTE[0], marker=MARKERS[0])
    proportional = [up[0] * each / across[0] for each in across]
    axes.loglog(across, proportional, color=PALETTE[7], linestyle=":", label="in proportion")
    axes.set_xticks(across, [f"{each:,g}" for each in across])
    axes.minorticks_off()
    from matplotlib.ticker import LogLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3, which="both")
    save(figure, path)


def plot(results: dict[str, Any], folder: Path) -> list[Path]:
    """A picture of each that was measured, with the machine in its title; memory has pictures of its own."""
    paths = []
    for name in results:
        for y in AXES[name]:
            measured = results[name]["points"]
            if y == "peak GB" and y not in measured[0]:  # a CPU does not tell
                continue
            paths.append(folder / f"growth-{name}{MEMORY.get(y, '')}.png")
            points = [(point[name], _cost(point, y)) for point in measured]
            draw(points, paths[-1], name, y, results[name]["machine"]["name"])
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which curves, of {', '.join(AXES)}; all by default")
    parser.add_argument("--full", action="store_true", help="the sizes of real runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a written result, and stop")
    parser.add_argument("--to", type=Path, default=Path("docs/images"), help="where the pictures go")
    options = parser.parse_args()
    if options.plot:
        print(*plot(read_json(options.plot), options.to), sep="\n")
        return
    if unknown := set(options.names) - set(AXES):
        parser.error(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(AXES)}")
    compute, progress = Compute.choose(options.device), LineProgress()
    torch.set_num_threads(threads_beside(compute.device))
    results = read_json(options.out) if options.out and options.out.exists() else {}
    for name in options.names or AXES:
        progress.line(name)
        points = measure(name, FULL if options.full else SMALL, Settings(device=compute.device))
        for point in points:
            progress.line(f"  {point}")
        results[name] = {"machine": compute.describe(), "versions": versions(), "points": points}
        if options.out:
            write_json(options.out, results)


if __name__ == "__main__":
    main()
