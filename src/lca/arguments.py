"""What callers give, checked before anything is done with it: a mistake is one line that says what was expected."""

import math
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any

from lca.errors import LcaError, nearest

LONGEST = 80


def shown(value: object) -> str:
    """A value as a message shows it: what it is, without pages of it."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whatever somebody's class does
        text = "an object"
    return f"{text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'} ({type(value).__name__})"


def expect(what: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    if not isinstance(value, kinds):
        raise LcaError(f"{what} must be {expected}, got {shown(value)}")


def expect_number(what: str, value: Any, low: float, high: float, unit: str = "") -> float:
    """A number from `low` to `high`; `True` is none."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not low <= number <= high:
        raise LcaError(f"{what} must be a number from {low:g} to {high:g}{unit}, got {shown(value)}")
    return number


def expect_one_of(what: str, value: object, known: Iterable[str]) -> None:
    """One of some names; else the nearest is named."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        given = repr(value) if isinstance(value, str) else shown(value)
        hint = f"; {nearest(value, names)}" if isinstance(value, str) else ""
        raise LcaError(f"{what} must be one of {', '.join(names)}, got {given}{hint if hint.endswith('?') else ''}")


def folder_path(what: str, value: object) -> Path:
    """A path that names a folder, which may not exist yet."""
    expect(what, value, (str, Path), "the path of a folder")
    text = str(value)
    if not text.strip() or "\0" in text:
        raise LcaError(f"{what} must be the path of a folder, got {shown(value)}")
    path = Path(text)
    if file := next((each for each in (path, *path.parents) if each.exists() and not each.is_dir()), None):
        raise LcaError(f"{file} is a file; {what} must be a folder")
    return path


def model_folder(value: object) -> Path:
    """The folder of a model that was saved; else what there is instead, or the nearest model beside it."""
    from lca.files import has_state

    path = folder_path("a model", value)
    if has_state(path):
        return path
    inside = sorted(each for each in (path / "models").glob("*") if has_state(each))
    if inside:
        raise LcaError(f"{path} is the folder of a run; its last model is {inside[-1]}")
    if path.exists():
        what = "is no model: it holds no state.json"
    else:
        beside = [each.name for each in path.parent.glob("*") if has_state(each)] if path.parent.is_dir() else []
        hint = nearest(path.name, beside)
        what = f"does not exist; {hint}" if hint.endswith("?") else "does not exist"
    raise LcaError(f"{path} {what}; `lca learn {path} FOLDER` makes one")
