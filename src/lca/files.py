"""Files that survive a crash: safetensors and JSON, written beside, flushed, renamed. Nothing is ever unpickled.

A *state folder* holds one `state.json` and one safetensors file per part. The parts carry their content hash in
their names and `state.json` names them, so replacing that one small file is the commit: a reader sees the old
state or the new one, never a mixture, and a part that did not change is not written again. Earlier states may be kept
in the same way (`earlier`): `state.json` names their parts, too, most of which are those of the present state.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

import torch
from safetensors.torch import load_file, save

from lca.errors import BusyError, LcaError

FORMAT = 1
"""Version of the results and packs we write; another version is refused, not guessed at."""
STATE_FORMAT = 2
"""Version of state folders: models, checkpoints, trunks."""
PROBE = 65536
"""Bytes written to see whether a folder takes any: more than a file system keeps without taking room."""

Part = dict[str, torch.Tensor]
T = TypeVar("T")


def nbytes(part: Mapping[str, torch.Tensor]) -> int:
    """Bytes of all tensors of a part."""
    return sum(tensor.nbytes for tensor in part.values())


@dataclass
class State:
    """Tensors by part and name, and JSON: all there is to know about a model or a step."""

    parts: dict[str, Part] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, things: "Mapping[str, Stored]") -> "State":
        """The state of things by the names of their parts."""
        state = cls()
        for name, thing in things.items():
            state.parts[name], meta = thing.state()
            if meta is not None:
                state.meta[name] = meta
        return state

    def restore(self, things: "Mapping[str, Stored]", device: torch.device) -> None:
        """The inverse of `of`, with the tensors on a device."""
        for name, thing in things.items():
            part = {key: tensor.to(device) for key, tensor in self.parts[name].items()}
            thing.load(part, self.meta.get(name))

    def bytes_by_part(self) -> dict[str, int]:
        """Tensor bytes of every part that has any."""
        sizes = {name: nbytes(part) for name, part in self.parts.items()}
        return {name: size for name, size in sizes.items() if size}


class Stored(ABC):
    """Something a model remembers: one part of its state."""

    combines: ClassVar[bool] = False
    """Whether it is statistics of classes, by which two classes become one as if they had been taught as one."""

    @abstractmethod
    def state(self) -> tuple[Part, Any]:
        """Tensors and JSON, which is None for what is tensors only."""

    @abstractmethod
    def load(self, part: Part, meta: Any = None) -> None:
        """The inverse of `state`."""

    def forget(self, label: int) -> None:
        """Remove a class; the labels above move down by one. What knows no classes stays as it is."""
        return

    def merge(self, label: int, other: int) -> None:
        """Make two classes one: what is known of `other` goes to `label`, and the labels above `other` move down by
        one. What cannot be combined stays as it is for `label`."""
        self.forget(other)

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int | None:
        """Tensor bytes after tasks of equal size and so many classes in all, with so many images each, of features of
        that width; None where that depends on what the images are."""
        return 0


def without(label: int, table: Mapping[int, T]) -> dict[int, T]:
    """A table by label that has forgotten one of them: the labels above move down by one."""
    return {each - (each > label): entry for each, entry in table.items() if each != label}


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash it holds either the old content or the new one."""
    beside = _beside(path)
    try:
        _write_through(beside, content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise LcaError(f"could not write {path}: {error.strerror or error}; what was there is unchanged") from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Readable JSON, written atomically. NaN is refused: it is not JSON and hides a failure."""
    write_atomic(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """As `write_json` writes it."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LcaError(f"there is no file {path}") from None
    except OSError as error:
        raise LcaError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LcaError(f"{path} is not valid JSON ({error}); it was changed or damaged") from error


@contextmanager
def hold(folder: Path, busy: str) -> Iterator[None]:
    """Make the folder if needed and hold it: a second process that tries is told `busy`.

    A folder in which nothing can be written is an error now, not after hours of work.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise LcaError(f"{folder} cannot be used as a folder: {error.strerror}") from error
    with lock:
        try:
            _lock(lock)
        except BlockingIOError:
            raise BusyError(busy) from None
        except OSError as error:  # some network file systems have no locks
            raise LcaError(f"{folder} cannot be locked: {error.strerror}") from error
        _probe(folder)
        yield


def _lock(file: IO[str]) -> None:
    """For this process alone, unless another one holds it; who only looks (`is_held`) is gone in a moment."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # refused, too, if somebody holds it
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.01)


