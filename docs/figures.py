"""Draw the figures of paper.md from the packs in results/: `python docs/figures.py`."""

import sys
from hashlib import sha256
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

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
    "paper-merge-operators": {(): ["cifar100-mini-bars", "vtab-mini-bars"]},
    "paper-whole-model": {(): ["cifar100-mini-bars", "vtab-mini-bars"]},
    "paper-init-from": {(): ["vtab-mini-bars"]},
    "paper-adapter": {(): ["cifar100-mini-bars", "vtab-mini-bars"]},
    "paper-training-loss": {(): ["cifar100-mini-over-λ", "vtab-mini-over-λ"]},
    "paper-lambda": {(): ["cifar100-mini-over-λ", "vtab-mini-over-λ"]},
    "paper-samples-per-class": {(): ["cifar100-mini-over-m", "vtab-mini-over-m"]},
    "paper-selective-heads": {(): ["all-bars"]},
    "paper-robustness": {
        (): [
            "cifar100-mini-damaged-bars",
            *(
                f"cifar100-mini-damaged-{one}-relative-to-{two}-{damage}"
                for one, two in (("IM-lca", "IM-none"), ("SLCA-lca", "SLCA-slca"), ("MOS-lca", "MOS-mos"))
                for damage in ("corruptions", "sequences")
            ),
        ]
    },
}
"""By pack and classifiers, the names that `lca report --figures` gives them."""


def image(pack: str, figure: str) -> str:
    """The file of a figure."""
    return f"paper-{pack.removeprefix('paper-')}-{figure.replace('α', 'alpha').replace('λ', 'lambda')}.png"


def path(pack: str) -> Path:
    return ROOT / "results" / f"{pack}.json"


def _sign(drawn: Path, pack: str) -> None:
    """Say in the file which pack it was drawn from, so that a test knows when it is another; 256 colours are enough."""
    source = PngInfo()
    source.add_text("Source", sha256(path(pack).read_bytes()).hexdigest())
    with Image.open(drawn) as picture:
        small = picture.convert("RGB").quantize()
    small.save(drawn, pnginfo=source, optimize=True)


def main(images: Path = IMAGES) -> None:
    for pack, chosen in FIGURES.items():
        for only, names in chosen.items():
            report = Report(pack, 10, detail=0, only=only)
            report.page(collect([path(pack)]))
            for name in names:
                save(report.figures[name], images / image(pack, name), dpi=100)
                _sign(images / image(pack, name), pack)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
