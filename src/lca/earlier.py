"""Earlier states: what a model was before each of its last changes, so that these can be taken back.

They are kept by reference. In memory a state names tensors, and in a folder files, most of which are those of the
present state: what a change left alone is there once. How many are kept is up to the caller; what they need beyond the
present state is bounded by `ROOM`, and the oldest go first. Each leads back by one change, so that one without the next
newer one is worth nothing.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lca.files import Part, State, commit, part_file, read_kept, read_parts, write_atomic, write_parts

KEEP = 5
"""How many are kept unless something else is asked for."""
ROOM = 2**30
"""Bytes that they may take beyond the present state, in memory and in a folder each."""


@dataclass
class Earlier:
    """One earlier state: in memory, or in a folder and read when it is wanted."""

    meta: dict[str, Any]
    parts: dict[str, Part] | None = None
    """None for one that lies in a folder only."""
    folder: Path | None = None
    names: dict[str, str] = field(default_factory=dict)
    """Of the files of its parts in that folder."""

    @classmethod
    def of(cls, state: State) -> "Earlier":
        """In memory, and safe from what happens to the dictionaries of the state; no tensor is copied."""
        return cls(copy.deepcopy(state.meta), {name: dict(part) for name, part in state.parts.items()})

    @property
    def changes(self) -> int:
        """How many changes the model had seen by then."""
        return len(self.meta["history"])

    def state(self) -> State:
        if self.parts is not None:
            return State(self.parts, self.meta)
        folder = self.folder or Path()
        return State(read_parts({part: folder / name for part, name in self.names.items()}), self.meta)

    def put(self, folder: Path, there: set[str], room: int) -> int | None:
        """Write into a folder what of it is missing; gives the room that is left beside the files `there`. None for one
        that needs more, or lies in another folder: what was written for it is stale."""
        if self.folder == folder.resolve() and all((folder / name).exists() for name in self.names.values()):
            sizes = {name: (folder / name).stat().st_size for name in self.names.values()}
            room -= sum(size for name, size in sizes.items() if name not in there)
            return room if room >= 0 else None
        if self.parts is None:
            return None
        names = {}
        for part, tensors in self.parts.items():
            names[part], content = part_file(part, tensors)
            room -= 0 if names[part] in there else len(content)
            if room < 0:
                return None
            if not (folder / names[part]).exists():
                write_atomic(folder / names[part], content, private=True)
        self.folder, self.names = folder.resolve(), names
        return room


def leading_back(earlier: Sequence[Earlier], changes: int, keep: int) -> list[Earlier]:
    """Of states, oldest first, the newest that lead back change by change from a model that has seen so many."""
    found: list[Earlier] = []
    for each in reversed(earlier):
        if len(found) == keep or each.changes != changes - 1 - len(found):
            break
        found.insert(0, each)
    return found


def bounded(earlier: Sequence[Earlier], present: State, room: int) -> list[Earlier]:
    """The newest whose tensors in memory take no more than so many bytes beyond those of the present state."""
    there, kept = _memory(present.parts), len(earlier)
    for each in reversed(earlier):
        more = {place: size for place, size in _memory(each.parts or {}).items() if place not in there}
        room -= sum(more.values())
        if room < 0:
            break
        there, kept = there | more, kept - 1
    return list(earlier[kept:])


def _memory(parts: dict[str, Part]) -> dict[int, int]:
    """Bytes by place in memory: tensors that are views of one memory count once."""
    storages = (tensor.untyped_storage() for part in parts.values() for tensor in part.values())
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def save_with(folder: Path, state: State, earlier: Sequence[Earlier], room: int) -> None:
    """Write a state and the earlier ones, oldest first, in one atomic step. Of these the newest that fit into the room;
    such as lie in another folder stay there."""
    names = write_parts(folder, state.parts)
    there, kept = set(names.values()), list[dict[str, Any]]()
    for each in reversed(earlier):
        left = each.put(folder, there, room)
        if left is None:
            break
        room, there = left, there | set(each.names.values())
        kept.insert(0, {"parts": each.names, "meta": each.meta})
    commit(folder, names, state.meta, kept)


def earlier_in(folder: Path) -> list[Earlier]:
    """The earlier states that a folder keeps, oldest first; no tensor is read."""
    place = folder.resolve()
    found = read_kept(folder)
    return [Earlier(meta, None, place, {part: path.name for part, path in files.items()}) for files, meta in found]


def bytes_kept(folder: Path, present: set[str]) -> int:
    """Bytes on disk that the earlier states of a folder take beyond the files `present`."""
    files = {path for parts, _ in read_kept(folder) for path in parts.values() if path.name not in present}
    return sum(path.stat().st_size for path in files)
