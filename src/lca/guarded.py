"""Files in folders that others may have filled: opened without following links, bounded, and kept from other users.

What is opened here is a regular file: no link, whose target may be anything of the user's; no pipe, which waits for
ever; no device, which never ends. What is written as `private` can be read by its owner alone, where the
umask lets that one read.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import IO

from lca.errors import LcaError

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
DEEPEST = 200
"""Folders that are made one in another, at most."""
_CAREFUL = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Nothing waits for the other end of a pipe."""


def descriptor(path: str | Path, flags: int, *, links: bool = False) -> int:
    """An open regular file, never truncated on the way; links are followed only where that is asked for."""
    flags = (flags & ~os.O_TRUNC) | _CAREFUL | (0 if links else os.O_NOFOLLOW)
    try:
        number = os.open(path, flags, PRIVATE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and links are not followed here", str(path)) from None
        if error.errno == errno.ENXIO:  # a pipe or a socket
            raise OSError(errno.EINVAL, "it is no regular file", str(path)) from None
        raise
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
    except BaseException:
        os.close(number)
        raise
    return number


def opened(path: Path, *, links: bool = False) -> BufferedReader:
    """A regular file, to read."""
    return open(path, "rb", opener=lambda name, flags: descriptor(name, flags, links=links))


def content_of(path: Path, limit: int, *, links: bool = False) -> bytes:
    """All of a regular file, which must not be longer than the limit in bytes."""
    with opened(path, links=links) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and more than {limit:,} are not read")
        return file.read(limit)


def lock_file(path: Path) -> IO[bytes]:
    """A file to lock, which is made if it is missing; what is in it stays."""
    return open(path, "rb+", buffering=0, opener=lambda name, flags: descriptor(name, flags | os.O_CREAT))


def new_file(path: Path, *, private: bool) -> IO[bytes]:
    """A file that was not there, to write."""
    mode = PRIVATE if private else 0o666
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode))


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder, and those above it, where it is missing."""
    if len(path.absolute().parts) > DEEPEST:
        raise LcaError(f"{str(path)[:80]}... lies more than {DEEPEST} folders deep; choose a shorter path")
    path.mkdir(PRIVATE_FOLDER if private else 0o777, parents=True, exist_ok=True)


def keep_private(path: Path) -> None:
    """Take from a file or folder of ours what others may do with it."""
    path.chmod(stat.S_IMODE(path.lstat().st_mode) & PRIVATE_FOLDER)
