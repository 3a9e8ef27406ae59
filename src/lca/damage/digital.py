"""Digital changes: brightness, contrast, saturation, elastic deformation, large pixels and JPEG."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor
from torchvision.io import decode_jpeg, encode_jpeg

from lca.damage import filters
from lca.damage.draws import Draws
from lca.damage.sampling import bilinear, pixel_grid
from lca.damage.sizes import constants, levels, rounded, unit

BRIGHTER = (0.1, 0.2, 0.3, 0.4, 0.5)
BRIGHTNESS = {32: (0.05, 0.1, 0.15, 0.2, 0.3), 64: BRIGHTER, 224: BRIGHTER, 299: BRIGHTER}
FLATTER = (0.4, 0.3, 0.2, 0.1, 0.05)
CONTRAST = {32: (0.75, 0.5, 0.4, 0.3, 0.15), 64: FLATTER, 224: FLATTER, 299: FLATTER}
SATURATE_LARGE = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))
SATURATE = {  # factor and offset of the saturation
    32: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    64: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
    224: SATURATE_LARGE,
    299: SATURATE_LARGE,
}
ELASTIC_LARGE = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
ELASTIC = {  # amplitude and smoothness of the field, shift of the corners; in units of ELASTIC_UNIT pixels
    32: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    64: ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
    224: ELASTIC_LARGE,
    299: ELASTIC_LARGE,
}
ELASTIC_UNIT = {32: (32,) * 5, 64: (64,) * 5, 224: (244,) * 5, 299: (360,) * 5}
"""244 for images of 224: a slip of the published code, kept because the files were made with it."""
PIXELATE = {
    32: (0.95, 0.9, 0.85, 0.75, 0.65),
    64: (0.9, 0.8, 0.7, 0.6, 0.5),
    224: (0.6, 0.5, 0.4, 0.3, 0.25),
    299: (0.5, 0.4, 0.3, 0.25, 0.2),
}
JPEG = {
    32: (80, 65, 58, 50, 40),
    64: (65, 58, 50, 40, 25),
    224: (25, 18, 15, 10, 7),
    299: (23, 16, 13, 8, 5),
}


def brightness(images: Tensor, severity: int, draws: Draws) -> Tensor:
    return brightened(images, constants(BRIGHTNESS, images, severity)[0])


def brightened(images: Tensor, amount: float) -> Tensor:
    """V + c in HSV, V the largest channel: all channels times V′/V, and black becomes grey."""
    x = unit(images)
    value = x.amax(1, keepdim=True)
    wanted = (value + amount).clamp(0, 1)
    return levels(torch.where(value > 0, x * wanted / value.clamp(min=1 / 255), wanted))


def contrast(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """(x − m)·c + m, m the mean of each channel."""
    factor = constants(CONTRAST, images, severity)[0]
    x = unit(images)
    mean = x.mean((2, 3), keepdim=True)
    return levels((x - mean) * factor + mean)


def saturate(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """a·S + b in HSV: V − (V − x)·S′/S. Grey has the hue of red there and turns reddish where b > 0."""
    (factor, offset), _ = constants(SATURATE, images, severity)
    x = unit(images)
    value, lowest = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    depth = value - lowest
    saturation = depth / value.clamp(min=1 / 255)
    wanted = (saturation * factor + offset).clamp(0, 1)
    coloured = value - (value - x) * wanted / saturation.clamp(min=1e-9)
    red = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64).to(x.device)[:, None, None]
    return levels(torch.where(depth > 0, coloured, value * (1 - wanted * red)))


def elastic_transform(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """A random affine map that shifts three corners by up to δ, then shifts of every pixel by a smooth field.

    The map reads at exact places, as OpenCV does from version 5 on; earlier ones round them to 1/32 pixel."""
    (amplitude, smoothness, shift), factor = constants(ELASTIC, images, severity)
    pixels = constants(ELASTIC_UNIT, images, severity)[0] * factor
    height, width = images.shape[2:]
    y, x = pixel_grid(height, width, images.device)
    back = corner_map(height, width, draws.uniform(3, 2, low=-shift * pixels, high=shift * pixels))
    here = torch.stack([x, y, torch.ones_like(x)], dim=-1)
    there = here @ back[:, None]
    warped = bilinear(unit(images), there[..., 1], there[..., 0], "mirror")
    if amplitude:
        fields = draws.uniform(2, height, width, low=-1, high=1)
        right, down = (
            filters.gaussian_blur(fields, smoothness * pixels, 3.0, "symmetric") * (amplitude * pixels)
        ).unbind(1)
        warped = bilinear(warped, y + down, x + right, "symmetric")
    return levels(warped)


def corner_map(height: int, width: int, shifts: Tensor) -> Tensor:
    """The affine maps (n, 3, 2), for rows (x, y, 1), from the shifted corners back to where they were."""
    side = max(min(height, width) // 3, 1)
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64) * side
    corners = (corners + torch.tensor([width // 2, height // 2])).to(shifts.device).expand_as(shifts)
    moved = corners + shifts
    return torch.linalg.solve(torch.cat([moved, torch.ones_like(moved[..., :1])], dim=-1), corners)


def pixelate(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Shrink to a share of the size by averaging whole pixels, then enlarge by repeating them."""
    share = constants(PIXELATE, images, severity)[0]
    height, width = images.shape[2:]
    rows, columns = max(int(height * share), 1), max(int(width * share), 1)
    small = rounded(images.double() @ box_matrix(width, columns).to(images.device).mT)
    small = rounded(box_matrix(height, rows).to(images.device) @ small.double())
    down, right = (
        ((torch.arange(large) + 0.5) * few / large).floor().long().to(images.device)
        for large, few in ((height, rows), (width, columns))
    )
    return small[:, :, down][:, :, :, right]


@lru_cache(maxsize=64)
def box_matrix(length: int, few: int) -> Tensor:
    """Pillow's box filter: the mean of the pixels whose centre is within half a new pixel of the new centre."""
    scale = length / few
    centres = (torch.arange(few, dtype=torch.float64)[:, None] + 0.5) * scale
    distance = (torch.arange(length, dtype=torch.float64) + 0.5 - centres) / scale
    weights = ((distance > -0.5) & (distance <= 0.5)).double()
    return weights / weights.sum(1, keepdim=True)


def jpeg_compression(images: Tensor, severity: int, draws: Draws) -> Tensor:
    """Through libjpeg and back, on the CPU's cores, with halved colour resolution."""
    quality = constants(JPEG, images, severity)[0]
    with ThreadPoolExecutor() as pool:
        decoded = pool.map(lambda part: [_through_jpeg(image, quality) for image in part], images.cpu().split(64))
        return torch.stack([image for part in decoded for image in part]).to(images.device)


def _through_jpeg(image: Tensor, quality: int) -> Tensor:
    decoded: Tensor = decode_jpeg(encode_jpeg(image, quality))
    return decoded
