"""Classifiers side by side: who is compared with whom, and paired differences with intervals."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lca.errors import LcaError, nearest
from lca.evaluation.intervals import Ends, paired_differences, student_interval
from lca.progress import Progress
from lca.results.classifiers import DAMAGE, IMAGES, STUDENT, Classifier, Measured, most_alike
from lca.results.metrics import columns, summary
from lca.results.reading import Run
from lca.results.stored import same_tasks, same_test_images


def measure(found: Mapping[str, Sequence[Classifier]], progress: Progress) -> None:
    """Draw the bootstraps of all classifiers now, which takes a while where there are many predictions."""
    rows = [row for own in found.values() for row in own]
    for row in progress.track(rows, "intervals", len(rows)):
        row.measured  # noqa: B018  # it is kept


def best_first(rows: Iterable[Classifier]) -> list[Classifier]:
    """By average accuracy."""
    return sorted(rows, key=lambda each: -each.plain["AA"].mean)


def rivals(rows: Sequence[Classifier]) -> list[Classifier]:
    """Those that may be best: the continual ones, if there are any."""
    return [each for each in rows if each.continual] or [*rows]


def choose(rows: Sequence[Classifier], label: str | None) -> Classifier:
    """The classifier of that label, or the best one."""
    if label is None:
        return best_first(rivals(rows))[0]
    found = [each for each in rows if each.label == label]
    if not found:
        raise LcaError(f"there is no classifier {label!r}; {nearest(label, [each.label for each in rows])}")
    return found[0]


def references(found: Mapping[str, Sequence[Classifier]], label: str | None) -> dict[str, Classifier]:
    """What the others of every data set are compared with: the classifier of that label, or the best where it has
    none of it. A label that no data set has is refused."""
    if label is not None:
        choose([row for rows in found.values() for row in rows], label)
    return {
        source: choose(rows, label if any(row.label == label for row in rows) else None)
        for source, rows in found.items()
    }


def instead_of(label: str | None, chosen: Classifier) -> str:
    """What to say of a reference that is not the one that was asked for."""
    return "" if label in (None, chosen.label) else f" (the best, as {label} is not there)"


def choose_measured(rows: Sequence[Classifier], reference: Classifier) -> Classifier:
    """The reference, if it is one of these; or else the best."""
    return reference if reference in rows else choose(rows, None)


def robust_pairs(rows: Sequence[Classifier], reference: Classifier) -> list[tuple[Classifier, Classifier]]:
    """Whom to compare on damaged images: of every label LCA (or, without it, the best) with none and with the method's
    own alignment; and the best of all with the reference."""
    labels: dict[str, list[Classifier]] = defaultdict(list)
    for row in rows:
        labels[row.group].append(row)
    pairs = []
    for branches in labels.values():
        plain = [row for row in branches if row.branch == "none" or row.own]
        aligned = best_first(row for row in branches if row not in plain)
        if aligned:
            ours = next((row for row in aligned if row.branch == "lca"), aligned[0])
            pairs += [(ours, theirs) for theirs in plain]
    others = best_first(row for row in rivals(rows) if row is not reference)
    pairs += [(other, reference) for other in others[:1]]
    return [
        pair
        for number, pair in enumerate(pairs)
        if not why_none(*pair, damaged=True) and set(pair) not in map(set, pairs[:number])
    ]


def differences(one: Classifier, two: Classifier, headings: Iterable[str] | None = None) -> dict[str, Measured]:
    """One minus two by column, on the same seeds, class orders, test images and damage; empty where they share none.

    From several seeds the interval is Student's, of the mean of the differences. From one seed it is a bootstrap of
    the test images, the same for both, where the predictions are at hand.
    """
    others = {run.seed: run for run in two.runs}
    shared = [run for run in one.runs if run.seed in others and not _unlike(run, others[run.seed])]
    images = _by_images(one, two, shared[0], others[shared[0].seed]) if len(shared) == 1 else {}
    found = {}
    for column in headings or columns():
        if column in DAMAGE and not same_damage(one, two):
            continue
        firsts, seconds = one.values(column), two.values(column)
        values = [firsts[run.seed] - seconds[run.seed] for run in shared if run.seed in firsts and run.seed in seconds]
        if len(values) > 1:
            found[column] = Measured(values, student_interval(values), STUDENT)
        elif values:
            interval = images.get(columns().get(column, ""))
            found[column] = Measured(values, interval, IMAGES if interval else "")
    return found


Minus = list[tuple[Classifier, Mapping[str, Measured], str]]


def minus(rows: Sequence[Classifier], reference: Classifier, headings: Iterable[str] | None = None) -> Minus:
    """Every other classifier minus the reference, and what keeps them from being compared."""
    headings = [*columns()] if headings is None else [*headings]
    damaged = headings[0] in DAMAGE
    others = [row for row in rows if row is not reference]
    return [(row, differences(row, reference, headings), why_none(row, reference, damaged=damaged)) for row in others]


def why_none(one: Classifier, two: Classifier, *, damaged: bool = False) -> str:
    """What keeps two classifiers from being compared, in words; empty if nothing does."""
    firsts, seconds = (
        {run.seed: run for run in each.runs if not damaged or run.seed in each.robustness} for each in (one, two)
    )
    reasons = [_unlike(run, seconds[seed]) for seed, run in firsts.items() if seed in seconds]
    if not reasons:
        return "no seed in common"
    if all(reasons):
        return reasons[0]
    return "other damage" if damaged and not same_damage(one, two) else ""


def damage_in_words(rows: Iterable[Classifier]) -> str:
    """How many images were damaged, and by whom; and which classifiers were asked about none of them."""
    rows = [*rows]
    found = [scores for row in rows for scores in row.robustness.values()]
    kinds = [f"{each.images} test images, {'generated' if each.generated else 'published'} damage" for each in found]
    words = " or ".join(dict.fromkeys(kinds))
    missing = ", ".join(row.label for row in rows if not row.robustness)
    return f"{words}; not measured: {missing}" if missing else words


def same_damage(one: Classifier, two: Classifier) -> bool:
    """Whether both were asked about the same damage."""
    kinds = [{scores.damage for scores in each.robustness.values()} for each in (one, two)]
    return bool(kinds[0]) and kinds[0] == kinds[1]


def measured_alike(rows: Sequence[Classifier]) -> tuple[list[Classifier], list[int]]:
    """The classifiers that were asked about the same damaged images, most of them where they differ; and the seeds that
    all of these have."""
    found = {place: next(iter(row.robustness.values())).damage for place, row in enumerate(rows) if row.robustness}
    alike = [rows[place] for place in most_alike(found)]
    seeds = set.intersection(*(set(row.robustness) for row in alike)) if alike else set()
    return alike, sorted(seeds)


def _by_images(one: Classifier, two: Classifier, first: Run, second: Run) -> dict[str, Ends | None]:
    if one.branch not in first.answers or two.branch not in second.answers:
        return {}
    mine, theirs = first.answers[one.branch].outcomes(), second.answers[two.branch].outcomes()
    return {name: interval for name, (_, interval) in paired_differences(mine, theirs, summary, one.draws).items()}


def _unlike(one: Run, two: Run) -> str:
    """In what two runs differ so that they cannot be compared; empty if in nothing."""
    if not same_test_images(one.results, two.results):
        return "seen at another size" if _other_size(one, two) else "other test images"
    return "" if same_tasks(one.results, two.results) else "other tasks"


def _other_size(one: Run, two: Run) -> bool:
    """Whether backbones of two sizes were asked about as many images of the same classes and source. The hash of the
    images is of those that were decoded for a size: it cannot tell whether the files are the same."""
    from lca.backbones import input_size

    data = {**two.results["data"], "sha256": one.results["data"]["sha256"]}
    sizes = {input_size(run.results["backbone"]["name"]) for run in (one, two)}
    return (
        one.source == two.source
        and len(sizes - {None}) == 2
        and same_test_images(one.results, {**two.results, "data": data})
    )
