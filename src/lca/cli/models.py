"""Verbs for a model of one's own: learn, predict, evaluate, info, forget."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lca.cli.common import INTERRUPTED, SOME_FAILED, Overrides, Quiet
from lca.errors import LcaError

if TYPE_CHECKING:
    from lca.classifier import ContinualClassifier, Prediction
    from lca.data.decoding import LeftOut
    from lca.history import Lesson
    from lca.progress import Progress

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")]
Weights = Annotated[
    Path | None, typer.Option("--weights", metavar="FILE", help="The backbone's weights, a safetensors file.")
]
Device = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:1; by default as the model was made.")
]
UnknownAt = Annotated[
    float,
    typer.Option(
        "--unknown-at",
        min=0,
        max=100,
        help="Call an image unknown when it lies farther from every class than this share of the known images, in %.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

CHUNK = 256
"""Images that are read and answered at a time: a folder of any size fits."""


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("learn")(learn_command)
    app.command("predict")(predict_command)
    app.command("evaluate")(evaluate_command)
    app.command("info")(info_command)
    app.command("forget")(forget_command)


def learn_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model; it is made if it is new.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Holds one folder of images per class.")],
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", metavar="NAME", help="For a new model: one of `lca backbones`, or any timm tag."),
    ] = None,
    weights: Weights = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="NAME", help="For a new model: how it learns; `best` by default.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006  # typer copies it
    held_out: Annotated[
        float, typer.Option("--held-out", metavar="SHARE", help="Share of every class to measure on instead.")
    ] = 0.1,
    bundle: Annotated[
        bool | None,
        typer.Option("--bundle/--no-bundle", help="Keep the backbone's weights in the model folder.", show_default=""),
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Teach a model the classes of a folder.

    Classes may be new, known, or both: what is known already is learnt better. Images are not kept. Broken files are
    left out and named. If it is interrupted, even by a power cut, the model stays as it was before.

    Examples:

      lca learn my-model photos/first

      lca learn my-model photos/more

      lca learn flowers photos --backbone vit_base_patch16_224.augreg_in21k_ft_in1k --bundle
    """
    with _changing(model) as known:
        from lca.progress import choose_progress

        progress = choose_progress(quiet)
        if not folder.is_dir():
            raise LcaError(f"there is no folder {folder}; expected one with a folder of images per class")
        if known:
            if asked := [name for name, value in (("--backbone", backbone), ("--recipe", recipe)) if value]:
                raise LcaError(f"{model} exists, and {' and '.join(asked)} can only be chosen for a new model")
            if overrides:
                raise LcaError(f"{model} exists, and its recipe can no longer be changed with --set")
            learner = _load(model, device, weights, progress)
        else:
            learner = _new(backbone, weights, recipe, [*overrides], device, progress)
        if bundle is not None:
            learner.bundle = bundle
        lesson = learner.learn(folder, held_out=held_out)
        learner.save(model)
    if as_json:
        _print_json({**vars(lesson), "accuracy": lesson.accuracy, "classes": learner.classes})
    else:
        _print_lesson(lesson, learner, model)


