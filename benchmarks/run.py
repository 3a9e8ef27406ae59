"""Speed and memory beside the plain way: `python benchmarks/run.py`, or `make bench`.

Prints a table and writes JSON. Seconds are reported, never judged; results that disagree end the program with status 1.
"""

import argparse
import os
import platform
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
import merging
import start_up
import whole_run
from lca.device import Compute, versions
from lca.errors import LcaError
from lca.files import read_json, write_json
from measuring import Comparison, Settings

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS: dict[str, Callable[[Settings], list[Comparison]]] = {
    "backbone": backbone_speed.compare,
    "alignment": alignment_loss.compare,
    "gaussians": gaussian_sampling.compare,
    "views": augmentation.compare,
    "merging": merging.compare,
    "checkpoints": checkpoints.compare,
    "start-up": start_up.compare,
    "run": whole_run.compare,
}


def main(arguments: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.subjects) - set(SUBJECTS):
        parser.error(f"unknown subject {', '.join(sorted(unknown))}; known: {', '.join(SUBJECTS)}")
    if options.markdown:
        print(markdown(read_json(options.markdown)))
        return 0
    torch.set_num_threads(options.threads)
    compute = Compute.choose("cuda" if options.gpu else options.device, "fp32")
    settings = Settings("full" if options.full or options.gpu else "small", compute.device, options.repeats)
    described = machine(compute)
    most = ceilings.measure(settings)
    settings = replace(settings, matrix_rate=most.matrix)
    console = Console(width=None if sys.stdout.isatty() else 150)
    started = time.perf_counter()
    rows: list[Comparison] = []
    result: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/run.py", *_without_out(arguments)]),
        "machine": described,
        "versions": versions(),
        "size": settings.size,
        "ceilings": {"matrix_tflops": round(most.matrix / 1e12, 1), "copy_gb_per_s": round(most.copy / 1e9, 1)},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.subjects or SUBJECTS:
        console.print(f"measuring {name} ...", style="dim")
        rows += SUBJECTS[name](settings)
        result["seconds"] = round(time.perf_counter() - started, 1)
        result["comparisons"] = [row.as_json() for row in rows]
        write_json(options.out, result)  # what was measured stays, should the next subject fail
    console.print(table(result["comparisons"]))
    console.print(f"{len(rows)} comparisons in {result['seconds']} s, written to {os.path.relpath(options.out)}")
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
    parser.add_argument("--threads", type=int, default=1, help="torch's threads, for both ways (default 1)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of a comparison, the best counts (default 5)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "benchmarks.json", help="where the JSON goes")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print a written result as a table, and stop")
    return parser


def _without_out(arguments: list[str]) -> list[str]:
    """Where the result went says nothing about it."""
    place = arguments.index("--out") if "--out" in arguments else len(arguments)
    return [each for each in arguments[:place] + arguments[place + 2 :] if not each.startswith("--out=")]


def machine(compute: Compute) -> dict[str, Any]:
    """What computes, and how many processes wanted the cores in the minute before: other work blurs the seconds."""
    return {
        **compute.describe(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "architecture": platform.machine(),
        "system": platform.system(),
    }


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


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def quantity(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LcaError as error:
        sys.exit(f"error: {error}")
