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
from safetensors.torch import load, save

from lca.errors import BusyError, LcaError
from lca.guarded import content_of, lock_file, make_folder, new_file, opened

FORMAT = 1
"""Version of the results and packs we write; another version is refused, not guessed at."""
STATE_FORMAT, UNHASHED_FORMAT = 3, 2
"""Versions of state folders: models, checkpoints, trunks. The second, without a hash of the JSON, is read as well."""
MANIFEST_LIMIT, PART_LIMIT, MOST_PARTS = 16 * 2**20, 8 * 2**30, 10_000
"""Bytes of a `state.json`, bytes of a part, and parts of a state: more is not read."""
JSON_LIMIT = 2**30
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


def whole(value: Any, lowest: int) -> int:
    """A count that was read from JSON."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < 2**53:
        raise LcaError(f"expected a whole number of at least {lowest}, got {str(value)[:40]!r}")
    return value


def write_atomic(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file as a whole: after a crash it holds either the old content or the new one."""
    beside = _beside(path)
    try:
        _write_through(beside, content, private)
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


def read_json(path: Path, limit: int = JSON_LIMIT, *, links: bool = True) -> Any:
    """NaN is refused, as `write_json` does."""
    try:
        return json.loads(content_of(path, limit, links=links).decode("utf-8"), parse_constant=_no_constant)
    except FileNotFoundError:
        raise LcaError(f"there is no file {path}") from None
    except OSError as error:
        raise LcaError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LcaError(f"{path} is not valid JSON ({error}); it was changed or damaged") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


@contextmanager
def hold(folder: Path, busy: str, *, private: bool = False) -> Iterator[None]:
    """Make the folder if needed and hold it: a second process that tries is told `busy`.

    A folder in which nothing can be written is an error now, not after hours of work.
    """
    try:
        make_folder(folder, private=private)
    except OSError as error:
        raise LcaError(f"{folder} cannot be used as a folder: {error.strerror}") from error
    try:
        lock = lock_file(folder / ".lock")
    except OSError as error:
        raise LcaError(f"{folder} cannot be used as a folder: {folder / '.lock'}: {error.strerror}") from error
    with lock:
        try:
            _lock(lock)
        except BlockingIOError:
            raise BusyError(busy) from None
        except OSError as error:  # some network file systems have no locks
            raise LcaError(f"{folder} cannot be locked: {error.strerror}") from error
        _probe(folder)
        yield


def _lock(file: IO[bytes]) -> None:
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
        with opened(folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    except OSError as error:
        raise LcaError(f"{folder / '.lock'} cannot be looked at: {error.strerror}; remove it") from error
    return False


@contextmanager
def new_folder(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Fill a folder beside `path`, then rename it there; if `path` has appeared meanwhile, that one stays."""
    make_folder(path.parent, private=private)
    beside = _beside(path)
    make_folder(beside, private=private)
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
    """Tensors of a safetensors file, on the CPU, in memory of their own: what becomes of the file changes nothing."""
    try:
        return _deserialise(path, content_of(path, PART_LIMIT, links=True))
    except FileNotFoundError:
        raise LcaError(f"there is no file {path}") from None
    except OSError as error:
        raise LcaError(f"{path} is not a readable safetensors file ({error.strerror})") from error


def _deserialise(path: Path, content: bytes) -> Part:
    try:
        return load(content)
    except Exception as error:  # safetensors raises its own untyped errors for damaged files
        raise LcaError(f"{path} is not a readable safetensors file ({error})") from error


def save_state(folder: Path, state: State) -> None:
    """Write a state into a folder (new or holding an earlier state); see the module's text for the protocol."""
    commit(folder, write_parts(folder, state.parts), state.meta)


def write_parts(folder: Path, parts: Mapping[str, Part]) -> dict[str, str]:
    """Write what is not there yet into a folder that may be new; gives the names of the files by part."""
    make_folder(folder, private=True)
    names: dict[str, str] = {}
    for part, tensors in parts.items():
        names[part], content = part_file(part, tensors)
        if not (folder / names[part]).exists():
            write_atomic(folder / names[part], content, private=True)
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
    manifest = json_bytes(sealed({"parts": dict(names), "meta": meta, **({"kept": list(kept)} if kept else {})}))
    if len(manifest) > MANIFEST_LIMIT or len(names) > MOST_PARTS:
        raise LcaError(
            f"{folder} was not changed: its state.json would have {len(manifest):,} bytes and name {len(names):,} "
            f"parts; at most {MANIFEST_LIMIT:,} and {MOST_PARTS:,} can be read again"
        )
    write_atomic(folder / "state.json", manifest, private=True)
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
    with _part_errors(path, where):
        digest = hash_file(path, links=False)
    _check_digest(path, digest, where)


@contextmanager
def _part_errors(path: Path, where: object) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise LcaError(f"{where} is not whole: there is no file {path.name}") from None
    except OSError as error:
        raise LcaError(f"{where} cannot be read: {path.name}: {error.strerror}") from error


def _check_digest(path: Path, digest: str, where: object) -> None:
    if not path.name.endswith(f"-{digest[:16]}.safetensors"):
        raise LcaError(f"{where} was changed or damaged: {path.name} does not match the hash in its name")


def has_state(folder: Path) -> bool:
    return (folder / "state.json").is_file()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a state's JSON says as it is written: with the format, and with a hash over all of it."""
    return {"format": STATE_FORMAT, "sha256": _seal(content), **content}


def _seal(content: Mapping[str, Any]) -> str:
    return hash_json(json.loads(json.dumps(content)))  # as it will be when it is read


def read_manifest(folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """The part files and the JSON of a state folder, checked against its hash, without reading any tensor."""
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
    return json_bytes(sealed({key: manifest[key] for key in ("parts", "meta")}))


def _manifest(folder: Path) -> dict[str, Any]:
    """What a state folder's JSON says, but for its format and its hash, which it must match."""
    file = folder / "state.json"
    manifest = read_json(file, MANIFEST_LIMIT, links=False)
    version = manifest.pop("format", None) if isinstance(manifest, dict) else None
    if version not in (STATE_FORMAT, UNHASHED_FORMAT):
        raise LcaError(f"{folder} has format {str(version)[:40]}, this version of lca reads format {STATE_FORMAT}")
    hashed = version == STATE_FORMAT or "sha256" in manifest
    digest = manifest.pop("sha256", None)
    if hashed and digest != _seal(manifest):
        raise LcaError(f"{file} was changed or damaged: it does not match the hash in it")
    return dict(manifest)


def _checked_entry(folder: Path, entry: Any) -> tuple[dict[str, Path], dict[str, Any]]:
    """The part files and the JSON of one state that a manifest names."""
    file = folder / "state.json"
    parts, meta = (entry.get("parts"), entry.get("meta")) if isinstance(entry, dict) else (None, None)
    if not isinstance(parts, dict) or not isinstance(meta, dict):
        raise LcaError(f"{file} was changed or damaged: it must map `parts` and `meta`")
    if len(parts) > MOST_PARTS:
        raise LcaError(f"{file} names {len(parts):,} parts; at most {MOST_PARTS:,} are read")
    for name in parts.values():
        if not isinstance(name, str) or not is_part_name(name):
            raise LcaError(f"{file} names {name!r}, which is no part of a model; {file} was changed or damaged")
    return {part: folder / name for part, name in parts.items()}, meta


def tensor_bytes(path: Path) -> int:
    """Bytes of the tensors in a safetensors file: all but its header, whose length stands in its first 8 bytes."""
    try:
        with opened(path) as file:
            return os.fstat(file.fileno()).st_size - 8 - int.from_bytes(file.read(8), "little")
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
    """What is hashed is what is used: the file is read once."""
    with _part_errors(path, folder):
        content = content_of(path, PART_LIMIT)
    _check_digest(path, hashlib.sha256(content).hexdigest(), folder)
    return _deserialise(path, content)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file is replaced; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def hash_file(path: Path, *, links: bool = True) -> str:
    """SHA-256 of a regular file's content."""
    with opened(path, links=links) as file:
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


def _write_through(path: Path, content: bytes, private: bool = True) -> None:
    with new_file(path, private=private) as file:
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
