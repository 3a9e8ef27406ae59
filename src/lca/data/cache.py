"""Decoded images on disk: a set that was decoded once is read from there as a memory map.

An entry is a folder named by a hash of the files' content, their names and the working size, so a changed file is
another entry. It is written beside and renamed, which makes it whole or absent. The least recently used entries go when
all of them together are larger than the limit.
"""

import contextlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lca.data.images import ImageSet, Pixels
from lca.errors import LcaError
from lca.progress import Progress

FEWEST = 500
"""Sets with fewer images are decoded every time: that is quick."""
LIMIT = 20e9
"""Bytes of all entries together, where `LCA_CACHE_GB` says nothing."""
_FORMAT = 1
_ENTRY, _UNFINISHED = re.compile(r"[0-9a-f]{40}"), re.compile(r"\.[0-9a-f]{40}\.[0-9a-f]{32}")
"""Names of what is ours in the folder; nothing else is ever touched."""
_ABANDONED = 86400.0
"""Seconds after which an entry that was never finished is nobody's any more."""


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
    try:
        return LIMIT if text is None else float(text) * 1e9
    except ValueError:
        raise LcaError(f"LCA_CACHE_GB must be a number of gigabytes, came {text!r}") from None


def key(files: Mapping[str, Sequence[Path]], working_size: int) -> str:
    """A hash of the content and the names of all files, class by class."""
    digest = blake2b(f"{_FORMAT}/{working_size}".encode(), digest_size=20)
    for name, paths in files.items():
        digest.update(f"/{name}/{len(paths)}/".encode())
        for path in paths:
            content = path.read_bytes()
            digest.update(f"{path.name}/{len(content)}/".encode())
            digest.update(content)
    return digest.hexdigest()


def load(name: str) -> ImageSet | None:
    """The set of that key, if it is there; one that is not whole is thrown away."""
    path = folder() / name
    if not path.is_dir():
        return None
    try:
        about = json.loads((path / "about.json").read_text(encoding="utf-8"))
        canvas = np.load(path / "canvas.npy", mmap_mode="c")  # private: what is written stays in this process
        sizes, labels = np.load(path / "sizes.npy"), np.load(path / "labels.npy")
        classes = tuple(about["classes"])
        if not (about["format"] == _FORMAT and len(canvas) == len(sizes) == len(labels) == about["images"]):
            raise ValueError("the parts do not belong together")
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        shutil.rmtree(path, ignore_errors=True)  # what is left of one would be in the way of the next
        return None
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a cache that others own
        os.utime(path / "about.json")
    return ImageSet(Pixels(torch.from_numpy(canvas), _tensor(sizes)), _tensor(labels), classes)


def save(name: str, images: ImageSet, progress: Progress) -> None:
    """Keep a set. A disk that is full or cannot be written to costs a warning, not the run."""
    pixels, size = images.pixels, images.pixels.canvas.nbytes
    if len(images) < FEWEST or size > limit():
        return
    home = folder()
    beside = home / f".{name}.{uuid.uuid4().hex}"
    try:
        _make_room(size)
        beside.mkdir(parents=True)
        np.save(beside / "canvas.npy", pixels.canvas.numpy())
        np.save(beside / "sizes.npy", pixels.sizes.numpy())
        np.save(beside / "labels.npy", images.labels.numpy())
        about = {"format": _FORMAT, "images": len(images), "classes": list(images.classes)}
        (beside / "about.json").write_text(json.dumps(about), encoding="utf-8")
        os.rename(beside, home / name)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not (home / name).exists():  # else another process was faster
            progress.warning(f"decoded images could not be kept in {home} ({error.strerror or error})")


def entries() -> list[Entry]:
    """All entries, the least recently used first."""
    found = []
    for about in (each / "about.json" for each in _ours(_ENTRY)):
        try:
            images = json.loads(about.read_text(encoding="utf-8"))["images"]
            size = sum(each.stat().st_size for each in about.parent.iterdir())
            found.append(Entry(about.parent, images, size, about.stat().st_mtime))
        except (OSError, ValueError, KeyError):
            continue
    return sorted(found, key=lambda entry: entry.used)


def clear() -> int:
    """Remove everything, also what was left half-written; returns the bytes that are free now."""
    paths = [*_ours(_ENTRY), *_ours(_UNFINISHED)]
    size = sum(file.stat().st_size for path in paths for file in path.iterdir())
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return size


def _ours(name: re.Pattern[str]) -> list[Path]:
    """What lies in the folder under such a name."""
    home = folder()
    found = sorted(home.iterdir()) if home.is_dir() else []
    return [path for path in found if name.fullmatch(path.name) and path.is_dir()]


def _make_room(size: int) -> None:
    """Remove the least recently used entries until one of this size fits, and what writers that were killed left."""
    for path in _ours(_UNFINISHED):
        if time.time() - path.stat().st_mtime > _ABANDONED:
            shutil.rmtree(path, ignore_errors=True)
    there = entries()
    total = sum(entry.bytes for entry in there)
    for entry in there:
        if total + size <= limit():
            return
        shutil.rmtree(entry.path, ignore_errors=True)
        total -= entry.bytes


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
