"""What less memory costs: accuracy against the bytes of the Gaussians, for classes with more images than features.

The 100 classes of the small CIFAR-100 make CIFAR-100's 20 superclasses, of 400 training images each: more than the 192
features of DeiT-Tiny, so an exact factor is as large as a covariance matrix. The backbone stays as it is. Of every
class a part of the covariance is kept, and heads are made of nothing else: closed-form LDA, and heads that are aligned
from scratch on samples of the Gaussians. Seeds draw these heads' start, the samples and the batches.

    python paper/truncation.py --data DATA --weights DEIT_TINY.safetensors --out results/truncation.json
    python paper/truncation.py --show results/truncation.json
    python paper/truncation.py --plot results/truncation.json --to docs/images/truncation.png
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lca.classifier import ContinualClassifier
from lca.data.sources import load_source
from lca.device import versions
from lca.evaluation.intervals import mean_and_deviation
from lca.features import extract
from lca.files import nbytes, read_json, write_json
from lca.heads.branch import choose_branch
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.methods._branched import branch
from lca.progress import LineProgress, Progress
from lca.randomness import generator
from lca.recipe import validate_recipe
from lca.report.drawing import MARKERS, PALE, PALETTE, save
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
from lca.text import markdown_table

SEEDS = (1993, 1994, 1995)
CLASSIFIERS: dict[str, Any] = {
    "lda": {"kind": "lda"},
    "best": {"preset": "balanced", "classes_at_lr": None},
    "lca": {"preset": "lca"},
}
"""Presets of branches."""
KEPT: dict[str, dict[str, Any]] = {
    "everything": {},
    **{f"rank {rank}": {"rank": rank} for rank in (128, 64, 32, 16, 8, 4, 2, 1)},
    **{f"{share} % of the variance": {"energy": share / 100} for share in (99, 95, 90, 80, 50)},
    "one for all classes": {"kind": "shared"},
    "a variance per feature": {"kind": "diagonal"},
}
"""What is kept of a covariance; everything comes first."""
CURVES = {"rank": "leading directions", "energy": "share of the variance"}
"""What the picture joins by lines, by the option that the points differ in."""
SUPERCLASSES = (
    "beaver dolphin otter seal whale",
    "aquarium_fish flatfish ray shark trout",
    "orchid poppy rose sunflower tulip",
    "bottle bowl can cup plate",
    "apple mushroom orange pear sweet_pepper",
    "clock keyboard lamp telephone television",
    "bed chair couch table wardrobe",
    "bee beetle butterfly caterpillar cockroach",
    "bear leopard lion tiger wolf",
    "bridge castle house road skyscraper",
    "cloud forest mountain plain sea",
    "camel cattle chimpanzee elephant kangaroo",
    "fox porcupine possum raccoon skunk",
    "crab lobster snail spider worm",
    "baby boy girl man woman",
    "crocodile dinosaur lizard snake turtle",
    "hamster mouse rabbit shrew squirrel",
    "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "bicycle bus motorcycle pickup_truck train",
    "lawn_mower rocket streetcar tank tractor",
)
"""As in the data set's description (Krizhevsky, 2009)."""


@dataclass(frozen=True)
class Features:
    """Features (n, d) of a frozen backbone, and their classes."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def superclasses(names: Sequence[str]) -> Tensor:
    """The superclass of every class, in the order of their names."""
    home = {name: number for number, group in enumerate(SUPERCLASSES) for name in group.split()}
    return torch.tensor([home[name] for name in names])


def features_of(data: Path, backbone: dict[str, Any], progress: Progress) -> tuple[Features, dict[str, str]]:
    """Features of all images, labelled with their superclasses, and the machine that computed them."""
    images = {"source": f"folder:{data / 'cifar100-mini'}"}
    recipe = validate_recipe({"method": "simplecil", "tuning": "none", "backbone": backbone, "data": images})
    model = ContinualClassifier(recipe, progress=progress)
    source = load_source(recipe.data, recipe.seed, model.extractor.preprocessing.size, progress)
    home = superclasses(source.classes)
    train, test = (extract(model.extractor, each, progress, "features").cpu() for each in (source.train, source.test))
    found = Features(train, home[source.train.labels], test, home[source.test.labels])
    return found, model.compute.describe()


def measure(found: Features, kept: dict[str, dict[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each that is kept, beside the first of them on the same test images."""
    rows: list[dict[str, Any]] = []
    first: dict[str, Tensor] = {}
    for name, options in kept.items():
        memory = GaussianMemory(CovarianceOptions(**options))
        for label in found.train_labels.unique().tolist():
            memory.observe(label, found.train[found.train_labels == label])
        classifiers = {}
        for classifier in CLASSIFIERS:
            right = torch.stack([right_answers(classifier, memory, found, seed) for seed in seeds]).double()
            apart = (right - first.setdefault(classifier, right)).mean(0)
            classifiers[classifier] = {
                "accuracy": {str(seed): 100 * float(each.mean()) for seed, each in zip(seeds, right, strict=True)},
                "difference": 100 * float(apart.mean()),
                "half_interval": 196 * float(apart.std()) / math.sqrt(len(apart)),
            }
        rows.append({"kept": name, "covariance": options, "bytes": nbytes(memory.state()[0]), **classifiers})
    return rows


