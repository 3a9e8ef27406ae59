"""What was to be reached, beside what written results reached: `python benchmarks/run.py --summary FILE ...`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lca.errors import LcaError
from lca.text import markdown_table
from measuring import duration
from start_up import OVER

Row = dict[str, Any]
"""A comparison, as JSON holds it."""
SHARE, PEAK = "% of the matrix rate", "peak GB"
HEADINGS = ("what", "target", "reached", SHARE, "× plain", "× published", PEAK)


def _rate(row: Row) -> str:
    return f"{row['rates']['images/s']:,} images/s"


def _seconds(row: Row) -> str:
    return duration(row["ours"]["best"])


@dataclass(frozen=True)
class Target:
    what: str
    target: str
    subject: str
    case: str
    """How the names of its comparisons begin: with the plain way and, where there is one, with the published one."""
    reached: Callable[[Row], str]
    samples: int | None = None
    """Of a class; a smaller comparison of the same name is not it."""
    ratios: bool = True
    """Whether there is a plain way to do the same."""

    def cells(self, rows: list[Row]) -> list[str]:
        own = [row for row in rows if row["case"].startswith(self.case)]
        own = [row for row in own if self.samples is None or row["sizes"]["samples"] == self.samples]
        if not own:
            return [self.what, self.target, "not measured", "", "", "", ""]
        plain, published, *_ = [*(f"{row['ratio']:.1f}" for row in own if self.ratios), "", ""]
        share, peak = (str(own[0]["rates"].get(name, "")) for name in (SHARE, PEAK))
        return [self.what, self.target, self.reached(own[0]), share, plain, published, peak]


TARGETS = (
    Target(
        "LoRA training, ViT-B/16, batch 256",
        "40 % of the matrix rate",
        "backbone",
        "training, vit_base_patch16_224, batch 256 (",
        _rate,
    ),
    Target(
        "LoRA training, ViT-B/16, batch 64",
        "30 %, under 12 GB",
        "backbone",
        "training, vit_base_patch16_224, batch 64 (",
        _rate,
    ),
    Target(
        "LoRA training, DeiT-Tiny, batch 256",
        "12,000 images/s",
        "backbone",
        "training, deit_tiny_patch16_224, batch 256 (",
        _rate,
    ),
    Target(
        "feature extraction, ViT-B/16",
        "50 % of the matrix rate",
        "backbone",
        "extraction, vit_base_patch16_224, batch 256 (",
        _rate,
    ),
    Target(
        "IM + LCA, 10 tasks of 5,000 images, 10 epochs, ViT-B/16",
        "under 180 s, 5 × plain, 12 × published",
        "run",
        "10 tasks, 100 classes, vit_base_patch16_224 (",
        _seconds,
    ),
    Target(
        "all nine alignments of 10 tasks, 100 classes x 512 samples, balanced",
        "under 5 s, 100 × plain",
        "alignment",
        "all tasks, 100 classes, balanced",
        _seconds,
        samples=512,
    ),
    Target(
        "all nine alignments of 10 tasks, 100 classes x 512 samples, random",
        "under 15 s, 100 × plain",
        "alignment",
        "all tasks, 100 classes, random",
        _seconds,
        samples=512,
    ),
    Target(
        "Gaussian memory, d = 768, 50 images a class",
        "a tenth of full covariances",
        "gaussians",
        "memory, d=768, 50 images",
        lambda row: f"1 / {row['ratio']:.1f}",
    ),
    Target("`lca --help`", "under 0.5 s", "start-up", "lca --help", _seconds, ratios=False),
    Target(
        "`lca predict`, over `import torch, timm`",
        "under 1.5 s",
        "start-up",
        "lca predict",
        lambda row: f"{row['rates'][OVER]:.2f} s",
        ratios=False,
    ),
)


def summary(results: Sequence[dict[str, Any]]) -> str:
    """The machine and its two ceilings in a line, and a Markdown table with a row for every target.

    Of a subject that several results have the last one counts; the ceilings are those of the first.
    """
    machine, most = results[0]["machine"], results[0]["ceilings"]
    if others := {result["machine"]["name"] for result in results} - {machine["name"]}:
        raise LcaError(f"results of {machine['name']} and of {', '.join(others)} do not belong into one table")
    rows: dict[str, list[Row]] = {}
    for result in results:
        rows |= {row["subject"]: [] for row in result["comparisons"]}
        for row in result["comparisons"]:
            rows[row["subject"]].append(row)
    kind = "bf16" if machine["device"] == "cuda" else "fp32"
    line = f"**{machine['name']}**: {most['matrix_tflops']:,} TFLOP/s in a large {kind} matrix product, "
    line += f"{most['copy_gb_per_s']:,} GB/s copied (read and written), measured in the same run as the backbone"
    return f"{line}.\n\n{markdown_table(HEADINGS, [target.cells(rows.get(target.subject, [])) for target in TARGETS])}"
