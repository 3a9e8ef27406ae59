"""Four textures that look like frost on a window, generated once from a fixed seed.

They stand for the four different photographs of the published corruption, which are not ours to ship, and match what
was measured on these: mean and spread of the colours, quartiles of grey, and a correlation that falls slowly with
distance. They miss the photographs' tails and part of what varies slowly: `paper/frost.py` shows how much. They close
on themselves at the edges, so an image of any size can be cut out anywhere.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lca.damage.draws import Draws
from lca.damage.sizes import rounded

SIDE = 512


@dataclass(frozen=True)
class Frost:
    """What was measured on one photograph."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    percentiles: tuple[float, ...]
    """Of grey: 1, 25, 50, 75 and 99 %."""
    tint: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """How much of each channel is a second field of its own: the correlation of the channels."""


FROSTS = (
    Frost((77, 149, 166), (27, 16, 15), (97, 118, 129, 142, 177), (0.57, 0.0, -0.37)),
    Frost((201, 205, 214), (21, 22, 23), (143, 195, 210, 223, 245)),
    Frost((138, 153, 166), (29, 29, 30), (80, 135, 152, 169, 239)),
    Frost((112, 123, 135), (44, 43, 42), (46, 91, 120, 151, 238)),
)
SHARES = {"clouds": 0.65, "needles": 0.27, "grain": 0.08}
"""Of the variance."""


@lru_cache(maxsize=1)
def frost_textures() -> Tensor:
    """(4, SIDE, SIDE, 3) in uint8."""
    draws = Draws.of(0, "frost textures", 0, range(len(FROSTS)), "cpu")
    clouds = _coloured(draws.normal(SIDE, SIDE), 2, SIDE)
    needles = (-_coloured(draws.normal(SIDE, SIDE), 8, 60).abs() / 0.2).exp()
    grain = draws.normal(SIDE, SIDE)
    parts = {"clouds": clouds, "needles": needles, "grain": grain}
    fields = sum(share**0.5 * _standard(parts[name]) for name, share in SHARES.items())
    tints = _coloured(draws.normal(SIDE, SIDE), 2, SIDE)
    return torch.stack(
        [_painted(*each) for each in zip(torch.as_tensor(fields).unbind(), tints.unbind(), FROSTS, strict=True)]
    )


def _coloured(white: Tensor, shortest: float, longest: float) -> Tensor:
    """Noise whose amplitude falls as 1/f^1.2 between two wavelengths in pixels."""
    frequencies = torch.fft.fftfreq(SIDE, dtype=torch.float64)
    radius = (frequencies[:, None].square() + frequencies.square()).sqrt()
    within = (radius >= 1 / longest) & (radius <= 1 / shortest)
    weights = torch.where(within, radius.clamp(min=1 / SIDE) ** -1.2, 0.0)
    return _standard(torch.fft.ifft2(torch.fft.fft2(white) * weights).real)


def _standard(fields: Tensor) -> Tensor:
    """Mean 0 and variance 1."""
    fields = fields - fields.mean((1, 2), keepdim=True)
    return fields / fields.square().mean((1, 2), keepdim=True).sqrt()


def _painted(field: Tensor, tint: Tensor, frost: Frost) -> Tensor:
    """Give a field the histogram of grey and the colours of a photograph."""
    first, *_, last = frost.percentiles
    points = torch.tensor([0, 0.01, 0.25, 0.5, 0.75, 0.99, 1], dtype=torch.float64)
    values = torch.tensor([first * 0.8, *frost.percentiles, last + (255 - last) * 0.5], dtype=torch.float64)
    ranks = field.flatten().argsort().argsort().double() / (field.numel() - 1)
    above = torch.searchsorted(points, ranks).clamp(1, len(points) - 1)
    share = (ranks - points[above - 1]) / (points[above] - points[above - 1])
    grey = torch.lerp(values[above - 1], values[above], share).view_as(field)
    grey = _standard(grey[None])[0]
    channels = [
        mean + std * ((1 - own * own) ** 0.5 * grey + own * tint)
        for mean, std, own in zip(frost.mean, frost.std, frost.tint, strict=True)
    ]
    return rounded(torch.stack(channels, dim=-1))
