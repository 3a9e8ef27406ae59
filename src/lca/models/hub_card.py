"""What the Hugging Face hub reads of a model beside its files: results and examples in the card, and config.json."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from lca.card import facts_of, model_card
from lca.classifier import ContinualClassifier
from lca.data.decoding import decode
from lca.history import Lesson
from lca.progress import Progress

TASK = "image-classification"
EXAMPLE_SIDE = 384
"""Pixels of the shorter side of an example, at most."""
TOP = 5
"""Classes that an example names."""


def hub_config(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `config.json`. The hub counts a download when somebody asks for this file."""
    recipe = meta["recipe"]
    return {
        "library_name": "lca",
        "model_type": "lca",
        "task": TASK,
        "num_labels": len(meta["classes"]),
        "id2label": {str(number): name for number, name in enumerate(meta["classes"])},
        "backbone": recipe["backbone"]["name"],
        "image_size": meta["preprocessing"]["size"],
        "method": recipe["method"]["name"],
        "tuning": recipe["tuning"]["name"],
        "versions": meta.get("versions", {}),
    }


def hub_card(
    text: str | None,
    repo: str,
    meta: Mapping[str, Any],
    sizes: Mapping[str, int],
    examples: Sequence[Mapping[str, Any]],
) -> str:
    """The card with what was measured as the hub's `model-index`, and with examples for its widget.

    The text is that of the model's README.md; without one it is made anew.
    """
    from huggingface_hub import ModelCard

    card = ModelCard(text or model_card(facts_of(meta, sizes, "backbone" in sizes)), ignore_metadata_errors=True)
    data: Any = card.data
    data.model_name = repo.rpartition("/")[2]
    data.eval_results = _results(Lesson.read(lesson) for lesson in meta["history"]) or None
    data.widget = [*examples] or None
    return str(card)


def _results(history: Any) -> list[Any]:
    """Accuracy and calibration of every lesson on its held-out images, as shares."""
    from huggingface_hub import EvalResult

    found = []
    taught = (lesson for lesson in history if lesson.kind == "learn")
    for number, lesson in enumerate(taught, start=1):
        if not lesson.held_out:
            continue
        measured = {"accuracy": ("Accuracy", lesson.right / lesson.held_out)}
        if lesson.calibration_error is not None:
            measured["expected_calibration_error"] = ("Calibration error", lesson.calibration_error / 100)
        found += [
            EvalResult(
                task_type=TASK,
                task_name="Image classification",
                dataset_type="imagefolder",
                dataset_name=f"Held out in lesson {number} ({lesson.held_out} images)",
                dataset_config=f"lesson {number}",
                metric_type=kind,
                metric_name=name,
                metric_value=round(value, 4),
            )
            for kind, (name, value) in measured.items()
        ]
    return found


def widget_examples(
    model: ContinualClassifier, photos: Sequence[str | Path], progress: Progress
) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The files of some examples by name, and what the card says of them: the model's answers, since the hub cannot
    run it.

    A photo goes up smaller, and as pixels alone: without its name, and without the place and time that cameras note.
    """
    files, entries = {}, []
    for number, photo in enumerate(progress.track(photos, "examples", len(photos)), start=1):
        shown = Image.fromarray(decode(photo, EXAMPLE_SIDE).permute(1, 2, 0).numpy())
        content = BytesIO()
        shown.save(content, "JPEG", quality=90)
        name = f"example-{number}.jpg"
        files[name] = content.getvalue()
        (answer,) = model.predict([Image.open(BytesIO(files[name]))])
        output = [{"label": label, "score": round(float(score), 4)} for label, score in answer.top(TOP)]
        entries.append({"src": name, "example_title": f"Example {number}", "output": output})
    return files, entries
