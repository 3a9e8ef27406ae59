"""Decoded pixels of a lesson: in memory while they are few, in a private temporary file where they are many.

The file has no name from the moment it is opened (or lost it at once, where the system cannot do without), only this
process can read it, and it is gone when the process ends, however that happens. It is read by `pread`, not mapped:
pages of a map count as memory of the process, and there may be tens of gigabytes of them.
"""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lca.errors import LcaError

IN_MEMORY = 512 * 2**20
"""Bytes of pixels up to which a lesson stays in memory: 2,700 photos as a backbone of 224 pixels takes them."""
_SPARE = 2**28
"""Bytes of a disk that a lesson leaves free for everybody else."""


class PixelFile:
    """Bytes in a file without a name; a slice of it is a tensor of its own."""

    def __init__(self) -> None:
        self._folder = temporary_folder()
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, prefix="lca-")  # noqa: SIM115  # it lives as long as this
        except OSError as error:
            raise LcaError(
                f"this lesson needs a temporary file, and none can be made in {self._folder} ({error.strerror}); name "
                "another folder with TMPDIR"
            ) from error
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice) -> Tensor:
        start, stop, _ = part.indices(self._length)
        pixels = np.empty(stop - start, np.uint8)
        view, place = memoryview(pixels.data), start
        while view:  # one call reads at most 2 GB
            count = os.preadv(self._file.fileno(), [view], place)
            if not count:
                raise OSError(errno.EIO, "the temporary file with the pixels of this lesson was cut short")
            view, place = view[count:], place + count
        return torch.from_numpy(pixels)

    def append(self, content: memoryview | bytearray) -> None:
        """Put bytes behind the others."""
        try:
            self._file.write(content)
            self._file.flush()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise self._full(f"the disk of {self._folder} is full after {self._length / 1e9:.3g} GB") from error
        self._length += len(content)

    def expect(self, more: float) -> None:
        """Refuse early what the disk cannot hold."""
        free = shutil.disk_usage(self._folder).free
        if more > free - _SPARE:
            raise self._full(
                f"about {more / 1e9:.3g} GB are needed in {self._folder}, and {free / 1e9:.3g} GB are free"
            )

    @staticmethod
    def _full(reason: str) -> LcaError:
        return LcaError(
            f"the decoded photos of this lesson do not fit on the disk: {reason}. Make room, name a folder on another "
            "disk with TMPDIR, or teach the photos in parts"
        )


class PixelRow:
    """Pixels of images, one after another, as they come in."""

    def __init__(self, images: int, in_memory: float) -> None:
        """`images` are expected; from so many bytes on the pixels go into a file."""
        self._expected, self._in_memory = images, in_memory
        self._images = 0
        self._memory = bytearray()
        self._file: PixelFile | None = None

    def append(self, pixels: Tensor) -> None:
        self._images += 1
        content = pixels.numpy().reshape(-1).data
        if self._file is not None:
            self._file.append(content)
            return
        self._memory += content
        if len(self._memory) > self._in_memory:
            self._file = PixelFile()
            self._file.expect(len(self._memory) / self._images * self._expected)
            self._file.append(self._memory)
            self._memory = bytearray()

    def finished(self) -> Tensor | PixelFile:
        """All of them in a row."""
        return torch.from_numpy(np.frombuffer(self._memory, np.uint8)) if self._file is None else self._file


def temporary_folder() -> Path:
    """Where large temporary files go: `TMPDIR`, else /var/tmp, which is on a disk where /tmp may be memory."""
    if not os.environ.get("TMPDIR") and os.access("/var/tmp", os.W_OK):
        return Path("/var/tmp")
    return Path(tempfile.gettempdir())
