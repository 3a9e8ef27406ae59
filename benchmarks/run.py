"""Speed and memory beside the plain way: `python benchmarks/run.py`, or `make bench`.

Prints a table and writes JSON. Seconds are reported, never judged; results that disagree end the program with status 1.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import alignment_loss
import augmentation
import backbone_speed
import ceilings
import checkpoints
import gaussian_sampling
import lessons
import merging
import start_up
import whole_run
from lca.device import Compute, versions
from lca.errors import LcaError
from lca.files import read_json, write_json
from measuring import Comparison, Settings, duration, quantity, threads_beside
from summary import summary

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS: dict[str, Callable[[Settings], list[Comparison]]] = {
    "backbone": backbone_speed.compare,
    "alignment": alignment_loss.compare,
    "run": whole_run.compare,
    "gaussians": gaussian_sampling.compare,
    "views": augmentation.compare,
    "merging": merging.compare,
    "lessons": lessons.compare,
    "checkpoints": checkpoints.compare,
    "start-up": start_up.compare,
}


def main(arguments: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.subjects) - set(SUBJECTS):
        parser.error(f"unknown subject {', '.join(sorted(unknown))}; known: {', '.join(SUBJECTS)}")
    if options.markdown:
        print(markdown(read_json(options.markdown)))
        return 0
    if options.summary:
        print(summary([read_json(path) for path in options.summary]), end="")
        return 0
    compute = Compute.choose("cuda" if options.gpu else options.device)
    torch.set_num_threads(options.threads or threads_beside(compute.device))
    settings = Settings("full" if options.full or options.gpu else "small", compute.device, options.repeats)
    described = machine(compute)
    most = ceilings.measure(settings)
    settings = replace(settings, matrix_rate=most.matrix)
    console = Console(width=None if sys.stdout.isatty() else 150)
    rows: list[Comparison] = []
    subjects = list(options.subjects or SUBJECTS)
    result: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/run.py", *_without_out(arguments)]),
        "machine": described,
        "versions": versions(),
        "size": settings.size,
        "ceilings": {
            "matrix_tflops": float(f"{most.matrix / 1e12:.4g}"),
            "copy_gb_per_s": float(f"{most.copy / 1e9:.4g}"),
        },
        "subjects": subjects,
        "finished": {},
        "comparisons": [],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in subjects:
        console.print(f"measuring {name} ...", style="dim")
        before = time.perf_counter()
        rows += SUBJECTS[name](settings)
        result["finished"][name] = round(time.perf_counter() - before, 1)
        result["comparisons"] = [row.as_json() for row in rows]
        write_json(options.out, result)  # what was measured stays, should the next subject fail
    console.print(table(result["comparisons"]))
    seconds = sum(result["finished"].values())
    console.print(f"{len(rows)} comparisons in {seconds:.1f} s, written to {os.path.relpath(options.out)}")
    wrong = [row for row in rows if row.agreement and not row.agreement.holds]
    for row in wrong:
        console.print(f"results disagree: {row.subject}, {row.case}: {row.agreement}", style="red")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="subject", help=f"some of {', '.join(SUBJECTS)}; else all")
    parser.add_argument("--full", action="store_true", help="the sizes of a real run; minutes to hours on a CPU")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:0")
    parser.add_argument("--gpu", action="store_true", help="--device cuda --full")
    parser.add_argument("--threads", type=int, help="torch's threads, for both ways (default 1; beside a GPU 8)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of a comparison, the best counts (default 5)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "benchmarks.json", help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print a written result as a table, and stop")
    parser.add_argument(
        "--summary",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print what was reached of the targets, and stop; of a subject in several files the last counts",
    )
    return parser


def _without_out(arguments: list[str]) -> list[str]:
    """Where the result went says nothing about it."""
    place = arguments.index("--out") if "--out" in arguments else len(arguments)
    return [each for each in arguments[:place] + arguments[place + 2 :] if not each.startswith("--out=")]


def machine(compute: Compute) -> dict[str, Any]:
    """What computes, and how many processes wanted the cores in the minute before: other work blurs the seconds."""
    return {
        **compute.describe(),
        "precision": "fp32" if compute.precision == "fp32" else f"{compute.precision} in the backbone, fp32 elsewhere",
        **(driver() if compute.device.type == "cuda" else {}),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "architecture": platform.machine(),
        "system": platform.system(),
    }


def driver() -> dict[str, str]:
    """Versions of the GPU's driver and of CUDA."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        found = "unknown"
    return {"driver": found, "cuda": str(torch.version.cuda)}


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table("subject", "case", title="ours beside the plain way; ratio = plain / ours")
    for heading in HEADINGS[2:]:
        shown.add_column(heading, justify="right")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        shown.add_row(*cells(row), end_section=following is None or following["subject"] != row["subject"])
    return shown


HEADINGS = ("subject", "case", "ours", "plain", "ratio", "reached", "difference (allowed)")


def cells(row: dict[str, Any]) -> list[str]:
    """A comparison, as JSON holds it, in words."""
    show, agreement = (quantity if row["unit"] == "bytes" else duration), row["agreement"]
    difference = f"{agreement['difference']:.1e} ({agreement['tolerance']:.2g})" if agreement else ""
    costs = [show(row[way]["best"]) for way in ("ours", "plain")]
    reached = ", ".join(f"{value:,g} {unit}" for unit, value in row.get("rates", {}).items())
    return [row["subject"], row["case"], *costs, f"{row['ratio']:.2f}", reached, difference]


def markdown(result: dict[str, Any]) -> str:
    rule = ["---", "---", "---:", "---:", "---:", "---", "---:"]
    lines = [list(HEADINGS), rule, *(cells(row) for row in result["comparisons"])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LcaError as error:
        sys.exit(f"error: {error}")
