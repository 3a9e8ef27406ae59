"""What the answers of a taught model are worth: accuracy and calibration. `paper/refused.py` is about the unknown.

For each case (backbone and small data set) and every seed, four fifths of the classes are taught in five lessons
through `ContinualClassifier.learn`, then asked about with test images, and noise. The same classes in the same tasks
are learnt by a benchmark run, without anything held out, for comparison.

    python paper/trust.py --data DATA --weights DEIT_TINY.safetensors --out results/trust.json
    python paper/trust.py --show results/trust.json
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from lca.classifier import ContinualClassifier
from lca.data.sources import load_source
from lca.data.streams import Stream
from lca.device import versions
from lca.evaluation.calibration import calibration_error
from lca.evaluation.intervals import mean_and_deviation
from lca.files import read_json, write_json
from lca.progress import LineProgress, Progress
from lca.recipe import Recipe, load_recipe
from lca.runs.experiment import run
from lca.text import markdown_table

SEEDS = (1993, 1994, 1995)
DEIT, EMBEDDED = "deit_tiny_patch16_224.fb_in1k", "vit_pico_patch8_64"
CASES = (
    (DEIT, "vtab-mini"),
    (DEIT, "cifar100-mini"),
    (EMBEDDED, "vtab-mini"),
)
"""Backbone, and what is taught."""
ROWS = {
    "accuracy": "accuracy on test images of the classes taught, %",
    "run_accuracy": "the same classes learnt by a benchmark run, nothing held out, %",
    "calibration_error": "calibration error of the probabilities, %",
    "uncalibrated_error": "the same without the fitted temperature, %",
    "noise_probability": "mean probability of the answers to noise, %",
    "probability": "mean probability of the answers to test images of known classes, %",
}


def measure(data: Path, taught_set: str, chosen: list[str], seed: int, progress: Progress) -> dict[str, float]:
    names = sorted(path.name for path in (data / taught_set / "train").iterdir())
    ood = [name for place, name in enumerate(names) if (place + seed) % 5 == 0]
    known = [name for name in names if name not in ood]
    with tempfile.TemporaryDirectory() as folder:
        taught = Path(folder) / "taught"
        for part in ("train", "test"):
            for name in known:
                (taught / part).mkdir(parents=True, exist_ok=True)
                (taught / part / name).symlink_to((data / taught_set / part / name).resolve())
        stream = [f"seed={seed}", f"data.source=folder:{taught}", "data.tasks=5", "keep_models=none"]
        recipe = load_recipe("best", [*chosen, *stream])
        results = run(recipe, Path(folder) / "run", progress=progress)
        model = teach(recipe, taught / "train", progress)
        right = model.evaluate(taught / "test").as_json()
        temperatures, model.temperatures = model.temperatures, {}
        answers = model.evaluate(taught / "test").known
        model.temperatures = temperatures
    raw = torch.tensor([each.probability for each in answers])
    noise = list(torch.randint(256, (100, 3, 160, 160), generator=torch.Generator().manual_seed(seed)).byte())
    to_noise = model.predict(noise)
    return {
        "accuracy": right["accuracy"],
        "run_accuracy": results["branches"]["best"]["metrics"]["last_accuracy"]["sample_weighted"],
        "calibration_error": right["calibration_error"],
        "uncalibrated_error": calibration_error(raw, torch.tensor([each.truth == each.label for each in answers])),
        "noise_probability": 100 * sum(each.probability for each in to_noise) / len(to_noise),
        "probability": right["mean_probability"],
    }


def teach(recipe: Recipe, folder: Path, progress: Progress) -> ContinualClassifier:
    """The tasks of the run, one lesson each."""
    model = ContinualClassifier(recipe, progress=progress)
    source = load_source(recipe.data, recipe.seed, model.extractor.preprocessing.size, progress)
    for classes in Stream(source, recipe.data, recipe.seed).task_classes:
        model.learn([(path, name) for name in classes for path in files(folder, [name])])
    return model


def files(folder: Path, names: list[str] | None) -> list[Any]:
    chosen = names or sorted(path.name for path in folder.iterdir())
    return [path for name in chosen for path in sorted((folder / name).iterdir())]


def show(content: dict[str, Any]) -> str:
    def cell(seeds: dict[str, dict[str, float]], key: str) -> str:
        mean, deviation = mean_and_deviation([each[key] for each in seeds.values()])
        return f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation is not None else "")

    rows = [[meaning, *(cell(each["seeds"], key) for each in content["cases"])] for key, meaning in ROWS.items()]
    return markdown_table(["", *(f"{each['backbone']}, {each['taught']}" for each in content["cases"])], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with vtab-mini and cifar100-mini")
    parser.add_argument("--weights", help="safetensors file of DeiT-Tiny; by default timm's download")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--show", type=Path, help="print the table of a JSON file")
    arguments = parser.parse_args()
    if arguments.show:
        print(show(read_json(arguments.show)), end="")
        return
    machine = ContinualClassifier(load_recipe("best")).compute.describe()
    content: dict[str, Any] = {"machine": machine, "versions": versions(), "cases": []}
    for backbone, taught_set in CASES:
        chosen = [f"backbone.name={backbone}"]
        if backbone == DEIT and arguments.weights:
            chosen.append(f"backbone.weights={arguments.weights}")
        if taught_set == "cifar100-mini":
            chosen.append("data.view={centre_crop: 1.0}")
        seeds = {
            str(seed): measure(arguments.data, taught_set, chosen, seed, LineProgress()) for seed in arguments.seeds
        }
        content["cases"].append({"backbone": backbone, "taught": taught_set, "seeds": seeds})
    print(show(content))
    if arguments.out:
        write_json(arguments.out, content)


if __name__ == "__main__":
    main()
