"""A classifier as a line of text, and as a notebook shows it."""

from collections.abc import Sequence

from lca import html
from lca.history import Lesson, images_learnt

NAMED = 8
LESSONS = 10
"""The last ones that are shown."""


def text_of(classes: Sequence[str], history: Sequence[Lesson], parts: str) -> str:
    """`ContinualClassifier(2 classes: cat, dog; 1 lesson; im, lora, deit_tiny...)`."""
    names = ", ".join(classes[:NAMED]) + ", ..." * (len(classes) > NAMED)
    known = f"{len(classes)} {'class' if len(classes) == 1 else 'classes'}: {names}" if classes else "no class yet"
    lessons = sum(each.kind == "learn" for each in history)
    taught = f"{lessons} {'lesson' if lessons == 1 else 'lessons'}"
    return f"ContinualClassifier({known}; {taught}; {parts})"


def html_of(classes: Sequence[str], history: Sequence[Lesson], parts: str) -> str:
    """Classes with bars of how many images each was learnt from, and the last lessons."""
    images = images_learnt(history)
    most = max(images.values(), default=1)
    counts = [[html.safe(name), html.bar(images.get(name, 0) / most, str(images.get(name, 0)))] for name in classes]
    lessons = [[html.safe(each.when or ""), html.safe(each.summary())] for each in history[-LESSONS:]]
    tables = [html.table(["class", "images learnt"], counts)] * bool(counts)
    tables += [html.table(["when", "lesson"], lessons)] * bool(lessons)
    return html.titled(f"{len(classes)} classes; {parts}", *tables)
