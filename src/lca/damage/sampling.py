"""Reading images at positions between their pixels, and what lies beyond their borders."""

import torch
from torch import Tensor


def fold(index: Tensor, length: int, border: str) -> Tensor:
    """Which pixel stands for a place outside: the nearest, mirrored about the edge pixel, or with the edge repeated."""
    if border == "nearest":
        return index.clamp(0, length - 1)
    if border == "mirror":  # … 2 1 | 0 1 2 …
        index = index.abs() % max(2 * (length - 1), 1)
        return torch.minimum(index, (2 * (length - 1) - index).abs())
    if border == "symmetric":  # … 1 0 | 0 1 2 …
        index = index % (2 * length)
        return torch.minimum(index, 2 * length - 1 - index)
    raise ValueError(f"unknown border {border!r}; expected nearest, mirror or symmetric")


def bilinear(images: Tensor, y: Tensor, x: Tensor, border: str) -> Tensor:
    """Images (n, c, h, w) at positions y and x (n or 1, h′, w′) in pixels, 0 being the centre of the first.

    With border "black" the pixels outside are 0 and blend with those inside.
    """
    height, width = images.shape[-2:]
    top, left = y.floor(), x.floor()
    low, near = y - top, x - left
    result = torch.zeros(*images.shape[:2], *y.shape[1:], dtype=images.dtype, device=images.device)
    for down in (0, 1):
        for right in (0, 1):
            rows, columns = top.long() + down, left.long() + right
            weight = (low if down else 1 - low) * (near if right else 1 - near)
            if border == "black":
                inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
                weight = weight * inside
            kind = "nearest" if border == "black" else border
            index = fold(rows, height, kind) * width + fold(columns, width, kind)
            result += weight[:, None] * pick(images, index)
    return result


def pick(images: Tensor, index: Tensor) -> Tensor:
    """The pixels (n, c, h′, w′) of images (n, c, h, w) at flat places (n or 1, h′, w′)."""
    count, channels = images.shape[:2]
    places = index.expand(count, *index.shape[1:]).flatten(1)[:, None].expand(-1, channels, -1)
    return images.flatten(2).gather(2, places).view(count, channels, *index.shape[1:])


def pixel_grid(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of every pixel, (1, h, w) each, in float64."""
    rows = torch.arange(height, device=device, dtype=torch.float64)
    columns = torch.arange(width, device=device, dtype=torch.float64)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return y[None], x[None]
