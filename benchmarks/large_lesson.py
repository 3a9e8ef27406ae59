"""What a lesson of very many photos takes: painted JPEG files, an instant lesson on the small embedded backbone.

python benchmarks/large_lesson.py --photos 5000 --out large-lesson.json
python benchmarks/large_lesson.py --photos 100000 --out large-lesson.json

The photos are 160 x 120 pixels, a hundred classes, each a soft pattern of its own, shifted and with noise. The lesson
runs in a process of its own, of which the largest resident memory is reported; painting is not counted.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

BACKBONE = "vit_pico_patch8_64"
CLASSES, SIZE = 100, (160, 120)


def paint(folder: Path, count: int, label: int) -> None:
    """The photos of one class."""
    draws = np.random.default_rng([19, label])
    coarse = Image.fromarray(draws.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    pattern = np.asarray(coarse.resize(SIZE, Image.Resampling.BICUBIC)).astype(np.int16)
    own = folder / f"class{label:03}"
    own.mkdir()
    for number in range(count):
        shifted = np.roll(pattern, draws.integers(-20, 21, 2), (0, 1))
        noisy = shifted + draws.integers(-25, 26, shifted.shape, dtype=np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(own / f"{number:05}.jpg", quality=85)


def paint_all(folder: Path, photos: int) -> None:
    with ProcessPoolExecutor(2) as pool:
        [*pool.map(partial(paint, folder, photos // CLASSES), range(CLASSES))]


def lesson(folder: Path, in_memory: float | None, reading: bool) -> dict[str, Any]:
    """Teach the folder in this process, and say what that took."""
    import torch

    from lca import ContinualClassifier
    from lca.data import folders
    from lca.progress import LineProgress
    from lca.recipe import recipe_for_photos

    torch.set_num_threads(1)  # on a busy machine, waiting for a second thread takes longer than the work
    if in_memory is not None:
        folders.IN_MEMORY = in_memory
    model = ContinualClassifier(
        recipe_for_photos("best", [], {"backbone": {"name": BACKBONE}, "device": "cpu"}), progress=LineProgress(30)
    )
    start, began = _peak(), time.perf_counter()
    read = model.read(folder)
    seconds, after_reading = time.perf_counter() - began, _peak()
    facts = {
        "pixels GB": round(3 * int(read.images.sizes.prod(1).sum()) / 1e9, 3),
        "in a file": read.images.streamed,
        "seconds of reading": round(seconds, 1),
        "resident GB before": start,
        "resident GB after reading": after_reading,
    }
    if reading:
        return facts
    taught = model.learn(read, effort="instant")
    return facts | {
        "seconds": round(time.perf_counter() - began, 1),
        "resident GB at most": _peak(),
        "held-out accuracy": taught.accuracy,
        "learnt": sum(taught.images.values()),
    }


def _peak() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", type=int, default=5000, help=f"how many; {CLASSES} classes share them")
    parser.add_argument("--in-memory", type=float, help="bytes of pixels that stay in memory; as it is by default")
    parser.add_argument("--reading", action="store_true", help="read the photos, and teach nothing")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    parser.add_argument("--taught", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.taught:
        print(json.dumps(lesson(given.taught, given.in_memory, given.reading)))
        return
    with tempfile.TemporaryDirectory(prefix="lca-painted-") as place:
        began = time.perf_counter()
        paint_all(Path(place), given.photos)
        painted = time.perf_counter() - began
        command = [sys.executable, __file__, "--taught", place]
        command += [] if given.in_memory is None else ["--in-memory", str(given.in_memory)]
        command += ["--reading"] * given.reading
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    from lca.device import versions

    result = {
        "photos": given.photos,
        "classes": CLASSES,
        "backbone": BACKBONE,
        "seconds of painting": round(painted, 1),
        **json.loads(said.splitlines()[-1]),
        "versions": versions(),
    }
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
