"""How far the generated frost is from what was measured on the published photographs: `python paper/frost.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lca.damage.frost_textures import FROSTS, frost_textures
from lca.text import markdown_table

STEP = 5
"""An image of 32 pixels sees every fifth pixel of a texture."""
CROP = 32


@dataclass(frozen=True)
class Photograph:
    """What was measured on one photograph, reduced to a fifth, beside its `Frost`."""

    name: str
    within: tuple[float, float, float]
    """Mean standard deviation of each channel within crops of 32 pixels."""
    near: str
    far: str
    """Correlation of grey with grey 1 and 16 pixels away; where it is a range, that of three photographs."""


PHOTOGRAPHS = (
    Photograph("teal", (22, 13, 13), "0.6 to 0.7", "0.20 to 0.43"),
    Photograph("near white", (18, 18, 19), "0.6 to 0.7", "0.20 to 0.43"),
    Photograph("grey-blue", (26, 26, 27), "0.48", "0.27"),
    Photograph("dark", (35, 35, 34), "0.6 to 0.7", "0.20 to 0.43"),
)
GREY = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)


def grey_percentiles(texture: Tensor) -> list[float]:
    """Below which 1 and 99 % of the grey values of (h, w, 3) lie."""
    return (texture @ GREY).flatten().quantile(torch.tensor([0.01, 0.99], dtype=torch.float64)).tolist()


def correlation(texture: Tensor, pixels: int) -> float:
    """Of grey with grey so many pixels of a small image away, along both axes; the texture closes on itself."""
    grey = texture @ GREY
    grey = grey - grey.mean()
    products = [(grey * grey.roll(STEP * pixels, axis)).mean() for axis in (0, 1)]
    return float(sum(products)) / 2 / float(grey.square().mean())


def spread_within_crops(texture: Tensor) -> float:
    """Mean standard deviation within crops of a small image, of all channels."""
    small = texture[STEP // 2 :: STEP, STEP // 2 :: STEP]
    crops = small.unfold(0, CROP, CROP // 2).unfold(1, CROP, CROP // 2)
    return float(crops.flatten(3).std(3).mean())


def between_crops(spread: Sequence[float], within: float) -> float:
    """The share of the variance that lies between crops, by the standard deviation of each channel in all of a texture
    and their mean within crops: some small images get bright frost and others dark."""
    return 1 - within**2 / (sum(each**2 for each in spread) / len(spread))


def main() -> None:
    rows = []
    for texture, frost, photograph in zip(frost_textures().double(), FROSTS, PHOTOGRAPHS, strict=True):
        low, high = grey_percentiles(texture)
        rows.append(
            [
                photograph.name,
                f"{frost.percentiles[0]:.0f} to {frost.percentiles[-1]:.0f}",
                f"{low:.0f} to {high:.0f}",
                photograph.near,
                f"{correlation(texture, 1):.2f}",
                photograph.far,
                f"{correlation(texture, 16):.2f}",
                f"{100 * between_crops(frost.std, sum(photograph.within) / 3):.0f} %",
                f"{100 * between_crops(texture.std((0, 1)).tolist(), spread_within_crops(texture)):.0f} %",
            ]
        )
    titles = ("1 to 99 % of grey", "correlation at 1 pixel", "at 16 pixels", "variance between crops")
    header = ["photograph", *(f"{title}{which}" for title in titles for which in ("", ", ours"))]
    print(markdown_table(header, rows), end="")


if __name__ == "__main__":
    main()