def predict_command(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...", help="Files, folders, patterns such as '*.jpg', or - for a list on standard input."
        ),
    ],
    top: Annotated[int, typer.Option("--top", min=1, help="How many of the most probable classes to name.")] = 3,
    unknown_at: UnknownAt = 99.0,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    branch: Annotated[
        str | None, typer.Option("--branch", help="Which of the model's classifiers answers; the last by default.")
    ] = None,
    weights: Weights = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Ask a model what is in images.

    Every line gives the answer, its probability, and how far the image lies from the nearest class: the share of known
    images, in per cent, that lie nearer to theirs. Exit code 1: some images could not be read; 2: none could.

    Examples:

      lca predict my-model cat.jpg

      lca predict my-model holiday/ '*.png' --top 1 --csv > answers.csv

      find photos -name '*.jpg' | lca predict my-model - --json
    """
    from lca.progress import Progress, choose_progress

    if as_json and as_csv:
        raise LcaError("--json and --csv exclude each other")
    paths = list(_image_paths(images))
    if not paths:
        raise LcaError(f"no images found in {', '.join(images)}")
    learner = _load(model, device, weights, Progress())
    if not learner.classes:
        raise LcaError(f"{model} knows no class; teach it one with `lca learn {model} FOLDER`")
    show = choose_progress(quiet or len(paths) <= CHUNK)
    printer = _PRINTERS["json" if as_json else "csv" if as_csv else "table"](paths, top)
    left_out: list[LeftOut] = []
    with show.task("answering", len(paths)) as advance:
        for start in range(0, len(paths), CHUNK):
            part = paths[start : start + CHUNK]
            answers = _answers(learner, part, branch, unknown_at)
            left_out += [each for each in answers if not hasattr(each, "label")]
            for path, answer in zip(part, answers, strict=True):
                printer.show(path, answer)
            advance(len(part))
    printer.end()
    if len(left_out) == len(paths):
        from lca.data.decoding import none_readable

        raise none_readable(left_out)
    if left_out:
        print(f"{len(left_out)} of {len(paths)} could not be read", file=sys.stderr)
        raise typer.Exit(SOME_FAILED)


def evaluate_command(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Holds one folder of images per class.")],
    unknown_at: UnknownAt = 99.0,
    as_json: AsJson = False,
    branch: Annotated[
        str | None, typer.Option("--branch", help="Which of the model's classifiers answers; the last by default.")
    ] = None,
    weights: Weights = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Measure a model on labelled images it has not been taught.

    Folders of classes it never learnt are welcome: they show how many strangers it refuses.

    Examples:

      lca evaluate my-model photos/test

      lca evaluate my-model photos/test --json > evaluation.json
    """
    from lca.progress import choose_progress

    learner = _load(model, device, weights, choose_progress(quiet))
    evaluation = learner.evaluate(folder, branch, unknown_at)
    facts = evaluation.as_json()
    if as_json:
        _print_json(facts)
        return
    if facts["images"]:
        low, high = facts["accuracy_interval_95"]
        print(f"accuracy            {facts['accuracy']:.1f} % ({facts['right']} of {facts['images']})")
        print(f"  95 % interval     {low:.1f} to {high:.1f} %")
        print(f"mean probability    {facts['mean_probability']:.1f} %")
        print(f"calibration error   {facts['calibration_error']:.1f} %")
        print(f"called unknown      {facts['called_unknown']:.1f} %")
    if facts["strangers"]:
        print(f"strangers           {facts['strangers']} images of classes it never learnt")
        print(f"  called unknown    {facts['strangers_called_unknown']:.1f} %")
    if facts["by_class"]:
        print("\nright of all, by class")
        width = max(len(name) for name in facts["by_class"])
        for name, (right, total) in facts["by_class"].items():
            print(f"  {name:<{width}}  {right} of {total}")
    if facts["confusions"]:
        print("\nmost frequent confusions")
        for truth, answer, times in facts["confusions"][:10]:
            print(f"  {truth} taken for {answer}: {times}")


