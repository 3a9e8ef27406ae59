"""What there is to say about a model: facts from its saved JSON, and the model card made of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lca.evaluation.intervals import wilson_interval
from lca.history import Lesson, described, images_learnt
from lca.text import markdown_table, markdown_text

HISTORY = ("when", "step", "images", "held out", "accuracy", "effort", "unreadable", "seconds")


def facts_of(meta: Mapping[str, Any], sizes: Mapping[str, int], bundled: bool) -> dict[str, Any]:
    """The facts of a saved model, as JSON. `meta` is its JSON, `sizes` the tensor bytes of its parts."""
    recipe, history = meta["recipe"], meta["history"]
    images = images_learnt(Lesson.read(lesson) for lesson in history)
    held_out = sum(lesson["held_out"] for lesson in history)
    called_unknown = sum(lesson["called_unknown"] for lesson in history)
    last = next((lesson for lesson in reversed(history) if lesson["held_out"]), None)
    return {
        "classes": {name: images.get(name, 0) for name in meta["classes"]},
        "history": history,
        "held_out": held_out,
        "last_accuracy": None if last is None else _percent(last["right"], last["held_out"]),
        "calibration_error": None if last is None else last["calibration_error"],
        "held_out_called_unknown": _percent(called_unknown, held_out) if held_out else None,
        "temperatures": meta["temperatures"],
        "method": recipe["method"]["name"],
        "tuning": recipe["tuning"]["name"],
        "seed": recipe["seed"],
        "backbone": {
            "name": recipe["backbone"]["name"],
            "weights": Path(recipe["backbone"]["weights"]).name if recipe["backbone"]["weights"] else None,
            "sha256": meta["backbone"],
            "input": meta["preprocessing"]["size"],
            "bundled": bundled,
            "licence": meta["licence"],
        },
        "bytes": dict(sizes),
        "versions": meta.get("versions", {}),
    }


def model_card(facts: Mapping[str, Any]) -> str:
    """The README.md of a model folder; what stands above its title is for the Hugging Face hub."""
    backbone, classes, sizes = facts["backbone"], facts["classes"], facts["bytes"]
    base = f"base_model: timm/{backbone['name']}\n" if "." in backbone["name"] else ""
    where = "carried in this folder" if backbone["bundled"] else "not in this folder; found by name and hash"
    origin = {
        "backbone": f"`{backbone['name']}` at {backbone['input']} px, {where}",
        "weights": f"from a file, {markdown_text(backbone['weights'])}" if backbone["weights"] else "as named",
        "SHA-256 of the weights": f"`{backbone['sha256']}`",
        "seed": str(facts["seed"]),
        "versions": ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
    }
    history = [[markdown_text(text) for text in row] for row in history_rows(facts)]
    counts = [[markdown_text(name), str(count)] for name, count in classes.items()]
    return f"""---
library_name: lca
pipeline_tag: image-classification
{base}tags:
- continual-learning
- class-incremental-learning
---
# An image classifier that keeps learning

It knows {len(classes)} {"class" if len(classes) == 1 else "classes"}, learnt in \
{sum(lesson["kind"] == "learn" for lesson in facts["history"])} step(s) with method `{facts["method"]}` \
(tuning `{facts["tuning"]}`) on `{backbone["name"]}`. No image it was taught is kept.

```
lca predict THIS_FOLDER photo.jpg        # or in Python:
lca.ContinualClassifier.load("THIS_FOLDER").predict(["photo.jpg"])
```

## Classes

{markdown_table(["class", "images"], counts)}
## What it learnt when, and how well

Accuracy is measured right after each step, on images of that step that were held out from training, among \
all classes known by then; the 95 % interval is in brackets. It says nothing about other photos than yours. \
An instant step trained nothing. Where training was tried after one, it was kept if neither the accuracy of the step's \
classes fell nor an estimate, from their statistics, for those known before: both are given without and with training.

{markdown_table(HISTORY, history)}
## Calibration and unknown things

{_calibration(facts)}

## Costs

Besides the backbone: {sum(sizes.values()):,} bytes.

{markdown_table(["part", "bytes"], [[markdown_text(name), f"{size:,}"] for name, size in sizes.items()])}
## Origin

{markdown_table(["", ""], [[what, text] for what, text in origin.items()])}
## Licence notes

The backbone: {" ".join((backbone["licence"] or "not known; see where the weights came from").split())}

What was learnt comes from the images it was taught; their rights are yours to check. Class statistics are \
kept (a mean and a covariance factor per class), and the tuned weights remember something of their images.
"""


def _calibration(facts: Mapping[str, Any]) -> str:
    if not facts["held_out"]:
        return "Nothing was held out, so the probabilities are not calibrated and no accuracy was measured."
    temperatures = ", ".join(f"{name} {value:.2f}" for name, value in facts["temperatures"].items())
    refused = facts["held_out_called_unknown"]
    return (
        f"Probabilities are the softmax of the logits divided by a temperature ({temperatures}), fitted on held-out "
        f"images ({facts['held_out']} over all steps). On those of the last step the calibration error was "
        f"{facts['calibration_error']:.1f} %. Of all of them {refused:.1f} % were called unknown; about 2 % is meant."
        f"{_TOLD}"
    )


_TOLD = """

An image is called unknown when it is more unlike what was learnt than nearly all of that is, or more like a \
background of generated pictures (noise, blank colours, walls, patterns, writing) and spoilt photos. So emptiness and \
most things of other kinds are noticed. A thing much like a known class, such as a breed never seen, mostly is not."""


def history_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    """The history as texts, in the order of `HISTORY`."""
    return [_history_row(lesson) for lesson in facts["history"]]


def _history_row(lesson: Mapping[str, Any]) -> list[str]:
    when, step = lesson["when"] or "", described(Lesson.read(lesson))
    if lesson["kind"] != "learn":
        return [when, step, *[""] * (len(HISTORY) - 2)]
    accuracy = "not measured"
    if lesson["held_out"]:
        low, high = wilson_interval(lesson["right"], lesson["held_out"])
        accuracy = f"{_percent(lesson['right'], lesson['held_out']):.1f} % ({low:.0f} to {high:.0f})"
    images, seconds = str(sum(lesson["images"].values())), "" if lesson["seconds"] is None else str(lesson["seconds"])
    held_out, left_out = str(lesson["held_out"]), str(lesson["left_out"])
    return [when, step, images, held_out, accuracy, _effort(lesson), left_out, seconds]


def _effort(lesson: Mapping[str, Any]) -> str:
    """How a lesson was taught and, where both ways were tried, why."""
    effort, tried = lesson.get("effort") or "", lesson.get("improvement")
    if not tried:
        return effort
    gained = f"{tried['instant']:.1f} to {tried['thorough']:.1f} %"
    if tried["known_instant"] is not None:
        gained += f", known classes {tried['known_instant']:.1f} to {tried['known_thorough']:.1f} %"
    return f"{effort} (training: {gained})"


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole
