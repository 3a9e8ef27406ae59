"""Decoded images on disk: a set that was decoded once is read from there as a memory map.

An entry is a folder named by a hash of the files' content, their names and the working size, so a changed file is
another entry. Which content files have is remembered by a stamp of their places, sizes and times (a file's time of
change cannot be set back): as long as that fits, they are not read again to know it. Files that could not be read are
part of an entry and tried again whenever it is used.

An entry is written beside, flushed and renamed, which makes it whole or absent, and some of its images are held against
their digests whenever it is used. The least recently used entries go when all of
them together are larger than the limit, but none that this process reads: the training and the test images of a run do
not drive each other out.
"""

import contextlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from lca.data.decoding import LeftOut, Reading, digest_of
from lca.data.decoding_limits import MEGAPIXELS, most_pixels
from lca.data.images import Images, packed
from lca.errors import LcaError
from lca.files import flush, hash_json, new_folder, read_json, write_json
from lca.guarded import keep_private, make_folder
from lca.progress import Progress

FEWEST = 500
"""Sets with fewer images are decoded every time: that is quick."""
LIMIT = 20e9
"""Bytes of all entries together, where `LCA_CACHE_GB` says nothing."""
_FORMAT = 3
_ENTRY, _UNFINISHED = re.compile(r"[0-9a-f]{40}"), re.compile(r"\.[0-9a-f]{40}\.[0-9a-f]{8,32}(\.tmp)?")
"""Names of what is ours in the folder; nothing else is ever touched."""
_ABANDONED = 86400.0
"""Seconds after which an entry that was never finished is nobody's any more."""
_SAMPLED = 50
"""Images of an entry that are held against their digests whenever it is used."""
_FACTS, _FACTS_KEPT = "facts.json", 300
_in_use: WeakValueDictionary[str, Images] = WeakValueDictionary()
"""Entries whose memory maps this process holds: to remove them would free nothing."""


@dataclass(frozen=True)
class Entry:
    """One set of decoded images."""

    path: Path
    images: int
    bytes: int
    used: float
    """When it was used last, in seconds since 1970."""


def folder() -> Path:
    """Where entries lie: `LCA_CACHE`, or `lca` in the user's cache folder."""
    named = os.environ.get("LCA_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lca" / "images"


def limit() -> float:
    """How many bytes all entries may have."""
    text = os.environ.get("LCA_CACHE_GB")
    if text is None:
        return LIMIT
    with contextlib.suppress(ValueError):
        if (gigabytes := float(text)) >= 0:
            return gigabytes * 1e9
    raise LcaError(f"LCA_CACHE_GB must be a number of gigabytes, 0 or more, got {text!r}")


def key(files: Mapping[str, Sequence[Path]], working_size: int, progress: Progress) -> str:
    """A hash of the content and the names of all files, class by class; a file that cannot be read has no content."""
    digest = blake2b(f"{_FORMAT}/{working_size}{_other_limit()}".encode(), digest_size=20)
    with progress.task("looking for changed images", sum(map(len, files.values()))) as advance:
        for name, paths in files.items():
            digest.update(f"/{name}/{len(paths)}/".encode())
            for path in paths:
                try:
                    content = path.read_bytes()
                    digest.update(f"{path.name}/{len(content)}/".encode() + content)
                except OSError:
                    digest.update(f"{path.name}/-/".encode())
                advance(1)
    return digest.hexdigest()


def stamp_of(files: Mapping[str, Sequence[Path]], working_size: int) -> str:
    """A hash of the places, sizes and times of all files."""
    versions = [[name, [[str(path), *_version(path)] for path in paths]] for name, paths in files.items()]
    return hash_json([_FORMAT, f"{working_size}{_other_limit()}", versions])


def _other_limit() -> str:
    """Of pixels, where it is not the usual one: it says which images are left out."""
    return "" if most_pixels() == MEGAPIXELS * 1e6 else f"/{most_pixels():g}"


def holds(name: Any) -> bool:
    """Whether this is the key of an entry that is there."""
    return isinstance(name, str) and bool(_ENTRY.fullmatch(name)) and (folder() / name).is_dir()


def load(name: str) -> Reading | None:
    """The entry of that key, if it is there. One that is not whole is thrown away."""
    path = folder() / name
    if not path.is_dir():
        return None
    try:
        about = json.loads((path / "about.json").read_text(encoding="utf-8"))
        sizes = torch.from_numpy(np.load(path / "sizes.npy"))
        digests, several_frames = np.load(path / "digests.npy"), np.load(path / "several_frames.npy")
        # private: what is written stays in this process
        row = torch.from_numpy(np.memmap(path / "pixels", np.uint8, "c")) if len(sizes) else torch.empty(0)
        left_out = {int(place): LeftOut(*each) for place, each in about["left_out"].items()}
        counts = {len(sizes), len(digests), len(several_frames), about["images"]}
        if about["format"] != _FORMAT or len(counts) > 1 or len(row) != _bytes(sizes):
            raise ValueError("the parts do not belong together")
        pixels = packed(row, sizes)
        for number in np.linspace(0, len(sizes) - 1, min(len(sizes), _SAMPLED), dtype=int).tolist():
            if digest_of(pixels.image(number)) != digests[number].tobytes():
                raise ValueError("these are not the pixels that were written")
    except (FileNotFoundError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        remove(name)  # what is left of one would be in the way of the next
        return None
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a cache that others own
        os.utime(path / "about.json")
    _in_use[name] = pixels
    return Reading(pixels, digests, several_frames, left_out)


def save(name: str, reading: Reading, progress: Progress) -> None:
    """Keep what was read. A disk that is full or cannot be written to costs a warning, not the run."""
    if not limit():
        return
    home, size = folder(), _bytes(reading.pixels.sizes)
    try:
        if needed := _make_room(size):
            progress.line(
                f"{len(reading.pixels)} decoded images ({size / 1e9:.3g} GB) do not fit into the cache of "
                f"{limit() / 1e9:g} GB and will be decoded in every run; LCA_CACHE_GB={needed} would keep them"
            )
            return
        with new_folder(home / name, private=True) as beside:
            with (beside / "pixels").open("wb") as file:
                for number in range(len(reading.pixels)):
                    file.write(reading.pixels.image(number).contiguous().numpy().data)
            np.save(beside / "sizes.npy", reading.pixels.sizes.numpy())
            np.save(beside / "digests.npy", reading.digests)
            np.save(beside / "several_frames.npy", reading.several_frames)
            left_out = {str(place): [each.what, each.reason] for place, each in reading.left_out.items()}
            about = {"format": _FORMAT, "images": len(reading.pixels), "left_out": left_out}
            (beside / "about.json").write_text(json.dumps(about), encoding="utf-8")
            for part in (*beside.iterdir(), beside):
                keep_private(part)
                flush(part)
    except OSError as error:
        if not (home / name).exists():  # else another process was faster
            progress.warning(
                f"decoded images could not be kept in {home} ({error.strerror or error}) and will be decoded in every "
                "run; make room, or name another folder with LCA_CACHE"
            )


def remove(name: str) -> None:
    """Remove an entry."""
    shutil.rmtree(folder() / name, ignore_errors=True)


def remembered(what: str, find: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
    """Something that takes a while to find, from the last time if that fits; the latest ones are kept."""
    path = folder() / _FACTS
    facts = json_in(path)
    if not fits(facts.get(what)):
        facts = dict([*facts.items(), (what, find())][-_FACTS_KEPT:])
        with contextlib.suppress(OSError, LcaError):
            make_folder(path.parent, private=True)
            write_json(path, facts)
            keep_private(path)
    return facts[what]


def entries() -> list[Entry]:
    """All entries, the least recently used first."""
    whole = []
    for path in _ours(_ENTRY):
        about = path / "about.json"
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            whole.append(Entry(path, int(json_in(about)["images"]), _size([path]), about.stat().st_mtime))
    return sorted(whole, key=lambda entry: entry.used)


def unfinished() -> int:
    """Bytes of what is being written now, or was when a process was killed."""
    return _size(_ours(_UNFINISHED))


def clear() -> int:
    """Remove everything, also what was left half-written; returns the bytes that are free now."""
    paths = [*_ours(_ENTRY), *_ours(_UNFINISHED)]
    size = _size(paths)
    for path in paths:
        remove(path.name)
    (folder() / _FACTS).unlink(missing_ok=True)
    return size


def _ours(name: re.Pattern[str]) -> list[Path]:
    """What lies in the folder under such a name."""
    paths = sorted(folder().iterdir()) if folder().is_dir() else []
    return [path for path in paths if name.fullmatch(path.name) and path.is_dir()]


def _make_room(size: int) -> float:
    """Remove the least recently used entries until one of this size fits, and what writers that were killed left. If
    it cannot fit, nothing is removed, and the limit that it needs is returned, in gigabytes."""
    for path in _ours(_UNFINISHED):
        if time.time() - path.stat().st_mtime > _ABANDONED:
            remove(path.name)
    there = entries()
    others = [entry for entry in there if entry.path.name not in _in_use]
    total = size + sum(entry.bytes for entry in there)
    least = total - sum(entry.bytes for entry in others)
    if least > limit():
        return math.ceil(least / 1e7 + 1) / 100
    for entry in others:
        if total <= limit():
            break
        remove(entry.path.name)
        total -= entry.bytes
    return 0.0


def _size(folders: Sequence[Path]) -> int:
    return sum(file.stat().st_size for path in folders for file in path.iterdir())


def _bytes(sizes: Tensor) -> int:
    return 3 * int(sizes.prod(1).sum())


def _version(path: Path) -> tuple[int, ...]:
    """Size and times of a file; nothing of one that cannot be looked at, which will be left out."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def json_in(path: Path) -> dict[str, Any]:
    """The content of a JSON file; nothing if it cannot be read."""
    with contextlib.suppress(LcaError):
        if isinstance(content := read_json(path), dict):
            return content
    return {}
