"""How long every method takes at the demo's settings: its data, epochs and batches, on the embedded transformer.

What `--out` holds already of other methods stays there. With one thread, CPU seconds are about what a method takes on a
core of its own, whatever else the machine does.

python benchmarks/methods.py --out benchmarks/results/methods-cpu.json
python benchmarks/methods.py --show benchmarks/results/methods-cpu.json
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from lca.files import read_json, write_json
from lca.methods import methods
from lca.recipe import Recipe, merge_mappings, read_recipe, validate_recipe
from lca.recipe_files import recipe_names
from lca.runs.experiment import run
from lca.text import markdown_table


def names() -> list[str]:
    """Every registered method, and every recipe that is one run; a recipe that is called as its method counts once."""
    single = [name for name in recipe_names() if not {"cells", "grid"} & set(read_recipe(name))]
    return sorted({*methods, *single})


def recipe(name: str, device: str) -> Recipe:
    """A method with its own tuner and learning rates; the images, the epochs and the batches are the demo's."""
    demo = read_recipe("demo")
    training = {key: demo["training"][key] for key in ("epochs", "batch_size")}
    own = {key: value for key, value in read_recipe(name).items() if key != "backbone"}
    content = merge_mappings(own, {"data": demo["data"], "training": training, "device": device})
    return validate_recipe({"name": name, **content, "keep_models": "none"}, name)


def measure(name: str, device: str) -> dict[str, Any]:
    """Seconds of one method, whole and by phase, and what computed them."""
    with tempfile.TemporaryDirectory() as folder:
        load, began, worked = os.getloadavg()[0], time.perf_counter(), time.process_time()
        results = run(recipe(name, device), Path(folder) / "run")
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(worked, 1),
        "phases": {phase: round(each, 2) for phase, each in results["seconds"].items()},
        "passes": methods[results["recipe"]["method"]["name"]].info.passes,
        "load_before": round(load, 1),
        "machine": results["machine"],
        "versions": results["versions"],
    }


def show(results: dict[str, Any]) -> str:
    """A Markdown table, the slowest first."""
    rows = []
    for name, each in sorted(results.items(), key=lambda item: -item[1]["cpu_seconds"]):
        phases = each["phases"]
        align = sum(seconds for phase, seconds in phases.items() if phase.startswith("align"))
        seconds = [each["seconds"], each["cpu_seconds"], phases.get("finetune", 0), align, phases["evaluate"]]
        rows.append([name, *(f"{value:.0f}" for value in seconds), f"{each['load_before']:.1f}", each["passes"]])
    columns = ["method", "s", "CPU s", "training", "alignment", "test", "load before", "passes per answer"]
    return markdown_table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=names(), help="methods or recipes; all by default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch; on a busy machine one is the quickest")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print the table of a result instead")
    options = parser.parse_args()
    if options.show:
        print(show(read_json(options.show)), end="")
        return
    torch.set_num_threads(options.threads)
    results = read_json(options.out) if options.out and options.out.is_file() else {}
    for name in options.names:
        results[name] = measure(name, options.device)
        if options.out:
            write_json(options.out, results)
    print(show(results), end="")


if __name__ == "__main__":
    main()
