"""Sets of labelled images, decoded once to uint8. They lie one after another; only a batch is put onto a canvas."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lca.data.store import PixelFile


@dataclass(frozen=True, eq=False)
class Pixels:
    """A batch (n, 3, height, width) in uint8. Smaller ones fill the upper left; `sizes` (n, 2) are height and width."""

    canvas: Tensor
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.canvas)

    def batch(self, index: Tensor, pinned: bool = False) -> "Pixels":
        """Some of them, by numbers from 0; if asked so in memory from which a GPU copies while the program goes on."""
        index, sizes = index.to(self.canvas.device), self.sizes[index.to(self.sizes.device)]
        if self.canvas.device.type != "cpu":
            return Pixels(self.canvas[index], sizes)
        canvas = torch.empty(len(index), *self.canvas.shape[1:], dtype=torch.uint8, pin_memory=pinned)
        torch.index_select(self.canvas, 0, index, out=canvas)  # copies whole images, where indexing goes byte by byte
        return Pixels(canvas, sizes)

    def image(self, number: int) -> Tensor:
        """One of them, (3, h, w), without a copy."""
        height, width = self.sizes[number].tolist()
        return self.canvas[number, :, :height, :width]

    def to(self, device: torch.device) -> "Pixels":
        """To a GPU from pinned memory: the program goes on meanwhile."""
        pin = device.type == "cuda" and self.canvas.device.type == "cpu"
        canvas, sizes = (each.pin_memory() if pin else each for each in (self.canvas, self.sizes))
        return Pixels(canvas.to(device, non_blocking=pin), sizes.to(device, non_blocking=pin))

    @classmethod
    def whole(cls, canvas: Tensor) -> "Pixels":
        """Images that fill their canvas."""
        return cls(canvas, torch.tensor(canvas.shape[2:]).repeat(len(canvas), 1))

    @classmethod
    def of(cls, images: Sequence[Tensor], pinned: bool = False) -> "Pixels":
        """Put images (3, h, w) of any sizes onto one canvas."""
        sizes = torch.tensor([image.shape[1:] for image in images]).reshape(-1, 2)
        height, width = (int(size) for size in sizes.amax(0)) if len(images) else (1, 1)
        canvas = torch.zeros(len(images), 3, height, width, dtype=torch.uint8, pin_memory=pinned)
        for place, image in zip(canvas.numpy(), images, strict=True):  # NumPy copies parts of rows much faster
            place[:, : image.shape[1], : image.shape[2]] = image.numpy()
        return cls(canvas, sizes)


@dataclass(frozen=True, eq=False)
class Packed:
    """Images of any sizes, one after another in one row of uint8, which may be a memory map or a file. A batch of them
    gets a canvas of its own largest height and width."""

    row: Tensor | PixelFile
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, index: Tensor, pinned: bool = False) -> Pixels:
        return Pixels.of([self.image(number) for number in index.tolist()], pinned)

    def image(self, number: int) -> Tensor:
        return self.row[self._ends[number] : self._ends[number + 1]].view(3, *self.sizes[number].tolist())

    @cached_property
    def _ends(self) -> list[int]:
        """Where every image ends, after a zero."""
        return [0, *(3 * self.sizes.prod(1)).cumsum(0).tolist()]


Images = Pixels | Packed


def packed(row: Tensor | PixelFile, sizes: Tensor) -> Images:
    """Images that lie one after another in a row. Those of one size are a batch as they lie, unless that is a file."""
    if isinstance(row, Tensor) and len(sizes) and bool((sizes == sizes[0]).all()):
        height, width = sizes[0].tolist()
        return Pixels(row.view(-1, 3, height, width), sizes)
    return Packed(row, sizes)


class ClosedError(RuntimeError):
    """Images were read after their task was over."""


class _Lifetime:
    """Shared by a set of images and all sets made of it."""

    over = False


class ImageSet:
    """Labelled images of named classes. After `close` nothing can be read, nor from the sets made of it: earlier tasks
    stay out of reach. Sets made of a set share its pixels; only reading them copies, a batch at a time if asked so."""

    def __init__(
        self,
        pixels: Images,
        labels: Tensor,
        classes: tuple[str, ...],
        rows: Tensor | None = None,
        within: tuple[_Lifetime, ...] = (),
    ) -> None:
        self._content: tuple[Images, Tensor] | None = (pixels, labels)
        self._rows = rows
        self._lifetimes = (*within, _Lifetime())
        self.classes = classes

    @property
    def pixels(self) -> Pixels:
        """All of them as one batch: much memory for a large set of images of many sizes."""
        pixels = self._open()[0]
        return pixels if isinstance(pixels, Pixels) and self._rows is None else self.batch(torch.arange(len(self)))

    @property
    def sizes(self) -> Tensor:
        """(n, 2): height and width of every image, without reading any."""
        sizes = self._open()[0].sizes
        return sizes if self._rows is None else sizes[self._rows]

    @property
    def streamed(self) -> bool:
        """Whether they lie in a file, too many to have all of them in memory at once."""
        pixels = self._open()[0]
        return isinstance(pixels, Packed) and isinstance(pixels.row, PixelFile)

    @property
    def labels(self) -> Tensor:
        """(n,) positions in `classes`."""
        return self._open()[1]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor, pinned: bool = False) -> Pixels:
        """Some of them, as `Pixels` says; the others are not touched."""
        return self._open()[0].batch(index if self._rows is None else self._rows[index], pinned)

    def image(self, number: int) -> Tensor:
        """One of them, (3, h, w), without a copy unless they lie in a file."""
        return self._open()[0].image(number if self._rows is None else int(self._rows[number]))

    def subset(self, index: Tensor) -> "ImageSet":
        """Those of these numbers, or those that a mask marks."""
        if index.dtype == torch.bool:
            index = torch.nonzero(index)[:, 0]
        return self._made_of(index, self.labels[index], self.classes)

    def of_classes(self, names: Sequence[str]) -> "ImageSet":
        """The images of the named classes, class by class in that order, with labels in that order."""
        position = {name: number for number, name in enumerate(self.classes)}
        rows = [self.rows_of(position[name]) for name in names]
        labels = [torch.full_like(row, number) for number, row in enumerate(rows)]
        return self._made_of(torch.cat(rows), torch.cat(labels), tuple(names))

    def relabelled(self, labels: Tensor, classes: Sequence[str]) -> "ImageSet":
        """The same images with other labels (n,), positions in these classes."""
        return self._made_of(torch.arange(len(self)), labels, tuple(classes))

    def rows_of(self, label: int) -> Tensor:
        """The numbers of the images of one class."""
        return torch.nonzero(self.labels == label)[:, 0]

    def counts(self) -> dict[str, int]:
        """How many images every class has."""
        counts = torch.bincount(self.labels, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, counts, strict=True))

    def fingerprint(self) -> str:
        """Hash of classes, labels, sizes and pixels, image by image."""
        self._open()
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.classes).encode())
        for tensor in itertools.chain((self.labels, self.sizes), map(self.image, range(len(self)))):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def close(self) -> None:
        self._content = None
        self._lifetimes[-1].over = True

    def _made_of(self, index: Tensor, labels: Tensor, classes: tuple[str, ...]) -> "ImageSet":
        rows = index if self._rows is None else self._rows[index]
        return ImageSet(self._open()[0], labels, classes, rows, self._lifetimes)

    def _open(self) -> tuple[Images, Tensor]:
        if self._content is None or any(lifetime.over for lifetime in self._lifetimes):
            raise ClosedError("these images belong to a task that is over; a method may read the current task only")
        return self._content
