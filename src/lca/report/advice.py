"""What would make a taught model better, by the photos it was asked about and by its lessons."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from lca.evaluation.answers import Answer, Evaluation
from lca.evaluation.intervals import wilson_interval
from lca.history import Change, Lesson

SURE = 0.8
"""Probability from which on a wrong answer makes one doubt the photo's folder."""
ALIKE, UNLIKE = 0.1, 0.2
"""Share of the photos of two classes that are taken for the other; share of a class's photos that are unknown."""
FEWEST = 2
"""Photos that such a share takes."""
OF_A_KIND = 4
"""Pieces of advice of one kind that are given: more would not be read."""
MORE, FEW = 5, 10
"""Photos to add at a time, and from how many on a class has enough unless it does worse than the others."""


@dataclass(frozen=True)
class Advice:
    """One thing to do, and the photos it is about by their numbers in the evaluation."""

    text: str
    photos: Sequence[int] = ()


def advice(evaluation: Evaluation, learnt: Mapping[str, int], history: Sequence[Lesson]) -> list[Advice]:
    """What to do, the most certain first, of every kind the first few. `learnt` has the photos every class was learnt
    from."""
    kinds = (
        to_check(evaluation.answers),
        hurt_by_lessons(history, learnt),
        look_alikes(evaluation),
        more_photos(evaluation, learnt),
        unlike_the_learnt(evaluation),
    )
    return [each for kind in kinds for each in islice(kind, OF_A_KIND)]


def to_check(answers: Sequence[Answer]) -> Iterator[Advice]:
    """Photos that are surely taken for another class, which they also lie nearer to: perhaps they are in the wrong
    folder. Photos of classes that the model does not know are not meant."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    known = {each.truth for each in answers if each.truth == each.label}
    for number, each in enumerate(answers):
        nearer = each.nearest in (None, each.label)
        if each.truth in known and each.truth != each.label and each.probability >= SURE and nearer:
            groups[each.truth, each.label].append(number)
    for photos in groups.values():
        photos.sort(key=lambda number: -answers[number].probability)
    order = sorted(groups.items(), key=lambda item: (-len(item[1]), -answers[item[1][0]].probability))
    for (truth, label), photos in order:
        these = "This photo" if len(photos) == 1 else f"These {len(photos)} photos"
        are, them = ("is", "it") if len(photos) == 1 else ("are", "them")
        yield Advice(f"{these} of {truth} {are} nearer to {label}: check {them}.", photos)


def hurt_by_lessons(history: Sequence[Lesson], learnt: Mapping[str, int]) -> Iterator[Advice]:
    """Classes that a lesson hurt by its estimate, and that were not taught again since."""
    hurt: dict[str, tuple[int, Change]] = {}
    for number, lesson in enumerate(history, start=1):
        hurt = {name: each for name, each in hurt.items() if name not in lesson.images}
        hurt |= {name: (number, each) for name, each in (lesson.old_classes.hurt if lesson.old_classes else {}).items()}
    for name, (number, each) in hurt.items():
        if name in learnt:
            beside = f" together with {each.taken_for}" if each.taken_for else ""
            fall = f"from {each.before:.0f} to {each.after:.0f} % by the estimate"
            yield Advice(f"Lesson {number} hurt {name} ({fall}): teach it again{beside}.")


def look_alikes(evaluation: Evaluation) -> Iterator[Advice]:
    """Pairs of classes of which a good share is taken for the other."""
    between: Counter[tuple[str, str]] = Counter()
    for truth, label, times in evaluation.confusions():
        one, two = sorted((truth, label))
        between[one, two] += times
    asked = {name: total for name, (_, total) in evaluation.by_class().items()}
    for (one, two), times in between.most_common():
        total = asked.get(one, 0) + asked.get(two, 0)
        if times >= FEWEST and times >= ALIKE * total:
            yield Advice(
                f"{one} and {two} look alike: {times} of their {total} photos are taken for the other. Photos of both "
                "that show what tells them apart help most."
            )


def more_photos(evaluation: Evaluation, learnt: Mapping[str, int]) -> Iterator[Advice]:
    """Classes that do worse than the model and were learnt from few photos, or so much worse that chance does not
    explain it."""
    mean = evaluation.accuracy or 0.0
    worst = sorted(evaluation.by_class().items(), key=lambda item: item[1][0] / item[1][1])
    for name, (right, total) in worst:
        worse = 100 * right / total < mean
        if worse and (learnt.get(name, 0) < FEW or wilson_interval(right, total)[1] < mean):
            count = learnt.get(name, 0)
            yield Advice(
                f"{MORE} more photos of {name}: {right} of {total} are named rightly, and it was learnt from {count}."
            )


def unlike_the_learnt(evaluation: Evaluation) -> Iterator[Advice]:
    """Classes of which a good share of the photos is called unknown."""
    asked = {name: total for name, (_, total) in evaluation.by_class().items()}
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, each in enumerate(evaluation.answers):
        if each.unknown and each.truth in asked:
            numbers[each.truth].append(number)
    for name, photos in sorted(numbers.items(), key=lambda item: -len(item[1])):
        if len(photos) >= FEWEST and len(photos) >= UNLIKE * asked[name]:
            yield Advice(
                f"{len(photos)} of {asked[name]} photos of {name} are called unknown: they are unlike those it was "
                "learnt from. Teach it some like them.",
                photos,
            )
