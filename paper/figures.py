"""Draw the figures of paper.md and of theory.md's diagnosis from the packs in results/: `python paper/figures.py`."""

import shutil
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lca.progress import Progress
from lca.report import diagnosis as show
from lca.report.drawing import save
from lca.report.page import Report
from lca.results.measured import DIAGNOSIS
from lca.results.reading import collect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PUBLISHED = ("IM lca", "MOS mos", "SLCA slca", "EASE", "CODA-Prompt", "DualPrompt", "L2P", "APER + adapter")
"""Rows of the paper's performance curves, each with its own alignment."""
ALIGNED = ("IM none", "IM ca", "IM lca")
COMPOSED = ("SLCA", "MOS")
RECIPES: dict[tuple[str, ...], str] = {PUBLISHED: "performance-curves", ALIGNED: "im-vs-lca", COMPOSED: "slca-mos"}
"""Of rows of compare-mini; the other packs are named after theirs."""
FIGURES: dict[str, dict[tuple[str, ...], list[str]]] = {
    "compare-mini": {
        PUBLISHED: [
            f"{data}-{what}" for data in ("cifar100-mini", "vtab-mini") for what in ("curves", "running-means")
        ],
        ALIGNED: ["all-bars"],
        COMPOSED: ["all-bars"],
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


def image(pack: str, only: tuple[str, ...], figure: str) -> str:
    """The file of a figure."""
    recipe = RECIPES.get(only, pack.removeprefix("paper-"))
    return f"paper-{recipe}-{figure.replace('α', 'alpha').replace('λ', 'lambda')}.png"


def path(pack: str) -> Path:
    return ROOT / "results" / f"{pack}.json"


def drawn(pack: str, only: tuple[str, ...]) -> dict[str, "Figure"]:
    """The figures of a report by name."""
    report = Report(pack, 10, detail=0, only=only)
    report.page(collect([path(pack)]))
    return report.figures


def _sign(picture: Path, pack: str) -> None:
    """Say in the file which pack it was drawn from, beside the signature of what is drawn, so that tests know when it
    is another; 256 colours are enough."""
    with Image.open(picture) as full:
        words = PngInfo()
        words.add_text("Source", sha256(path(pack).read_bytes()).hexdigest())
        words.add_text("Signature", full.info["Signature"])
        small = full.convert("RGB").quantize()
    small.save(picture, pnginfo=words, optimize=True)


def main(images: Path = IMAGES) -> None:
    for pack, chosen in FIGURES.items():
        for only, names in chosen.items():
            figures = drawn(pack, only)
            for name in names:
                picture = images / image(pack, only, name)
                save(figures[name], picture, dpi=100)
                _sign(picture, pack)
    diagnosis(images)


def diagnosis(images: Path) -> None:
    """As `lca diagnose results/diagnosis-mini.json --out FOLDER` draws them."""
    pack = "diagnosis-mini"
    with TemporaryDirectory() as folder:
        show.figures(DIAGNOSIS.by_recipe(DIAGNOSIS.read(path(pack), Progress())), Path(folder))
        for picture in Path(folder).glob("*.png"):
            _sign(picture, pack)
            shutil.copy(picture, images)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