def info_command(model: Model, as_json: AsJson = False) -> None:
    """Show what a model knows, what it learnt when, and what it costs.

    Examples:

      lca info my-model

      lca info my-model --json
    """
    from lca.files import read_manifest, tensor_bytes
    from lca.report.card import HISTORY, facts_of, history_rows

    _check_model(model)
    files, meta = read_manifest(model)
    carried = files.pop("backbone", None)
    sizes = {part: size for part, path in files.items() if (size := tensor_bytes(path))}
    facts = facts_of(meta, sizes, carried is not None)
    if as_json:
        _print_json(facts)
        return
    backbone = facts["backbone"]
    print(f"{model}: {len(facts['classes'])} classes, method {facts['method']}, tuning {facts['tuning']}")
    print(f"backbone {backbone['name']} at {backbone['input']} px, {'carried along' if carried else 'not carried'}")
    print(f"         SHA-256 {backbone['sha256']}")
    print("\nclasses and the images they were learnt from")
    width = max((len(name) for name in facts["classes"]), default=0)
    for name, count in facts["classes"].items():
        print(f"  {name:<{width}}  {count}")
    print("\nhistory")
    rows = [list(HISTORY), *history_rows(facts)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HISTORY))]
    for row in rows:
        print("  " + "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    temperatures = ", ".join(f"{name} {value:.2f}" for name, value in facts["temperatures"].items())
    print(f"\ntemperature {temperatures or '1, not calibrated: nothing was held out'}")
    print(f"bytes beside the backbone: {sum(sizes.values()):,}")
    for part, size in sizes.items():
        print(f"  {part:<{max(len(name) for name in sizes)}}  {size:>12,}")


def forget_command(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Name of the class.")],
    weights: Weights = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Remove a class from a model: its head row and its statistics, and align the other classes again.

    The backbone is NOT unlearnt: what it picked up from the class's images stays in its weights, mixed with everything
    else. Where that matters, teach a new model without the class.

    Examples:

      lca forget my-model cat

      lca forget my-model 'garden spider'
    """
    from lca.progress import choose_progress

    _check_model(model)
    with _changing(model):
        learner = _load(model, device, weights, choose_progress(quiet))
        learner.forget(name)
        learner.save(model)
    print(f"{model} has forgotten {name}; it knows {len(learner.classes)} classes")


@contextmanager
def _changing(model: Path) -> Iterator[bool]:
    """Hold a model folder while it is changed; tells whether there is a model in it. What fails leaves no trace."""
    from lca.files import has_state, hold, is_part

    if model.exists() and not model.is_dir():
        raise LcaError(f"{model} is a file; a model is a folder")
    if model.is_dir() and not has_state(model):
        foreign = [path.name for path in model.iterdir() if not path.name.startswith(".") and not is_part(path)]
        if foreign:
            raise LcaError(f"{model} exists and is no model (it holds {', '.join(foreign[:3])}); choose another name")
    known = has_state(model)
    try:
        with hold(model, f"another process is changing {model}; wait for it to finish"):
            known = has_state(model)
            try:
                yield known
            finally:
                if not has_state(model) and [path.name for path in model.iterdir()] == [".lock"]:
                    (model / ".lock").unlink()
                    model.rmdir()
    except KeyboardInterrupt:
        print(f"\ninterrupted; {model} {'is as it was' if known else 'was not made'}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _check_model(model: Path) -> None:
    from lca.files import has_state

    if not has_state(model):
        what = "is no model: it holds no state.json" if model.exists() else "does not exist"
        raise LcaError(f"{model} {what}; `lca learn {model} FOLDER` makes one")


def _load(model: Path, device: str | None, weights: Path | None, progress: "Progress") -> "ContinualClassifier":
    from lca.classifier import ContinualClassifier

    _check_model(model)
    return ContinualClassifier.load(model, device=device, weights=weights, progress=progress)


def _new(
    backbone: str | None,
    weights: Path | None,
    recipe: str | None,
    overrides: list[str],
    device: str | None,
    progress: "Progress",
) -> "ContinualClassifier":
    from lca.classifier import ContinualClassifier
    from lca.config import BackboneOptions, ViewOptions, load_recipe
    from lca.data.sources import read_card

    for key, value in (("backbone.name", backbone), ("backbone.weights", weights), ("device", device)):
        if value is not None:
            overrides.append(f"{key}={json.dumps(str(value))}")
    loaded = load_recipe(recipe or "best", overrides)
    view = loaded.data.view.over(ViewOptions.model_validate(read_card("folder")["view"]))
    learner = ContinualClassifier(loaded, view, progress)
    if backbone is None and loaded.backbone.name == BackboneOptions().name:
        progress.line(
            f"new model on {loaded.backbone.name}, which is small and comes along; for photos a larger --backbone is "
            "worth its download (see `lca backbones`)"
        )
    return learner


def _print_lesson(lesson: "Lesson", learner: "ContinualClassifier", model: Path) -> None:
    images, again = sum(lesson.images.values()), len(lesson.images) - len(lesson.new)
    new = f"{len(lesson.new)} new class{'es' * (len(lesson.new) != 1)}"
    known = f" and {again} known" if again else ""
    left_out = f", {lesson.left_out} files left out" if lesson.left_out else ""
    print(f"learnt {new}{known} from {images} images ({lesson.held_out} more held out{left_out})")
    if lesson.accuracy is None:
        print("accuracy not measured: a class needs at least 6 images for one to be held out")
    else:
        print(
            f"accuracy on the held-out images, among all {len(learner.classes)} classes: "
            f"{lesson.accuracy:.1f} % ({lesson.right} of {lesson.held_out})"
        )
    print(f"{model} knows {', '.join(learner.classes[:10])}{', ...' if len(learner.classes) > 10 else ''}")


def _image_paths(arguments: Iterable[str]) -> Iterator[Path]:
    """The files that arguments name: files as they are, folders with all images below, patterns, - for a list."""
    from lca.data.folders import ReadingReport, image_files

    for argument in arguments:
        if argument == "-":
            yield from _image_paths(line.rstrip("\r\n") for line in sys.stdin if line.strip())
        elif Path(argument).is_dir():
            yield from image_files(Path(argument), ReadingReport())
        elif has_magic(argument) and not Path(argument).exists():
            matches = sorted(glob(argument, recursive=True))
            if not matches:
                raise LcaError(f"nothing matches {argument!r}")
            yield from _image_paths(matches)
        else:
            yield Path(argument)


def _answers(
    learner: "ContinualClassifier", paths: list[Path], branch: str | None, unknown_at: float
) -> "list[Prediction | LeftOut]":
    """An answer for every path, or why there is none."""
    from lca.data.decoding import LeftOut, decode_all

    decoded = decode_all(paths, learner.working_size, learner.progress)
    readable = [each for each in decoded if not isinstance(each, LeftOut)]
    answers = iter(learner.predict(readable, branch, unknown_at))
    return [each if isinstance(each, LeftOut) else next(answers) for each in decoded]


class _Table:
    """Aligned lines, printed as they come."""

    def __init__(self, paths: list[Path], top: int) -> None:
        self._width = min(max(len(str(path)) for path in paths), 60)
        self._top = top

    def show(self, path: Path, answer: "Prediction | LeftOut") -> None:
        facts = _facts(path, answer, self._top)
        if "error" in facts:
            print(f"{path!s:<{self._width}}  could not be read: {facts['error']}")
            return
        far = "" if facts["distance"] is None else f"  distance {facts['distance']:5.1f} %"
        first, *others = (f"{each['label']} {100 * each['probability']:.1f} %" for each in facts["top"])
        mark = "unknown, nearest to " if facts["unknown"] else ""
        print(f"{path!s:<{self._width}}  {mark}{first}{far}" + f"  ({', '.join(others)})" * bool(others))

    def end(self) -> None:
        sys.stdout.flush()


class _Json:
    """One JSON array, an image a line."""

    def __init__(self, paths: list[Path], top: int) -> None:
        self._top, self._before = top, "["

    def show(self, path: Path, answer: "Prediction | LeftOut") -> None:
        print(self._before, json.dumps(_facts(path, answer, self._top), ensure_ascii=False), sep="\n", end="")
        self._before = ","

    def end(self) -> None:
        print("\n]")


class _Csv:
    """A line per image, with a header."""

    def __init__(self, paths: list[Path], top: int) -> None:
        self._top, self._writer = top, csv.writer(sys.stdout, lineterminator="\n")
        others = [f"{what}_{place}" for place in range(2, top + 1) for what in ("label", "probability")]
        self._writer.writerow(["image", "label", "probability", "distance", "unknown", *others, "error"])

    def show(self, path: Path, answer: "Prediction | LeftOut") -> None:
        facts = _facts(path, answer, self._top)
        if "error" in facts:
            self._writer.writerow([facts["image"], *[""] * (4 + 2 * (self._top - 1)), facts["error"]])
            return
        others = [value for each in facts["top"][1:] for value in (each["label"], each["probability"])]
        others += [""] * (2 * (self._top - 1) - len(others))
        distance = "" if facts["distance"] is None else facts["distance"]
        unknown = str(facts["unknown"]).lower()
        self._writer.writerow([facts["image"], facts["label"], facts["probability"], distance, unknown, *others, ""])

    def end(self) -> None:
        sys.stdout.flush()


_PRINTERS: dict[str, type[_Table | _Json | _Csv]] = {"table": _Table, "json": _Json, "csv": _Csv}


def _facts(path: Path, answer: "Prediction | LeftOut", top: int) -> dict[str, Any]:
    from lca.data.decoding import LeftOut

    if isinstance(answer, LeftOut):
        return {"image": str(path), "error": answer.reason}
    return {
        "image": str(path),
        "label": answer.label,
        "probability": round(answer.probability, 6),
        "distance": None if answer.distance is None else round(answer.distance, 3),
        "unknown": answer.unknown,
        "top": [{"label": label, "probability": round(value, 6)} for label, value in answer.top(top)],
    }


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))
