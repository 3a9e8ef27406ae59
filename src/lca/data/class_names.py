"""The names of classes, as a person gives them to say which class is meant or what it is to be called."""

from collections.abc import Iterable, Sequence

from lca.data.folders import class_name
from lca.errors import LcaError, nearest


def expect_known(names: Iterable[str], classes: Sequence[str], what: str) -> None:
    """Each must be one of the classes; `what` is to be done with it."""
    for name in names:
        if name not in classes:
            raise LcaError(f"there is no class {name!r} to {what}; {nearest(name, classes)}")


def expect_new(name: str, classes: Sequence[str]) -> str:
    """A name that is not taken, as it is kept."""
    name = class_name(name)
    if not name.strip():
        raise LcaError(f"a class cannot be called {name!r}; give it a name that can be read")
    if name in classes:
        raise LcaError(f"there is a class {name!r} already; to make two classes one, merge them")
    return name
