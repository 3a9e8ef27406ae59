"""The errors a user can cause and mend. The command line prints them without a traceback."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class LcaError(Exception):
    """Something the user can put right; the message says what was given, what was expected and what to do."""


class BusyError(LcaError):
    """Another process is at work there."""


class InvalidOptionsError(LcaError, ValueError):
    """Options that are none: a wrong key or value."""


class MissingPackageError(LcaError):
    """A package that only some features need is not installed."""


@contextmanager
def needs(what: str, *packages: str) -> Iterator[None]:
    """Around an import that only some features need. The message installs the packages by their own names."""
    try:
        yield
    except ImportError as error:
        names = " ".join(packages)
        raise MissingPackageError(f"{what} needs more than is installed here ({error}): pip install {names}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the nearest known ones, else all of them."""
    names = sorted(known)
    close = get_close_matches(str(name), names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(each) for each in close) + "?"
    return "known: " + ", ".join(names) if names else "there are none"
