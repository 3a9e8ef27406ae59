"""A background for what is known: generated pictures of nothing, and photos spoilt until nothing is left to see.

Whether a picture is like anything known can be told better beside what everything else looks like. No photo of anything
else is needed for that: pictures of eighteen families are painted when they are needed, always the same, and none is
stored. Pictures are (3, size, size) between 0 and 1.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate, pad

from lca.data.images import ImageSet, Pixels
from lca.data.views import evaluation_boxes, resize_crops
from lca.randomness import generator

SEED = 0
"""Of the pictures that models are taught beside."""
PICTURES = 8
"""Of each family."""
SPOILT = ("defocus", "dark", "zoom")
"""The ways in which photos of a lesson are spoilt."""
CLOSE = 0.1
"""Share of the side that `zoom` leaves of a photo."""
Draws = torch.Generator
Family = Callable[[int, Draws], Tensor]


def paint(name: str, count: int, size: int, seed: int = SEED) -> Tensor:
    """Pictures (count, 3, size, size) of a family, in uint8."""
    draws = generator(seed, f"background, {name}")
    pictures = torch.stack([FAMILIES[name](size, draws).expand(3, -1, -1) for _ in range(count)])
    return _bytes(pictures)


@lru_cache(1)
def background(size: int) -> Pixels:
    """Eight pictures of every family, family by family."""
    return Pixels.whole(torch.cat([paint(name, PICTURES, size) for name in FAMILIES]))


def one_of_each(images: ImageSet) -> Tensor:
    """The numbers of one image of each class."""
    return torch.stack([images.rows_of(label)[0] for label in images.labels.unique().tolist()])


def spoilt(images: ImageSet, rows: Tensor, size: int, interpolation: str, centre_crop: float, draws: Draws) -> Pixels:
    """Images of these numbers spoilt: all of them far out of focus, then all in the dark, then all from so near that
    nothing can be told."""
    pixels = images.batch(rows)

    def seen(share: float) -> Tensor:
        return resize_crops(pixels, evaluation_boxes(pixels.sizes, share), size, interpolation) / 255

    plain = seen(centre_crop)
    blurred = [defocused(photo, _between(draws, 0.06, 0.12)) for photo in plain]
    dark = [darkened(photo, _between(draws, 0.02, 0.08), draws) for photo in plain]
    return Pixels.whole(_bytes(torch.stack([*blurred, *dark, *seen(CLOSE * centre_crop)])))


def defocused(photo: Tensor, radius: float) -> Tensor:
    """A photo (3, size, size) blurred by a disc whose radius is this share of the side; its edge is mirrored."""
    size = photo.shape[-1]
    reach = max(1, math.ceil(radius * size))
    wide = pad(photo[None], (reach,) * 4, "reflect" if reach < size else "replicate")[0]
    along = torch.fft.fftfreq(size + 2 * reach) * (size + 2 * reach)
    disc = ((radius * size + 0.5) - (along[:, None].square() + along.square()).sqrt()).clamp(0, 1)
    blurred = torch.fft.irfft2(torch.fft.rfft2(wide) * torch.fft.rfft2(disc / disc.sum()), s=wide.shape[1:])
    return blurred[:, reach:-reach, reach:-reach]


def darkened(photo: Tensor, light: float, draws: Draws) -> Tensor:
    """A photo with so little light that the noise of the sensor is about as bright."""
    return light * photo + _between(draws, 0.01, 0.04) * torch.randn(photo.shape, generator=draws)


def _uniform_noise(size: int, draws: Draws) -> Tensor:
    return torch.rand(3, size, size, generator=draws)


def _gaussian_noise(size: int, draws: Draws) -> Tensor:
    return _colour(draws) + _between(draws, 0.1, 0.4) * torch.randn(3, size, size, generator=draws)


def _grey_noise(size: int, draws: Draws) -> Tensor:
    return 0.5 + _between(draws, 0.15, 0.5) * torch.randn(1, size, size, generator=draws)


def _coarse_noise(size: int, draws: Draws) -> Tensor:
    """Smooth between 14 to 112 grains a side."""
    cells = _whole(draws, 14, 112)
    return _resized(torch.rand(3, cells, cells, generator=draws), size, "bicubic")


def _blocks(size: int, draws: Draws) -> Tensor:
    cells = _whole(draws, 3, 24)
    return _resized(torch.rand(3, cells, cells, generator=draws), size, "nearest")


def _blank(size: int, draws: Draws) -> Tensor:
    return _colour(draws).expand(3, size, size)


def _black(size: int, draws: Draws) -> Tensor:
    return _between(draws, 0, 0.08) + _between(draws, 0.005, 0.05) * torch.randn(3, size, size, generator=draws)


def _white(size: int, draws: Draws) -> Tensor:
    return _between(draws, 0.92, 1) + _between(draws, 0.005, 0.05) * torch.randn(3, size, size, generator=draws)


def _gradient(size: int, draws: Draws) -> Tensor:
    """From one colour to another, along any direction."""
    share = (_slope(size, draws) + 1) / 2
    return _colour(draws) * (1 - share) + _colour(draws) * share


def _wall(size: int, draws: Draws) -> Tensor:
    """A pale colour in uneven light, with what a sensor adds."""
    tone = _between(draws, 0.3, 0.95) + 0.15 * (_colour(draws) - 0.5)
    light = 1 + _between(draws, 0.02, 0.25) * _slope(size, draws)
    plaster = _between(draws, 0, 0.03) * _resized(torch.randn(1, size // 2, size // 2, generator=draws), size)
    return tone * light + plaster + _between(draws, 0, 0.03) * torch.randn(3, size, size, generator=draws)


def _corner(size: int, draws: Draws) -> Tensor:
    """Two walls and the edge between them."""
    line = _slope(size, draws) + _between(draws, -0.5, 0.5)
    return torch.where(line > 0, _wall(size, draws), _wall(size, draws))


def _checker(size: int, draws: Draws) -> Tensor:
    cells = _between(draws, 2, 24)
    along = (torch.arange(size) / size * cells + _between(draws, 0, 1)).floor().long() % 2
    return torch.where(along[:, None] == along, _colour(draws), _colour(draws))


def _stripes(size: int, draws: Draws) -> Tensor:
    wave = torch.sin(math.pi * _between(draws, 2, 30) * _slope(size, draws) + 6.3 * _between(draws, 0, 1))
    sharp = _between(draws, 1, 20)
    share = torch.sigmoid(sharp * wave)
    return _colour(draws) * (1 - share) + _colour(draws) * share


def _clouds(size: int, draws: Draws) -> Tensor:
    """Noise whose amplitude falls with the frequency, as 1 / f^0.8 to 1 / f^2, in colours of their own."""
    frequency = (torch.fft.fftfreq(size)[:, None].square() + torch.fft.rfftfreq(size).square()).sqrt()
    fall = frequency.clamp(min=1 / size) ** -_between(draws, 0.8, 2)
    waves = torch.fft.rfft2(torch.randn(3, size, size, generator=draws)) * fall
    waves[:, 0, 0] = 0
    clouds = torch.fft.irfft2(waves, s=(size, size))
    grey = _between(draws, 0, 1)
    clouds = (1 - grey) * clouds + grey * clouds[:1]
    return _colour(draws) + _between(draws, 0.1, 0.3) * clouds / clouds.std().clamp(min=1e-6)


def _discs(size: int, draws: Draws) -> Tensor:
    picture, along = _colour(draws).expand(3, size, size), torch.arange(size) / size
    for _ in range(_whole(draws, 1, 20)):
        top, left, radius = _between(draws, 0, 1), _between(draws, 0, 1), _between(draws, 0.02, 0.3)
        inside = (along[:, None] - top).square() + (along - left).square() < radius**2
        picture = torch.where(inside, _colour(draws), picture)
    return picture


def _rectangles(size: int, draws: Draws) -> Tensor:
    picture, along = _colour(draws).expand(3, size, size), torch.arange(size) / size
    for _ in range(_whole(draws, 1, 20)):
        rows, columns = (
            (along - _between(draws, 0, 1)).abs() < _between(draws, 0.02, 0.3) for _ in ("height", "width")
        )
        picture = torch.where(rows[:, None] & columns, _colour(draws), picture)
    return picture


def _text(size: int, draws: Draws) -> Tensor:
    """Lines of letters in any order, as on a page or a screen."""
    paper, ink = _ink(draws)
    picture = Image.new("RGB", (size, size), paper)
    height = max(4.0, _between(draws, 0.035, 0.2) * size)
    font, pen = ImageFont.load_default(height), ImageDraw.Draw(picture)
    for line in range(math.ceil(size / height)):
        words = ["".join(_LETTERS[_whole(draws, 0, len(_LETTERS) - 1)] for _ in range(_whole(draws, 1, 9)))]
        while len(" ".join(words)) < 2.2 * size / height:
            words.append("".join(_LETTERS[_whole(draws, 0, len(_LETTERS) - 1)] for _ in range(_whole(draws, 1, 9))))
        pen.text((0.3 * height, 1.25 * line * height), " ".join(words), fill=ink, font=font)
    return _of_picture(picture)


def _scribbles(size: int, draws: Draws) -> Tensor:
    """Curved strokes of a pen on paper."""
    paper, ink = _ink(draws)
    picture = Image.new("RGB", (size, size), paper)
    pen, width = ImageDraw.Draw(picture), max(1, round(_between(draws, 0.006, 0.03) * size))
    for _ in range(_whole(draws, 1, 6)):
        knots = torch.rand(1, 2, _whole(draws, 4, 14), generator=draws)
        path = interpolate(knots, scale_factor=8.0, mode="linear", align_corners=True)
        smooth = torch.nn.functional.avg_pool1d(path, 9, 1) * size
        pen.line([(x, y) for x, y in smooth[0].T.tolist()], fill=ink, width=width, joint="curve")
    return _of_picture(picture)


FAMILIES: dict[str, Family] = {
    "uniform noise": _uniform_noise,
    "Gaussian noise": _gaussian_noise,
    "grey noise": _grey_noise,
    "coarse noise": _coarse_noise,
    "blocks": _blocks,
    "blank": _blank,
    "black": _black,
    "white": _white,
    "gradient": _gradient,
    "wall": _wall,
    "corner": _corner,
    "checker": _checker,
    "stripes": _stripes,
    "clouds": _clouds,
    "discs": _discs,
    "rectangles": _rectangles,
    "text": _text,
    "scribbles": _scribbles,
}
"""What pictures of nothing look like, each (3 or 1, size, size)."""
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:-"


def _between(draws: Draws, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=draws))


def _whole(draws: Draws, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=draws))


def _colour(draws: Draws) -> Tensor:
    return torch.rand(3, 1, 1, generator=draws)


def _slope(size: int, draws: Draws) -> Tensor:
    """From -1 to 1 across the picture, in any direction: (size, size)."""
    angle, along = 2 * math.pi * _between(draws, 0, 1), torch.linspace(-1, 1, size)
    slope = math.sin(angle) * along[:, None] + math.cos(angle) * along
    return slope / slope.abs().max()


def _resized(picture: Tensor, size: int, mode: str = "bilinear") -> Tensor:
    return interpolate(picture[None], (size, size), mode=mode)[0]


def _ink(draws: Draws) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of paper and pen: pale and dark colours, or the other way round."""
    pale = tuple(round(255 * _between(draws, 0.75, 1)) for _ in range(3))
    dark = tuple(round(255 * _between(draws, 0, 0.4)) for _ in range(3))
    return (pale, dark) if _between(draws, 0, 1) < 0.75 else (dark, pale)


def _of_picture(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255


def _bytes(pictures: Tensor) -> Tensor:
    return (255 * pictures.clamp(0, 1)).round().to(torch.uint8)
