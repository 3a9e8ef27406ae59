"""How well several scores tell classes that were not learnt yet, on frozen features and a validation share.

After each task but the last, images of the classes learnt so far are known and those of the later ones OOD, as in
`lca metrics`; the images of the other set are far OOD images. Every score uses what a model stores (class means and
covariances) and nothing else. No test image is read: the images asked are held out of the training images.

    python paper/unknown.py --data DATA --weights DEIT_TINY.safetensors --out unknown.json
    python paper/unknown.py --show unknown.json
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lca.classifier import ContinualClassifier
from lca.data.sources import load_source
from lca.data.streams import Stream
from lca.device import versions
from lca.evaluation.detection import accepted_ood, auroc, detection
from lca.features import extract
from lca.files import read_json, write_json
from lca.progress import LineProgress, Progress
from lca.recipe import validate_recipe
from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
from lca.text import markdown_table

SEED = 1996
SETS = {
    "digits": ("digits", 5),
    "vtab-mini": ("folder:{}/vtab-mini", 5),
    "cifar100-mini": ("folder:{}/cifar100-mini", 10),
}
"""Source and tasks by name."""
FAR = {"digits": "vtab-mini", "vtab-mini": "cifar100-mini", "cifar100-mini": "vtab-mini"}
IMAGES = 40
"""Images per class, of which a quarter is asked."""


class Whitened:
    """Features and class means in coordinates where the pooled covariance is the unit matrix and the mean of the class
    means is the origin."""

    def __init__(self, memory: GaussianMemory, features: Tensor) -> None:
        means, root = memory.means().double(), memory.root().double()
        centre = means.mean(0)
        self.features, self.means = (
            torch.linalg.solve_triangular(root, (rows.double() - centre).T, upper=False).T for rows in (features, means)
        )
        self.distances = torch.cdist(self.features, self.means).square()
        self.cosines = functional.normalize(self.features) @ functional.normalize(self.means).T

    def spread(self) -> Tensor:
        """Squared distance to the centre under the covariance of all classes together."""
        total = torch.eye(self.means.shape[1], dtype=torch.float64) + self.means.T @ self.means / len(self.means)
        rows = torch.linalg.solve_triangular(torch.linalg.cholesky(total), self.features.T, upper=False)
        return rows.square().sum(0)


SCORES: dict[str, Callable[[Whitened], Tensor]] = {
    "Mahalanobis distance d² (used)": lambda at: at.distances.amin(1),
    "whitened cosine, 1 - cos": lambda at: 1 - at.cosines.amax(1),
    "d² · (1 - cos)": lambda at: at.distances.amin(1) * (1 - at.cosines.amax(1)),
    "relative Mahalanobis, d² - d₀²": lambda at: at.distances.amin(1) - at.spread(),
    "largest LDA logit": lambda at: -(at.features @ at.means.T - at.means.square().sum(1) / 2).amax(1),
    "energy of the LDA logits": lambda at: -(at.features @ at.means.T - at.means.square().sum(1) / 2).logsumexp(1),
}
"""The higher, the less like what is known."""


def features_of(source: str, tasks: int, backbone: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Features of the frozen backbone of the images that are learnt and of those held out, class by class."""
    data = {"source": source, "tasks": tasks, "train_limit": IMAGES, "validation": 0.25, "evaluate": "validation"}
    recipe = validate_recipe(
        {"method": "simplecil", "tuning": "none", "backbone": backbone, "data": data, "seed": SEED, "device": "auto"}
    )
    model = ContinualClassifier(recipe, progress=progress)
    stream = Stream(
        load_source(recipe.data, SEED, model.extractor.preprocessing.size, progress), recipe.data, recipe.seed
    )
    with stream.everything() as task:
        train, labels = extract(model.extractor, task.train, progress, f"{source}, learnt").cpu(), task.train.labels
    asked = stream.test(len(stream) - 1)
    return {
        "train": train,
        "train_labels": labels,
        "asked": extract(model.extractor, asked, progress, f"{source}, asked").cpu(),
        "asked_labels": asked.labels,
        "sizes": [len(classes) for classes in stream.task_classes],
    }


def measure(found: dict[str, Any], far: Tensor) -> dict[str, dict[str, float]]:
    """By score: means over the tasks but the last."""
    memory, rows, end = GaussianMemory(CovarianceOptions()), [], 0
    for size in found["sizes"][:-1]:
        for label in range(end, end + size):
            memory.observe(label, found["train"][found["train_labels"] == label])
        end += size
        near, others = Whitened(memory, found["asked"]), Whitened(memory, far)
        known = found["asked_labels"] < end
        rows.append(
            {
                name: {
                    **detection(score(near)[known], score(near)[~known]),
                    "far_auroc": auroc(score(near)[known], score(others)),
                    "far_fpr95_known_positive": accepted_ood(score(near)[known], score(others)),
                }
                for name, score in SCORES.items()
            }
        )
    return {name: {key: sum(row[name][key] for row in rows) / len(rows) for key in rows[0][name]} for name in SCORES}


def show(results: dict[str, Any]) -> str:
    """A Markdown table of each set."""
    header = ["score", "AUROC", "FPR95, known positive", "OOD positive", "far: AUROC", "FPR95, known positive"]
    tables = [
        f"{name}\n\n"
        + markdown_table(header, [[score, *(f"{each:.1f}" for each in row.values())] for score, row in rows.items()])
        for name, rows in results["sets"].items()
    ]
    return "\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with vtab-mini and cifar100-mini")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print the tables of a result instead")
    options = parser.parse_args()
    if options.show:
        print(show(read_json(options.show)), end="")
        return
    backbone = {"name": options.backbone, "weights": options.weights and str(options.weights)}
    found = {
        name: features_of(source.format(options.data), tasks, backbone, LineProgress())
        for name, (source, tasks) in SETS.items()
    }
    sets = {name: measure(each, found[FAR[name]]["asked"]) for name, each in found.items()}
    results = {"backbone": options.backbone, "seed": SEED, "versions": versions(), "sets": sets}
    if options.out:
        write_json(options.out, results)
    print(show(results), end="")


if __name__ == "__main__":
    main()
