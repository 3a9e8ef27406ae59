"""Sets of labelled images, decoded once to uint8 and kept together on one canvas."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pixels:
    """Images (n, 3, height, width) in uint8. Smaller ones fill the upper left; `sizes` (n, 2) are height and width."""

    canvas: Tensor
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.canvas)

    def __getitem__(self, index: Tensor) -> "Pixels":
        return Pixels(self.canvas[index.to(self.canvas.device)], self.sizes[index.to(self.sizes.device)])

    def to(self, device: torch.device) -> "Pixels":
        return Pixels(self.canvas.to(device), self.sizes.to(device))

    @classmethod
    def of(cls, images: Sequence[Tensor]) -> "Pixels":
        """Put images (3, h, w) of any sizes onto one canvas."""
        sizes = torch.tensor([image.shape[1:] for image in images]).reshape(-1, 2)
        height, width = (int(size) for size in sizes.amax(0)) if len(images) else (1, 1)
        canvas = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
        for place, image in zip(canvas, images, strict=True):
            place[:, : image.shape[1], : image.shape[2]] = image
        return cls(canvas, sizes)


class ClosedError(RuntimeError):
    """Images were read after their task was over."""


class _Lifetime:
    """Shared by a set of images and all sets made of it."""

    over = False


class ImageSet:
    """Labelled images of named classes. After `close` nothing can be read, nor from the sets made of it: earlier tasks
    stay out of reach. Sets made of a set share its pixels; only reading them copies."""

    def __init__(
        self,
        pixels: Pixels,
        labels: Tensor,
        classes: tuple[str, ...],
        rows: Tensor | None = None,
        within: tuple[_Lifetime, ...] = (),
    ) -> None:
        self._content: tuple[Pixels, Tensor] | None = (pixels, labels)
        self._rows = rows
        self._lifetimes = (*within, _Lifetime())
        self.classes = classes

    @property
    def pixels(self) -> Pixels:
        pixels = self._open()[0]
        return pixels if self._rows is None else pixels[self._rows]

    @property
    def sizes(self) -> Tensor:
        """(n, 2): height and width of every image, without reading any."""
        sizes = self._open()[0].sizes
        return sizes if self._rows is None else sizes[self._rows]

    @property
    def labels(self) -> Tensor:
        """(n,) positions in `classes`."""
        return self._open()[1]

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Tensor) -> "ImageSet":
        return self._made_of(index, self.labels[index], self.classes)

    def of_classes(self, names: Sequence[str]) -> "ImageSet":
        """The images of the named classes, class by class in that order, with labels in that order."""
        position = {name: number for number, name in enumerate(self.classes)}
        rows = [torch.nonzero(self.labels == position[name])[:, 0] for name in names]
        labels = [torch.full_like(row, number) for number, row in enumerate(rows)]
        return self._made_of(torch.cat(rows), torch.cat(labels), tuple(names))

    def fingerprint(self) -> str:
        """Hash of classes, labels and pixels."""
        pixels, digest = self.pixels, hashlib.sha256(repr(self.classes).encode())
        for tensor in (self.labels, pixels.sizes, pixels.canvas):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def close(self) -> None:
        self._content = None
        self._lifetimes[-1].over = True

    def _made_of(self, index: Tensor, labels: Tensor, classes: tuple[str, ...]) -> "ImageSet":
        rows = index if self._rows is None else self._rows[index]
        return ImageSet(self._open()[0], labels, classes, rows, self._lifetimes)

    def _open(self) -> tuple[Pixels, Tensor]:
        if self._content is None or any(lifetime.over for lifetime in self._lifetimes):
            raise ClosedError("these images belong to a task that is over; a method may read the current task only")
        return self._content
