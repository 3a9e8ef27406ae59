"""Turns: threads may read a classifier while one of them changes it.

Readers take turns. A change works in place, at its full speed, and as long as it lasts the others read a stand-in: a
classifier in the state from before, which is made when the first of them asks and is gone when the change is whole. Who
does not read meanwhile pays nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from threading import Lock, RLock, get_ident
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

Model = TypeVar("Model")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Turns(Generic[Model]):
    """Who may read a model, and which one."""

    def __init__(self) -> None:
        self._reading, self._changes = RLock(), RLock()
        self._changer: int | None = None
        self._make: Callable[[], Model] | None = None
        self._stand_in: Model | None = None

    @contextmanager
    def reading(self, model: Model) -> Iterator[Model]:
        """The model to read: it does not change within. To the thread that changes it, it is the model itself."""
        if self._changer == get_ident():
            yield model
            return
        with self._reading:
            if self._make is not None and self._stand_in is None:
                self._stand_in = self._make()
            yield model if self._stand_in is None else self._stand_in

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One change at a time; another thread's waits."""
        with self._changes:
            yield

    @contextmanager
    def changing(self, make: Callable[[], Model]) -> Iterator[None]:
        """Readers of other threads get what `make` gives, until this ends; those within have done before it begins. A
        change within another is a part of that."""
        if self._changer == get_ident():
            yield
            return
        with self._reading:
            self._changer, self._make = get_ident(), make
        try:
            yield
        finally:
            with self._reading:
                self._changer = self._make = self._stand_in = None

    def __reduce__(self) -> tuple[type["Turns[Model]"], tuple[()]]:
        """A copy of a model has its own."""
        return Turns, ()


class HasTurns(Protocol):
    @property
    def turns(self) -> Turns[Any]: ...


Reader = TypeVar("Reader", bound=HasTurns)


def whole(
    method: Callable[Concatenate[Reader, Arguments], Result],
) -> Callable[Concatenate[Reader, Arguments], Result]:
    """A method that reads: of a model in one state from its beginning to its end, whatever other threads do."""

    @wraps(method)
    def read(self: Reader, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with self.turns.reading(self) as model:
            return method(model, *arguments, **named)

    return cast(Callable[Concatenate[Reader, Arguments], Result], read)


class Together:
    """A context that belongs to the whole process, such as its warning filters, for several threads at once: the first
    one enters it, and the last one leaves it."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._count = make, Lock(), 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self._lock:
            if not self._count:
                self._context = self._make()
                self._context.__enter__()
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._context.__exit__(None, None, None)
