"""One picture of all corruptions and sequences, to see with one's own eyes that they are what they are called.

python paper/contact_sheet.py photos --out sheet.png
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from lca.damage import corruptions, perturbations
from lca.damage.corruptions import SEVERITIES, corrupt
from lca.damage.perturbations import centre, perturb
from lca.data.decoding import SUFFIXES, decode
from lca.errors import LcaError

GAP, LABEL = 3, 118
SHOWN = 5
"""Frames of a sequence."""


def contact_sheet(images: Tensor, tile: int = 96, seed: int = 0) -> Image.Image:
    """Each corruption in five severities and each sequence in five frames, of images (n, 3, h, w) in turn.

    The first column shows the image itself. Sequences stand to the right of the corruptions.
    """
    left = [
        (name, [image, *(corrupt(image, name, severity, seed) for severity in SEVERITIES)])
        for number, name in enumerate(corruptions.NAMES)
        for image in [images[number % len(images)][None]]
    ]
    right = [
        (name, [image, *_spread(perturb(image, name, seed)[0])])
        for number, name in enumerate(perturbations.NAMES)
        for image in [images[number % len(images)][None]]
    ]
    blocks = [
        _block(["", "image", *(f"severity {severity}" for severity in SEVERITIES)], left, tile),
        _block(["", "image", "first frame", "", "middle", "", "last frame"], right, tile),
    ]
    sheet = Image.new(
        "RGB", (sum(block.width for block in blocks) + 4 * GAP, max(block.height for block in blocks)), "white"
    )
    sheet.paste(blocks[0], (0, 0))
    sheet.paste(blocks[1], (blocks[0].width + 4 * GAP, 0))
    return sheet


def read_square(path: Path, size: int) -> Tensor:
    """The centre of an image, (3, size, size), as is usual for 224: shorter side to 256, then cut; small ones grow."""
    pixels = decode(path, round(size * 8 / 7))[None]
    side = min(*pixels.shape[2:], size)
    square = Image.fromarray(centre(pixels, side)[0].permute(1, 2, 0).numpy())
    return _tensor(square.resize((size, size), Image.Resampling.BICUBIC))


def _spread(frames: Tensor) -> list[Tensor]:
    """A few frames from first to last, the middle one among them."""
    chosen = [round(place * (len(frames) - 1) / (SHOWN - 1)) for place in range(SHOWN)]
    return [frames[place][None] for place in chosen]


def _block(header: Sequence[str], rows: Sequence[tuple[str, list[Tensor]]], tile: int) -> Image.Image:
    """Rows of tiles, each with its name in front."""
    step, top = tile + GAP, 18
    block = Image.new("RGB", (LABEL + step * (len(header) - 1), top + step * len(rows)), "white")
    draw, font = ImageDraw.Draw(block), ImageFont.load_default(12)
    for column, title in enumerate(header[1:]):
        draw.text((LABEL + column * step + tile // 2, 8), title, "black", font, anchor="mm")
    for row, (name, tiles) in enumerate(rows):
        draw.text((LABEL - 8, top + row * step + tile // 2), name.replace("_", " "), "black", font, anchor="rm")
        for column, image in enumerate(tiles):
            picture = Image.fromarray(image[0].permute(1, 2, 0).contiguous().numpy())
            small = picture.resize(
                (tile, tile), Image.Resampling.BOX if picture.width >= tile else Image.Resampling.NEAREST
            )
            block.paste(small, (LABEL + column * step, top + row * step))
    return block


def _tensor(picture: Image.Image) -> Tensor:
    flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return flat.view(picture.height, picture.width, 3).permute(2, 0, 1).contiguous()


app = typer.Typer(add_completion=False)


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(help="a folder of images; the first ones by name, at any depth, are shown")],
    out: Annotated[Path, typer.Option(help="the picture to write")] = Path("sheet.png"),
    size: Annotated[int, typer.Option(help="side to which images are brought before they are damaged")] = 224,
    tile: Annotated[int, typer.Option(help="side of a tile in the picture")] = 96,
    images: Annotated[int, typer.Option(help="how many images take turns")] = 1,
    colours: Annotated[int, typer.Option(help="reduce to so many colours, for a small file; 0: all")] = 0,
    seed: Annotated[int, typer.Option(help="seed of all random numbers")] = 0,
) -> None:
    """Write one picture of all 19 corruptions and 14 sequences of an image."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)[:images]
    if not paths:
        raise LcaError(f"there are no images in {folder}")
    sheet = contact_sheet(torch.stack([read_square(path, size) for path in paths]), tile, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    (sheet.quantize(colours, dither=Image.Dither.NONE) if colours else sheet).save(out, optimize=True)
    print(f"{out}: {sheet.width} x {sheet.height} pixels, {out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    try:
        app()
    except LcaError as error:
        raise SystemExit(f"error: {error}") from None