def is_held(folder: Path) -> bool:
    """Whether a process holds the folder now."""
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder beside `path`, then rename it there; if `path` has appeared meanwhile, that one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    beside.mkdir()
    try:
        yield beside
        if not path.exists():
            try:
                beside.rename(path)
            except OSError:
                if not path.exists():
                    raise
        flush(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    write_atomic(path, _serialise(tensors))


def load_tensors(path: Path) -> Part:
    """Tensors of a safetensors file, on the CPU."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise LcaError(f"there is no file {path}") from None
    except Exception as error:  # safetensors raises its own untyped errors for damaged files
        raise LcaError(f"{path} is not a readable safetensors file ({error})") from error


def save_state(folder: Path, state: State) -> None:
    """Write a state into a folder (new or holding an earlier state); see the module's text for the protocol."""
    commit(folder, write_parts(folder, state.parts), state.meta)


def write_parts(folder: Path, parts: Mapping[str, Part]) -> dict[str, str]:
    """Write what is not there yet into a folder that may be new; gives the names of the files by part."""
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = {}
    for part, tensors in parts.items():
        names[part], content = part_file(part, tensors)
        if not (folder / names[part]).exists():
            write_atomic(folder / names[part], content)
    return names


def part_file(part: str, tensors: Part) -> tuple[str, bytes]:
    """Name and content of the file of a part."""
    content = _serialise(tensors)
    readable = re.sub(r"[/\\\0]", "--", part)
    return f"{readable}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors", content


def commit(
    folder: Path, names: Mapping[str, str], meta: Mapping[str, Any], kept: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Make the parts of these names and this JSON the state of a folder. `kept` are earlier states, oldest first, each
    a mapping with `parts` and `meta`."""
    manifest = {"format": STATE_FORMAT, "parts": dict(names), "meta": meta, **({"kept": list(kept)} if kept else {})}
    write_json(folder / "state.json", manifest)
    named = {name for parts in (names, *(each["parts"] for each in kept)) for name in parts.values()}
    for stale in folder.iterdir():  # parts that were replaced, and what a killed write left; nothing of anybody else
        if is_part(stale) and stale.name not in named:
            stale.unlink(missing_ok=True)


def is_part(path: Path) -> bool:
    """Whether a file's name is one that `save_state` gives to parts, or to what it is just writing."""
    return is_part_name(path.name) or bool(re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", path.name))


def is_part_name(name: str) -> bool:
    """Whether this is the name of a part: it ends with a hash and leads to no other folder."""
    return bool(re.fullmatch(r"[^/\\\0]+-[0-9a-f]{16}\.safetensors", name))


def check_part(path: Path, where: object) -> None:
    """A part must be there and have the content its name says; `where` names what it belongs to in the error."""
    try:
        digest = hash_file(path)
    except FileNotFoundError:
        raise LcaError(f"{where} is not whole: there is no file {path.name}") from None
    except OSError as error:
        raise LcaError(f"{where} cannot be read: {path.name}: {error.strerror}") from error
    if not path.name.endswith(f"-{digest[:16]}.safetensors"):
        raise LcaError(f"{where} was changed or damaged: {path.name} does not match the hash in its name")


def has_state(folder: Path) -> bool:
    return (folder / "state.json").is_file()


def read_manifest(folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """The part files and the JSON of a state folder, without reading any tensor."""
    return _checked_entry(folder, _manifest(folder))


def read_kept(folder: Path) -> list[tuple[dict[str, Path], dict[str, Any]]]:
    """The same of the earlier states that are kept in it, oldest first."""
    kept = _manifest(folder).get("kept", [])
    if not isinstance(kept, list):
        raise LcaError(f"{folder / 'state.json'} was changed or damaged: `kept` must be a list")
    return [_checked_entry(folder, each) for each in kept]


def manifest_alone(folder: Path) -> bytes:
    """The content of `state.json` without the states that are kept: what a model is given away with."""
    manifest = _manifest(folder)
    return json_bytes({key: value for key, value in manifest.items() if key != "kept"})


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / "state.json")
    if not isinstance(manifest, dict) or manifest.get("format") != STATE_FORMAT:
        version = manifest.get("format") if isinstance(manifest, dict) else None
        raise LcaError(f"{folder} has format {version}, this version of lca reads format {STATE_FORMAT}")
    return manifest


def _checked_entry(folder: Path, entry: Any) -> tuple[dict[str, Path], dict[str, Any]]:
    """The part files and the JSON of one state that a manifest names."""
    file = folder / "state.json"
    parts, meta = (entry.get("parts"), entry.get("meta")) if isinstance(entry, dict) else (None, None)
    if not isinstance(parts, dict) or not isinstance(meta, dict):
        raise LcaError(f"{file} was changed or damaged: it must map `parts` and `meta`")
    for name in parts.values():
        if not isinstance(name, str) or not is_part_name(name):
            raise LcaError(f"{file} names {name!r}, which is no part of a model; {file} was changed or damaged")
    return {part: folder / name for part, name in parts.items()}, meta


def tensor_bytes(path: Path) -> int:
    """Bytes of the tensors in a safetensors file: all but its header, whose length stands in its first 8 bytes."""
    try:
        with path.open("rb") as file:
            return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise LcaError(f"{path} cannot be read: {error.strerror}") from error


def load_state(folder: Path) -> State:
    """Read what `save_state` wrote; a damaged or foreign folder is an error that names the file.

    Whoever saves a new state removes the parts of the old one. A reader that is overtaken so reads the new state.
    """
    while True:
        before = _stamp(folder / "state.json")
        try:
            files, meta = read_manifest(folder)
            return State(read_parts(files), meta)
        except LcaError:
            if _stamp(folder / "state.json") == before:
                raise


def read_parts(files: Mapping[str, Path]) -> dict[str, Part]:
    """Parts from their files, each of which must have the content its name says."""
    return {part: _read_part(path, path.parent) for part, path in files.items()}


def _read_part(path: Path, folder: Path) -> Part:
    check_part(path, folder)
    return load_tensors(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file is replaced; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(content: Any) -> str:
    """SHA-256 of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _serialise(tensors: Mapping[str, torch.Tensor]) -> bytes:
    plain: Part = {}
    storages: set[int] = set()
    for name, tensor in sorted(tensors.items()):
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if storage in storages else tensor  # safetensors refuses shared memory
        storages.add(storage)
    return save(plain)


def _beside(path: Path) -> Path:
    """A name in the same folder for what is being written; `is_part` knows it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _probe(folder: Path) -> None:
    """Write a small file and remove it: is there room, and may we?"""
    probe = _beside(folder / "probe")
    try:
        try:
            _write_through(probe, bytes(PROBE))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise LcaError(f"nothing can be written in {folder}: {error.strerror or error}") from error


def flush(path: Path) -> None:
    """What was written to a file or a folder is on the disk after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
