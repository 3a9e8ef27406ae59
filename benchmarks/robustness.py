"""How long all of -C and -P takes: every corruption in five severities, every sequence, generated and answered.

python benchmarks/robustness.py --backbone deit_tiny_patch16_224.fb_in1k --weights FILE --out robust.json
python benchmarks/robustness.py --images 200 --frames-of 20     # a part, and what the whole would take
python benchmarks/robustness.py --show robust.json
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from lca.classifier import ContinualClassifier
from lca.damage import corruptions, perturbations
from lca.damage.corruptions import corrupt
from lca.damage.perturbations import perturb
from lca.data.images import ImageSet
from lca.data.options import DataOptions
from lca.data.sources import load_source
from lca.data.streams import Task
from lca.device import versions
from lca.files import read_json, write_json
from lca.instruments.robustness import Exam
from lca.progress import LineProgress, Progress
from lca.recipe import validate_recipe
from lca.text import markdown_table

CLASSES = 100
WHOLE = 10_000
"""Images of CIFAR's test set."""


def measure(
    backbone: dict[str, Any], count: int, frames_of: int, device: str, progress: Progress, classes: int = CLASSES
) -> dict[str, Any]:
    """Seconds of generating alone, by kind, and of whole evaluations; sequences on fewer images."""
    recipe = validate_recipe({"method": "simplecil", "backbone": backbone, "device": device})
    model = ContinualClassifier(recipe, progress=progress)
    source = f"synthetic:classes={classes},train=2,test={-(-count // classes)},size=32"
    images = load_source(DataOptions(source=source), 0, 32, progress)
    model.learn(Task(0, images.classes, images.train))
    test = images.test.subset(torch.arange(count))
    whole = Exam(model, test).pixels

    def evaluate(some: ImageSet, kind: str) -> None:
        exam = Exam(model, some)
        exam.measure(exam.damage(kind), progress=progress)

    generating = {
        name: _seconds(lambda n=name: [corrupt(whole, n, level) for level in corruptions.SEVERITIES])
        for name in corruptions.NAMES
    }
    few = whole[:frames_of]
    generating_frames = {name: _seconds(lambda n=name: perturb(few, n)) for name in perturbations.STANDARD}
    whole_c = _seconds(lambda: evaluate(test, "c"))
    part = test.subset(torch.arange(frames_of))
    whole_p = _seconds(lambda: evaluate(part, "p"))
    return {
        "backbone": backbone["name"],
        "images": count,
        "images_of_sequences": frames_of,
        "machine": model.compute.describe(),
        "versions": versions(),
        "seconds": {"corruptions": whole_c, "sequences": whole_p},
        "seconds_generating": {"corruptions": generating, "sequences": generating_frames},
    }


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - began, 3)


def show(results: dict[str, Any]) -> str:
    """A Markdown table."""
    seconds, generating = results["seconds"], results["seconds_generating"]
    slowest = sorted(generating["corruptions"].items(), key=lambda item: -item[1])[:3]
    rows = [
        [f"95 cells of {results['images']:,} images, generated and answered", f"{seconds['corruptions']:.0f}"],
        ["of that, generating", f"{sum(generating['corruptions'].values()):.0f}"],
        ["the slowest to generate, five severities", ", ".join(f"{name} {value:.1f}" for name, value in slowest)],
        [f"10 sequences of {results['images_of_sequences']:,} images", f"{seconds['sequences']:.0f}"],
    ]
    parts = {"95 cells": ("corruptions", "images"), "10 sequences": ("sequences", "images_of_sequences")}
    rows += [
        [f"{what} of {WHOLE:,} images, extrapolated", f"{seconds[kind] * WHOLE / results[count]:.0f}"]
        for what, (kind, count) in parts.items()
        if results[count] < WHOLE
    ]
    return f"**{results['backbone']}, {results['machine']['name']}**\n\n{markdown_table(['what', 'seconds'], rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=WHOLE, help="images of the corruptions; fewer are extrapolated")
    parser.add_argument("--frames-of", type=int, default=1_000, help="images of the sequences, at most --images")
    parser.add_argument("--backbone", default="vit_pico_patch8_64")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print the table of a result instead")
    options = parser.parse_args()
    if options.show:
        print(show(read_json(options.show)), end="")
        return
    backbone = {"name": options.backbone, "weights": options.weights and str(options.weights)}
    frames_of = min(options.frames_of, options.images)
    results = measure(backbone, options.images, frames_of, options.device, LineProgress())
    if options.out:
        write_json(options.out, results)
    print(show(results), end="")


if __name__ == "__main__":
    main()
