"""Draw the figures of paper.md from the packs in results/: `python docs/figures.py`."""

import sys
from pathlib import Path

from lca.report.figures import save
from lca.report.page import Report
from lca.report.reading import collect

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PUBLISHED = ("IM lca", "MOS mos", "SLCA slca", "EASE", "CODA-Prompt", "DualPrompt", "L2P", "APER + adapter")
"""Rows of the paper's performance curves, each with its own alignment."""
ALIGNED = ("IM none", "IM ca", "IM lca")
FIGURES = {
    "compare-mini": {
        PUBLISHED: [
            f"{data}-{what}" for data in ("cifar100-mini", "vtab-mini") for what in ("curves", "running-means")
        ],
        ALIGNED: ["all-bars"],
    },
    "paper-merge-coefficient": {(): ["vtab-mini-over-α"]},
    "paper-peft": {(): ["vtab-mini-bars"]},
}
"""By pack and classifiers, the names that `lca report --figures` gives them."""


def image(pack: str, figure: str) -> str:
    """The file of a figure."""
    return f"paper-{pack.removeprefix('paper-')}-{figure.replace('α', 'alpha').replace('λ', 'lambda')}.png"


def main(images: Path = IMAGES) -> None:
    for pack, chosen in FIGURES.items():
        for only, names in chosen.items():
            report = Report(pack, 10, detail=0, only=only)
            report.page(collect([ROOT / "results" / f"{pack}.json"]))
            for name in names:
                save(report.figures[name], images / image(pack, name), dpi=100)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