def right_answers(classifier: str, memory: GaussianMemory, found: Features, seed: int) -> Tensor:
    """Which test images are recognised by heads that are made of Gaussians alone: (n,)."""
    heads = GrowingHeads(found.train.shape[1], LinearOptions())
    heads.append(heads.new_head(len(memory.classes), generator(seed, "head")))
    chosen = choose_branch(branch({**CLASSIFIERS[classifier], "name": classifier}))
    heads, _ = chosen.fit(heads, memory, lambda purpose, epoch, on: generator(seed, purpose, 0, epoch, on))
    return heads(found.test).argmax(1) == found.test_labels


def over_seeds(row: dict[str, Any], classifier: str) -> tuple[float, float | None]:
    """Accuracy: mean and standard deviation."""
    return mean_and_deviation(list(row[classifier]["accuracy"].values()))


def kilobytes(row: dict[str, Any], results: dict[str, Any]) -> float:
    """Of the Gaussian of a class."""
    return row["bytes"] / results["classes"] / 1e3


def show(results: dict[str, Any]) -> str:
    """A Markdown table; in brackets the difference to the first row with its 95 % interval."""

    def cell(row: dict[str, Any], classifier: str) -> str:
        mean, deviation = over_seeds(row, classifier)
        spread = "" if deviation is None else f" ± {deviation:.1f}"
        return f"{mean:.1f}{spread} ({row[classifier]['difference']:+z.1f} ± {row[classifier]['half_interval']:.1f})"

    rows, everything = results["rows"], results["rows"][0]["bytes"]
    lines = [
        [
            row["kept"],
            f"{kilobytes(row, results):.1f}",
            f"{100 * row['bytes'] / everything:.1f}",
            *(cell(row, classifier) for classifier in CLASSIFIERS),
        ]
        for row in rows
    ]
    return markdown_table(["kept of a covariance", "kB a class", "% of all", *CLASSIFIERS], lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """Accuracy against bytes, a panel a classifier; bars are standard deviations over seeds."""
    from matplotlib.figure import Figure

    everything, *others = results["rows"]
    curves = {name: [everything] for name in CURVES.values()}
    for row in others:
        (option,) = row["covariance"]
        curves.setdefault(CURVES.get(option, row["kept"]), []).append(row)
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, len(CLASSIFIERS), sharey=True)
    for axes, classifier in zip(panels, CLASSIFIERS, strict=True):
        for (name, rows), colour, marker in zip(curves.items(), PALETTE, MARKERS, strict=False):
            across = [kilobytes(row, results) for row in rows]
            means, deviations = zip(*(over_seeds(row, classifier) for row in rows), strict=True)
            bars = [deviation or 0 for deviation in deviations]
            axes.errorbar(across, means, bars, label=name, color=colour, marker=marker, markersize=5, capsize=2)
        axes.axhline(over_seeds(everything, classifier)[0], color=PALE, linestyle=":", zorder=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("kB a class")
        axes.set_title(classifier, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy on test images (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=len(curves))
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with cifar100-mini")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--weights", type=Path, help="safetensors file; by default timm's download")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of a written result, and stop")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a written result, and stop")
    parser.add_argument("--to", type=Path, default=Path("docs/images/truncation.png"), help="where the picture goes")
    options = parser.parse_args()
    if options.show:
        print(show(read_json(options.show)), end="")
        return
    if options.plot:
        plot(read_json(options.plot), options.to)
        return
    if not options.data:
        parser.error("--data is needed")
    backbone = {"name": options.backbone, "weights": options.weights and str(options.weights)}
    found, machine = features_of(options.data, backbone, LineProgress())
    torch.set_num_threads(1)  # the steps of an alignment are too small to share
    results = {
        "machine": machine,
        "versions": versions(),
        "backbone": options.backbone,
        "features": found.train.shape[1],
        "classes": len(SUPERCLASSES),
        "images": found.train_labels.bincount().tolist(),
        "test_images": len(found.test),
        "rows": measure(found, KEPT, options.seeds),
    }
    print(show(results), end="")
    if options.out:
        write_json(options.out, results)


if __name__ == "__main__":
    main()
