"""Verbs for a model of one's own: learn, predict, evaluate, info."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lca.cli.common import SOME_FAILED, MaxMegapixels, Overrides, Quiet, check_model, interruptible
from lca.cli.predictions import PRINTERS, image_paths, print_answers
from lca.errors import LcaError
from lca.progress import Progress, choose_progress
from lca.text import count, json_text, terminal_text

if TYPE_CHECKING:
    from lca.classifier import ContinualClassifier
    from lca.data.labelled import LabelledImages
    from lca.history import Improvement, Lesson
    from lca.lessons import Effort

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")]
Weights = Annotated[Path | None, typer.Option(metavar="FILE", help="The backbone's weights, a safetensors file.")]
AllowDownload = Annotated[
    bool,
    typer.Option("--allow-download", help="Fetch the backbone that the model names, if it is not on this machine."),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1; by default as the model was made.")]
UnknownAt = Annotated[
    float,
    typer.Option(
        min=0,
        max=100,
        help="Call an image unknown when it is more unlike known images than this share of them are, in %.",
    ),
]
Branch = Annotated[str | None, typer.Option(help="Which of the model's classifiers answers; the last by default.")]
Keep = Annotated[
    int, typer.Option(metavar="N", min=0, help="How many changes `lca undo` can take back; the states before are kept.")
]
Photos = Annotated[
    str,
    typer.Argument(
        metavar="PHOTOS",
        help="A folder with one folder of images per class, a zip file of one, a CSV or JSONL file of path,label, or "
        "hf:NAME.",
    ),
]
FolderLayout = Annotated[
    Literal["auto", "parts", "classes"],
    typer.Option(
        "--layout",
        help="Read folders called train, test and the like as parts or as classes.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

WRONG_NAMED = 20
"""Photos with a wrong answer that `lca evaluate` names before it only counts."""
HURT_NAMED = 10
"""Old classes that a lesson hurt and `lca learn` names."""
CHUNK = 64
"""Images that are read and answered at a time: a folder of any size fits."""


def learn_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model; it is made if it is new.")],
    photos: Photos,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For a new model: one of `lca backbones`, or any timm tag; an embedded DeiT-Tiny by default.",
        ),
    ] = None,
    weights: Weights = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="For a new model: how it learns; `best` by default.")
    ] = None,
    overrides: Overrides = [],
    held_out: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=0.9, help="Share of every class to measure on instead.")
    ] = 0.1,
    instant: Annotated[bool, typer.Option("--instant", help="Train nothing, however many photos there are.")] = False,
    improve: Annotated[
        bool, typer.Option("--improve", help="Train after the instant lesson, however few photos there are.")
    ] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Train at once, and compare with nothing.")] = False,
    allow_download: AllowDownload = False,
    bundle: Annotated[
        bool | None,
        typer.Option(
            "--bundle/--no-bundle",
            help="Keep the backbone's weights in the model folder, to give it away; it then keeps no earlier states.",
            show_default=False,
        ),
    ] = None,
    keep: Keep = 5,
    layout: FolderLayout = "auto",
    device: Device = None,
    as_json: AsJson = False,
    max_megapixels: MaxMegapixels = None,
    quiet: Quiet = False,
) -> None:
    """Teach a model the classes of a folder, a zip file, a list of photos or a data set of the Hugging Face hub.

    Classes may be new, known, or both: what is known already is learnt better. Images are not kept. Broken files are
    left out and named. If it is interrupted, even by a power cut, the model stays as it was before; a lesson that was a
    mistake is taken back with `lca undo`. Where there are `train` and `test` (or validation, valid, val) with class
    folders inside, train is taught, and test is measured on afterwards.

    First comes an instant lesson, in seconds: nothing is trained, and the model is saved and can be used. With more
    than ten photos a class it then trains on the same photos, which takes minutes. What comes of that is kept if
    neither the accuracy of the new classes nor an estimate for the old ones falls. Interrupted there, the instant
    lesson stays.

    Examples:
      lca learn my-model photos/first
      lca learn my-model photos/more --instant
      lca learn my-model photos.zip
      lca learn my-model labels.csv
      lca learn my-model photos/few --improve
      lca learn flowers photos --backbone vit_base_patch16_224.augreg_in21k_ft_in1k --bundle
    """
    from lca.data.labelled import album_of

    effort, progress = _effort(instant, improve, thorough), choose_progress(quiet)
    progress.line(f"teaching {model} what is in {photos}")  # loading what it takes takes seconds
    with changing(model) as known:
        album = album_of(photos, layout)  # what is no set of photos is said before a model is made
        if known:
            if asked := [name for name, value in (("--backbone", backbone), ("--recipe", recipe)) if value]:
                raise LcaError(f"{model} exists, and {' and '.join(asked)} can only be chosen for a new model")
            if overrides:
                raise LcaError(f"{model} exists, and its recipe can no longer be changed with --set")
            learner = load_model(model, device, weights, progress, allow_download)
            if learner.method.info.needs_all_data:
                raise LcaError(
                    f"method {learner.recipe.method.name!r} of {model} needs all data at once: a second lesson would "
                    "undo the first. Teach a new model with all images"
                )
        else:
            learner = _new(backbone, weights, recipe, overrides, device, progress)
            if not (as_json or quiet):
                _print_backbone(learner.backbone.name)
                if weights is not None and not bundle:
                    print(
                        f"no model names a file outside it: give --weights {weights} to every command, or use --bundle"
                    )
        if bundle is not None:
            learner.bundle = bundle
        learner.keep = keep
        read = learner.read(album)
        lesson = _teach(learner, read, held_out, effort, model, silent=as_json)
    if as_json:
        reading = read.report.as_json()
        accuracies = {"accuracy": lesson.accuracy, "test_accuracy": lesson.test_accuracy}
        _print_json({**asdict(lesson), **accuracies, "classes": learner.classes, "reading": reading})


def _effort(instant: bool, improve: bool, thorough: bool) -> "Effort":
    asked: list[Effort] = [*["instant"] * instant, *["improve"] * improve, *["thorough"] * thorough]  # type: ignore[list-item]
    if len(asked) > 1:
        raise LcaError(f"{' and '.join(f'--{each}' for each in asked)} exclude each other; give one of them, or none")
    return asked[0] if asked else "auto"


def _teach(
    learner: "ContinualClassifier",
    read: "LabelledImages",
    held_out: float,
    effort: "Effort",
    model: Path,
    silent: bool,
) -> "Lesson":
    """Save and tell every answer of a lesson as soon as it is there."""
    lessons = learner.lessons(read, held_out, effort)
    lesson = next(lessons)
    learner.save(model)
    if not silent:
        _print_lesson(lesson, learner, model)
    kept = f"the instant lesson stands, and {model} holds it"
    try:
        with interruptible(kept):
            for better in lessons:
                learner.save(model)
                lesson = better
    except LcaError as error:
        raise LcaError(f"{error}; {kept}") from error
    if not silent and lesson.improvement is not None:
        _print_improvement(lesson.improvement)
        if lesson.improvement.kept:
            _print_test(lesson)
            _print_hurt(lesson)
        _print_closing(lesson, learner, model)
    elif not silent and effort == "improve":
        print("training was not tried: there is nothing to train on, or nothing to compare on (see --held-out)")
    return lesson


def predict_command(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE", help="Files, folders, patterns such as '*.jpg', or - for a list on standard input."
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="How many of the most probable classes to name.")] = 3,
    unknown_at: UnknownAt = 98.0,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    branch: Branch = None,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    max_megapixels: MaxMegapixels = None,
    quiet: Quiet = False,
) -> None:
    """Ask a model what is in images.

    Every line gives the answer, its probability, and how unlike known images it is: the share of these, in per cent,
    that are less so. Exit code 1: some images could not be read; 2: none could.

    Examples:
      lca predict my-model cat.jpg
      lca predict my-model holiday/ '*.png' --top 1 --csv > answers.csv
      find photos -name '*.jpg' | lca predict my-model - --json
    """
    from lca.data.decoding import LeftOut, unreadable_images
    from lca.data.folders import ReadingReport

    if as_json and as_csv:
        raise LcaError("--json and --csv exclude each other")
    report, progress = ReadingReport(), choose_progress(quiet)
    paths = list(image_paths(images, report))
    for line in report.lines():
        progress.warning(line)
    if not paths:
        raise LcaError(f"no images found in {', '.join(images)}")
    learner = load_model(model, device, weights, Progress(), allow_download)
    if not learner.classes:
        raise LcaError(f"{model} knows no class; teach it one with `lca learn {model} FOLDER`")
    printer = PRINTERS["json" if as_json else "csv" if as_csv else "table"](paths, top, learner, branch)
    left_out: list[LeftOut] = []
    with (progress if len(paths) > 8 else Progress()).task("answering", len(paths)) as advance:
        for start in range(0, len(paths), CHUNK):
            part = paths[start : start + CHUNK]
            for path, answer in zip(part, learner.try_predict(part, branch, unknown_at), strict=True):
                printer.show(path, answer)
                if isinstance(answer, LeftOut):
                    left_out.append(answer)
            advance(len(part))
    printer.end()
    if len(left_out) == len(paths):
        raise unreadable_images(left_out)
    if left_out or report.left_out:
        print(f"{len(left_out) + len(report.left_out)} could not be read", file=sys.stderr)
        raise typer.Exit(SOME_FAILED)


def evaluate_command(
    model: Model,
    photos: Photos,
    layout: FolderLayout = "auto",
    unknown_at: UnknownAt = 98.0,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a line for every photo, right or wrong.")] = False,
    branch: Branch = None,
    weights: Weights = None,
    allow_download: AllowDownload = False,
    device: Device = None,
    max_megapixels: MaxMegapixels = None,
    quiet: Quiet = False,
) -> None:
    """Measure a model on labelled images it has not been taught, and name those it got wrong.

    Folders of classes it never learnt are welcome: they show how many of them it refuses. Where there are parts, such
    as `train` and `test`, it is the test part. Exit code 1: some files could not be read and were left out.
    `lca report MODEL --photos FOLDER` shows the same as a page with the photos.

    Examples:
      lca evaluate my-model photos/test
      lca evaluate my-model photos/test --json > evaluation.json
      lca evaluate my-model photos/test --csv > answers.csv
    """
    if as_json and as_csv:
        raise LcaError("--json and --csv exclude each other")
    learner = load_model(model, device, weights, choose_progress(quiet), allow_download)
    read = learner.read(photos, "test", layout)
    evaluation = learner.evaluate(read, branch, unknown_at)
    if as_json:
        _print_json({**evaluation.as_json(), "reading": read.report.as_json()})
    elif as_csv:
        print_answers(evaluation.answers)
    else:
        _print_evaluation(evaluation.as_json())
    if read.report.left_out:
        raise typer.Exit(SOME_FAILED)


def _print_evaluation(facts: dict[str, Any]) -> None:
    if facts["images"]:
        low, high = facts["accuracy_interval_95"]
        print(f"accuracy            {facts['accuracy']:.1f} % ({facts['right']} of {facts['images']})")
        print(f"  95 % interval     {low:.1f} to {high:.1f} %")
        print(f"mean probability    {facts['mean_probability']:.1f} %")
        print(f"calibration error   {facts['calibration_error']:.1f} %")
        print(f"called unknown      {facts['called_unknown']:.1f} %")
    if facts["ood"]:
        print(f"other classes       {facts['ood']} images of classes it never learnt")
        print(f"  called unknown    {facts['ood_called_unknown']:.1f} %")
    if facts["unknown_detection"]:
        found = facts["unknown_detection"]
        print(f"  AUROC             {found['auroc']:.1f} % (how well the distance tells them; 50 is chance)")
    if facts["by_class"]:
        print("\nright of all, by class")
        _print_columns([name, f"{right} of {total}"] for name, (right, total) in facts["by_class"].items())
    if facts["confusions"]:
        print("\nmost frequent confusions")
        for truth, answer, times in facts["confusions"][:10]:
            print(f"  {terminal_text(truth)} taken for {terminal_text(answer)}: {times}")
        print("\nwrong, the surest first")
        for each in facts["wrong"][:WRONG_NAMED]:
            path = terminal_text(each["path"] or "an image without a file")
            sure = f"({100 * each['probability']:.1f} %{', unknown' * each['unknown']})"
            print(f"  {path}  {terminal_text(each['truth'])} taken for {terminal_text(each['answer'])} {sure}")
        if len(facts["wrong"]) > WRONG_NAMED:
            print(f"  and {len(facts['wrong']) - WRONG_NAMED} more; --csv names all")


def info_command(model: Model, as_json: AsJson = False) -> None:
    """Show what a model knows, what it learnt when, and what it costs.

    Examples:
      lca info my-model
      lca info my-model --json
    """
    from lca.card import HISTORY, facts_of, history_rows
    from lca.earlier import bytes_kept, earlier_in
    from lca.files import read_manifest, tensor_bytes
    from lca.stored_facts import check_facts

    check_model(model)
    files, meta = read_manifest(model)
    check_facts(meta, model)
    earlier = {"states": len(earlier_in(model)), "bytes": bytes_kept(model, {path.name for path in files.values()})}
    carried = files.pop("backbone", None)
    sizes = {part: size for part, path in files.items() if (size := tensor_bytes(path))}
    facts = facts_of(meta, sizes, carried is not None)
    if as_json:
        _print_json({**facts, "earlier": earlier})
        return
    backbone = facts["backbone"]
    print(
        terminal_text(f"{model}: {len(facts['classes'])} classes, method {facts['method']}, tuning {facts['tuning']}")
    )
    carrying = "carried along" if carried else "not carried"
    print(terminal_text(f"backbone {backbone['name']} at {backbone['input']} px, {carrying}"))
    print(f"         SHA-256 {backbone['sha256']}")
    print("\nclasses and the images they were learnt from")
    _print_columns([name, str(count)] for name, count in facts["classes"].items())
    print("\nhistory")
    _print_columns([HISTORY, *history_rows(facts)])
    temperatures = ", ".join(f"{terminal_text(name)} {value:.2f}" for name, value in facts["temperatures"].items())
    print(f"\ntemperature of the probabilities: {temperatures or '1, not calibrated: nothing was held out'}")
    print(f"bytes beside the backbone: {sum(sizes.values()):,}")
    _print_columns([part, f"{size:>12,}"] for part, size in sizes.items())
    print(f"changes that `lca undo` can take back: {earlier['states']}, kept in {earlier['bytes']:,} bytes more")


@contextmanager
def changing(model: Path) -> Iterator[bool]:
    """Hold a model folder while it is changed; tells whether there is a model in it. What fails leaves no trace."""
    from lca.files import has_state, hold, is_part

    if model.exists() and not model.is_dir():
        raise LcaError(f"{model} is a file; a model is a folder")
    if model.is_dir() and not has_state(model):
        foreign = [path.name for path in model.iterdir() if not path.name.startswith(".") and not is_part(path)]
        if foreign:
            raise LcaError(f"{model} exists and is no model (it holds {', '.join(foreign[:3])}); choose another name")
    outcome = f"{model} {'is as it was' if has_state(model) else 'was not made'}"
    with (
        interruptible(outcome),
        hold(model, f"another process is changing {model}; wait for it to finish", private=True),
    ):
        try:
            yield has_state(model)
        finally:
            if not has_state(model) and [path.name for path in model.iterdir()] == [".lock"]:
                (model / ".lock").unlink()
                model.rmdir()


def load_model(
    model: Path, device: str | None, weights: Path | None, progress: Progress, allow_download: bool
) -> "ContinualClassifier":
    from lca.classifier import ContinualClassifier

    check_model(model)
    return ContinualClassifier.load(
        model, device=device, weights=weights, progress=progress, allow_download=allow_download
    )


def _new(
    backbone: str | None,
    weights: Path | None,
    recipe: str | None,
    overrides: list[str],
    device: str | None,
    progress: Progress,
) -> "ContinualClassifier":
    from lca.classifier import ContinualClassifier
    from lca.recipe import recipe_for_photos

    of_backbone = {"name": backbone, "weights": weights and str(weights)}
    changes: dict[str, Any] = {"backbone": {key: value for key, value in of_backbone.items() if value is not None}}
    if device is not None:
        changes["device"] = device
    return ContinualClassifier(recipe_for_photos(recipe or "best", overrides, changes), progress=progress)


def _print_backbone(name: str) -> None:
    """Which backbone a new model gets, and what another would cost: it cannot be changed later."""
    from lca.backbones import embedded_names
    from lca.cli.lists import LARGER, footprint_text

    if name in embedded_names():
        print(f"the backbone is {name}, which comes along: {footprint_text(name)}")
        print(f"--backbone chooses another (see `lca backbones`), such as {LARGER}: {footprint_text(LARGER)}")


def _print_lesson(lesson: "Lesson", learner: "ContinualClassifier", model: Path) -> None:
    images, again = sum(lesson.images.values()), len(lesson.images) - len(lesson.new)
    known = f" and {again} known" if again else ""
    left_out = f", {count(lesson.left_out, 'file')} left out" if lesson.left_out else ""
    print(
        f"learnt {count(len(lesson.new), 'new class', 'new classes')}{known} from {count(images, 'image')} "
        f"({lesson.held_out} more held out{left_out}){', nothing trained' * (lesson.effort == 'instant')}"
    )
    if lesson.accuracy is None:
        print("nothing was held out, so accuracy is not measured; it takes --held-out and classes of 6 images or more")
        if lesson.left_one_out_accuracy is not None:
            print(
                f"each learnt image as if it had not been learnt: {lesson.left_one_out_accuracy:.1f} % named rightly "
                f"({lesson.left_one_out_right} of {lesson.left_one_out})"
            )
    else:
        print(
            f"accuracy on the held-out images, among all {len(learner.classes)} classes: "
            f"{lesson.accuracy:.1f} % ({lesson.right} of {lesson.held_out}; {lesson.called_unknown} called unknown)"
        )
    _print_test(lesson)
    _print_hurt(lesson)
    if not learner.temperatures:
        print("probabilities are not calibrated yet: no image was ever held out")
    if not learner.knows_distances:
        print("nothing will be called unknown: there are no two images of a class, or no class statistics")
    _print_closing(lesson, learner, model)


def _print_closing(lesson: "Lesson", learner: "ContinualClassifier", model: Path) -> None:
    """What was just learnt, and how much is known now."""
    names = [*lesson.new, *(name for name in lesson.images if name not in lesson.new)]
    learnt = ", ".join(map(terminal_text, names[:10])) + f" and {len(names) - 10} more" * (len(names) > 10)
    print(f"{model} has learnt {learnt}; it knows {count(len(learner.classes), 'class', 'classes')}", flush=True)


def _print_test(lesson: "Lesson") -> None:
    if lesson.test_accuracy is not None:
        print(f"accuracy on the test part: {lesson.test_accuracy:.1f} % ({lesson.tested_right} of {lesson.tested})")


def _print_hurt(lesson: "Lesson") -> None:
    """Warn of old classes that a lesson hurt; nothing where it hurt none."""
    hurt = {} if lesson.old_classes is None else lesson.old_classes.hurt
    if not hurt:
        return
    print("CHECK: this lesson hurts old classes, by an estimate from their statistics (their photos are gone):")
    for name, change in [*hurt.items()][:HURT_NAMED]:
        taken = f", now often taken for {terminal_text(change.taken_for)}" if change.taken_for else ""
        print(f"  {terminal_text(name)}: {change.before:.0f} % named rightly before, {change.after:.0f} % after{taken}")
    if len(hurt) > HURT_NAMED:
        print(f"  and {len(hurt) - HURT_NAMED} more; `lca info MODEL --json` has all")
    print("  more photos of both classes help: teach the old ones again together with the new ones")


def _print_improvement(tried: "Improvement") -> None:
    print(f"training took {tried.seconds} s and is {'kept' if tried.kept else 'not kept: the instant lesson stays'}")
    where = "held-out images" if tried.measured_on == "held out" else "learnt images, each as if it had not been learnt"
    print(f"  without and with it, accuracy on the {where}: {tried.instant:.1f} % and {tried.thorough:.1f} %")
    if tried.known_instant is not None:
        print(
            f"  estimated for the classes known before: {tried.known_instant:.1f} % and {tried.known_thorough:.1f} % "
            f"(chance explains {tried.margin:.1f})"
        )


def _print_columns(rows: Iterable[Sequence[str]]) -> None:
    lines = [[terminal_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  " + "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def _print_json(content: Any) -> None:
    print(json_text(content, indent=1))
