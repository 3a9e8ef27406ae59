"""How long a fresh Python takes to import the package, to print the command's help, and to answer for one image.

The yardstick is `import torch, timm`, which any program that touches a model has to pay; `import lca` does not pay it.
A bare interpreter is given as well, since all of these contain one. What `lca predict` takes over the yardstick is
measured in a process that has imported both: the difference of two processes is lost where importing varies by seconds.
"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image

from lca.classifier import ContinualClassifier
from lca.recipe import validate_recipe
from measuring import Agreement, Comparison, Settings, Work, time_in_turn

SUBJECT = "start-up"
YARDSTICK = "import torch, timm"
OVER = "s over the plain way"
AFTERWARDS = f"""
import runpy, time, {YARDSTICK.removeprefix("import ")}
began = time.perf_counter()
try:
    runpy.run_module("lca", run_name="__main__")
finally:
    print(time.perf_counter() - began)
"""
"""Runs the command after the yardstick's imports and prints its seconds at the end."""

CASES: dict[str, list[str]] = {
    "bare interpreter": ["-c", "pass"],
    "import lca": ["-c", "import lca"],
    "lca --help": ["-m", "lca", "--help"],
}


def compare(settings: Settings) -> list[Comparison]:
    settings = replace(settings, patience=15 * settings.patience)  # one repeat takes seconds
    with tempfile.TemporaryDirectory() as folder:
        predict = ["predict", *make_model(Path(folder))]
        cases = {**CASES, "lca predict": ["-m", "lca", *predict]}
        works = [_python(*arguments) for arguments in cases.values()]
        *ours, yardstick = time_in_turn([*works, _python("-c", YARDSTICK)], settings)
        over = min(seconds_afterwards(*predict) for _ in range(yardstick.repeats))
    checks = {name: torch_stays_out(*CASES[name]) for name in ("import lca", "lca --help")}
    return [
        Comparison(
            SUBJECT,
            f"{name} (plain: {YARDSTICK})",
            "seconds",
            cost,
            yardstick,
            {},
            checks.get(name),
            {OVER: round(over, 2)} if name == "lca predict" else {},
        )
        for name, cost in zip(cases, ours, strict=True)
    ]


def make_model(folder: Path) -> list[str]:
    """A model of two classes on the embedded backbone, and an image: the arguments of `lca predict`."""
    images = [Image.effect_noise((80, 80), sigma).convert("RGB") for sigma in (10, 20, 90, 100)]
    model = ContinualClassifier(validate_recipe({"device": "cpu", "training": {"epochs": 1}}))
    model.learn([(image, name) for image, name in zip(images, ("soft", "soft", "hard", "hard"), strict=True)])
    model.save(folder / "model")
    images[0].save(folder / "image.png")
    return [str(folder / "model"), str(folder / "image.png")]


def torch_stays_out(*arguments: str) -> Agreement:
    """Whether Python with these arguments does without torch, by the names of all that it imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    imported = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    return Agreement(float("torch" in imported), 0, "whether torch was imported")


def seconds_afterwards(*arguments: str) -> float:
    """Seconds of the command in a process that has imported torch and timm."""
    command = [sys.executable, "-c", AFTERWARDS, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _python(*arguments: str) -> Work:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
