"""Reading images as they come: each is decoded once, to upright uint8 RGB at a working size.

Grey becomes three equal channels, transparency lies over white, of several frames the first counts. 16-bit grey is
divided by 257. Floats within [0, 1] are multiplied by 255, those within [0, 255] stay; other floats and larger integers
have no scale of their own and are stretched from their minimum and maximum to 0 and 255. What is no finite number is 0.
"""

import hashlib
import math
import os
import re
import stat
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError
from torch import Tensor

from lca.data.decoding_limits import (
    ROOM,
    TooLarge,
    expect_bounded,
    expect_pixels,
    memory_to_decode,
    too_large,
    webp_canvas,
)
from lca.data.images import Images, packed
from lca.data.store import PixelRow
from lca.errors import LcaError
from lca.progress import Progress
from lca.text import terminal_text
from lca.turns import Together


class Embedded(ABC):
    """An image file that lies within something else: in an archive, in a row of a table."""

    name: str
    """What to call it in a message; it ends as names of such files do, if it has a name of its own."""

    @abstractmethod
    def content(self) -> bytes:
        """The bytes of the file; an `UnreadableImage` says why there are none."""


ImageLike = str | Path | bytes | IO[bytes] | Embedded | Image.Image | np.ndarray[Any, Any] | Tensor
"""A file's path, its bytes, a file that is open for reading bytes or lies within something else, a Pillow image, an
array (h, w) or (h, w, 1 | 3 | 4), or a tensor (1 | 3, h, w); arrays and tensors hold uint8 or floats in [0, 1]."""

Image.init()
FORMATS: tuple[str, ...] = tuple(
    name
    for name in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "DIB", "PPM", "AVIF", "JPEG2000", "ICO", "QOI", "SGI")
    if name in Image.OPEN
)
"""What is read, whatever a file is called. Others stay out: Pillow would start Ghostscript for EPS."""
NAMED_FORMATS = {".tga": "TGA", ".icb": "TGA", ".vda": "TGA", ".vst": "TGA", ".pcx": "PCX"}
"""Formats that have next to no signature, so that only a name can tell."""
HEIF_SUFFIXES = frozenset({".heic", ".heics", ".heif", ".heifs", ".hif"})
SUFFIXES = (
    frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in {*FORMATS, "MPO"})
    | NAMED_FORMATS.keys()
    | HEIF_SUFFIXES
)
"""Names of image files end in these, in upper or lower case."""
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
SEVERAL_FRAMES = frozenset({"GIF", "PNG", "WEBP", "AVIF", "TIFF"})
"""Formats whose further frames are more than an inset or a preview."""
LONGEST = 2
"""Images longer than this many times their shorter side are cut to the middle: one panorama must not blow up the
canvas of its batch."""
AHEAD = 16
"""Images for every thread that are decoded before the first of them is taken."""
EMPTY = "is empty"
NO_IMAGE = "is no image of a known format, or only the start of one; save it as JPEG or PNG"
WEB_ADDRESS = "is an address on the web, and nothing is fetched from there; download it and give the file or its bytes"
TEXT_FILE = "is open as text; open it for reading bytes: open(path, 'rb')"
NO_HEIF = "is a HEIC photo, which needs another package: pip install pillow-heif"
_ORIENTATION = 0x0112
BAND = 256
"""Rows of an image that are converted at a time."""
DIGEST = 16
NAMED = 20
"""Files that an error names before it only counts."""


class UnreadableImage(LcaError):  # noqa: N818
    """One image cannot be read; the message names it, the reason and what to do."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} {reason}")
        self.what, self.reason = what, reason


@dataclass(frozen=True)
class LeftOut:
    """An image that could not be read: a path or, say, "image 3" of a list, and what is wrong: "is empty"."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} {self.reason}"


@dataclass(frozen=True)
class Decoded:
    """An image that was read."""

    pixels: Tensor
    several_frames: bool
    digest: bytes
    """Hash of shape and pixels, `DIGEST` bytes."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What came of reading many images."""

    pixels: Images
    """Those that could be read, in their order."""
    digests: np.ndarray[Any, Any]
    """(n, 16): hash of the shape and pixels of each."""
    several_frames: np.ndarray[Any, Any]
    """(n,)"""
    left_out: dict[int, LeftOut]
    """The others, by their places among all."""


def decode(image: ImageLike, working_size: int) -> Tensor:
    """RGB uint8 (3, h, w), upright, the shorter side at most `working_size`."""
    with _quiet():
        return _read(image, name_of(image), working_size).pixels


def read_together(
    images: Sequence[ImageLike], working_size: int, progress: Progress, first: int = 1, in_memory: float = math.inf
) -> Reading:
    """Read many images, whose pixels lie one after another: in memory, or in a temporary file where they are more than
    so many bytes. `first` is the number of the first one in messages."""
    row, sizes, digests, several_frames = PixelRow(len(images), in_memory), [], [], []
    left_out: dict[int, LeftOut] = {}
    for place, result in enumerate(read_all(images, working_size, progress, first)):
        if isinstance(result, LeftOut):
            left_out[place] = result
            continue
        row.append(result.pixels)
        sizes.append(result.pixels.shape[1:])
        digests.append(result.digest)
        several_frames.append(result.several_frames)
    return Reading(
        packed(row.finished(), torch.tensor(sizes, dtype=torch.long).reshape(-1, 2)),
        np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST),
        np.array(several_frames, dtype=bool),
        left_out,
    )


def read_all(
    images: Sequence[ImageLike], working_size: int, progress: Progress, first: int = 1
) -> Iterator[Decoded | LeftOut]:
    """Read many images, one after another, in their order; those that cannot be read become what is wrong with them.
    In threads: Pillow releases the interpreter lock. They are ahead by some images only, whoever takes these."""

    def attempt(numbered: tuple[int, ImageLike]) -> Decoded | LeftOut:
        number, image = numbered
        try:
            return _read(image, name_of(image, number), working_size)
        except UnreadableImage as error:
            return LeftOut(error.what, error.reason)

    threads = os.cpu_count() or 1
    pool = ThreadPoolExecutor(threads)

    def results() -> Iterator[Decoded | LeftOut]:
        numbered = enumerate(images, first)
        ahead = deque(pool.submit(attempt, each) for each in islice(numbered, AHEAD * threads))
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(pool.submit(attempt, each) for each in islice(numbered, 1))

    try:
        with _quiet():
            yield from progress.track(results(), "reading images", len(images))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt nobody waits for the rest


def unreadable_images(left_out: Sequence[LeftOut], total: int = 0) -> LcaError:
    """The error for images that cannot be read: all of them, or some of a total."""
    title = f"none of the {len(left_out)} images could be read:" if len(left_out) > 1 else "no image could be read:"
    if total > len(left_out):
        title = f"{len(left_out)} of {total} images could not be read:"
    more = [f"and {len(left_out) - NAMED} more"] if len(left_out) > NAMED else []
    return LcaError("\n  ".join([title, *map(str, left_out[:NAMED]), *more]))


def name_of(image: object, number: int | None = None) -> str:
    """What to call an image in a message: its path, or its place in a list, counted from 1."""
    if isinstance(image, str | Path):
        return printable(str(image))
    if isinstance(image, Embedded):
        return printable(image.name)
    return "the image" if number is None else f"image {number}"


def printable(text: str) -> str:
    """The text as it can be printed and stored."""
    return terminal_text(text)


def is_image(path: Path) -> bool:
    """Whether the content of a file is that of an image, whole or damaged; true also where it cannot be looked at."""
    what = name_of(path)
    try:
        with _quiet(), _open_file(path, what) as file, _explained(what), _identify(file, path, what):
            return True
    except UnreadableImage as error:
        return error.reason not in (EMPTY, NO_IMAGE)


def _read(image: object, what: str, working_size: int) -> Decoded:
    with _explained(what), ExitStack() as room:  # given back when nothing of the image is left
        pixels, several_frames = _pixels(image, what, working_size, room)
    return Decoded(pixels, several_frames, digest_of(pixels))


def _pixels(image: object, what: str, working_size: int, room: ExitStack) -> tuple[Tensor, bool]:
    """Those of an image, and whether it has several frames."""
    if isinstance(image, str | Path | Embedded | bytes | bytearray | memoryview) or hasattr(image, "read"):
        with _opened(image, what) as file, closing(_identify(file, _path_of(image), what)) as opened:
            expect_bounded(opened)
            several_frames = _has_several_frames(opened)
            # a part of a large JPEG decodes several times faster; twice the size keeps the quality
            opened.draft(None, (2 * working_size, 2 * working_size))
            room.enter_context(ROOM.taken(memory_to_decode(opened)))
            return _finish(opened, working_size), several_frames
    if isinstance(image, Image.Image):
        expect_bounded(image)
        room.enter_context(ROOM.taken(memory_to_decode(image)))
        return _finish(image, working_size), False
    return _finish(Image.fromarray(_checked_array(image, what)), working_size), False


def digest_of(pixels: Tensor) -> bytes:
    """Hash of the shape and pixels of an image."""
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=DIGEST)
    digest.update(pixels.numpy().data)
    return digest.digest()


def _opened(image: Any, what: str) -> IO[bytes]:
    """A file that is named, that is given itself, or that lies within something else."""
    if isinstance(image, str | Path):
        return _open_file(Path(image), what)
    content: Any = image.content() if isinstance(image, Embedded) else image
    if hasattr(content, "read"):
        with suppress(OSError, ValueError, AttributeError):  # a pipe, or something that has nothing but `read`
            content.seek(0)
        content = content.read()
    if isinstance(content, str):
        raise UnreadableImage(what, TEXT_FILE)
    if not len(content):
        raise UnreadableImage(what, EMPTY)
    return BytesIO(content)


def is_web_address(path: str | Path) -> bool:
    """Whether a path is none but an address, also where `Path` has made one slash of two."""
    return bool(re.match(r"(https?|ftp|s3|gs|file|data):", str(path), re.IGNORECASE)) and not os.path.lexists(path)


def _path_of(image: Any) -> PurePath:
    """What a file is called, for formats that only a name can tell."""
    name = image if isinstance(image, str | Path) else getattr(image, "name", None) or getattr(image, "filename", None)
    return PurePath(name if isinstance(name, str | Path) else "")


def _open_file(path: Path, what: str) -> IO[bytes]:
    if is_web_address(path):
        raise UnreadableImage(what, WEB_ADDRESS)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UnreadableImage(what, "is a folder; expected an image file, or a folder that is asked alone")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise UnreadableImage(what, "is a pipe or a device; expected an image file")
        if status.st_size == 0:
            raise UnreadableImage(what, EMPTY)
        return path.open("rb")
    except FileNotFoundError:
        link = f"is a link to {printable(os.readlink(path))}, which " if path.is_symlink() else ""
        raise UnreadableImage(what, f"{link}does not exist") from None
    except PermissionError:
        raise UnreadableImage(what, "may not be read by you; change its permissions") from None
    except (OSError, ValueError) as error:  # a ValueError for a name with a zero character
        raise UnreadableImage(what, f"cannot be opened: {_first_line(error)}") from error


def _identify(file: IO[bytes], path: PurePath, what: str) -> Image.Image:
    """Open an image of one of the known formats, without reading its pixels."""
    formats = [*FORMATS]
    if named := NAMED_FORMATS.get(path.suffix.lower()):
        formats.append(named)
    start = file.read(64)
    file.seek(0)
    if size := webp_canvas(start):  # Pillow takes memory for it as it opens the file
        expect_pixels(*size)
    if start[4:8] == b"ftyp":
        brands = start[8 : int.from_bytes(start[:4], "big")]
        if b"avif" not in brands and any(brand in brands for brand in HEIF_BRANDS):
            if "HEIF" not in Image.OPEN:
                _register_heif(what)
            formats = ["HEIF"]
    return Image.open(file, formats=formats)


def _register_heif(what: str) -> None:
    """Teach Pillow to read HEIC photos."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise UnreadableImage(what, NO_HEIF) from None
    register_heif_opener()


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say in plain words why an image cannot be read."""
    try:
        yield
    except UnreadableImage:
        raise
    except UnidentifiedImageError:
        raise UnreadableImage(what, NO_IMAGE) from None
    except Image.DecompressionBombError as error:
        size = re.search(r"(\d+) pixels", str(error))
        raise UnreadableImage(what, too_large(int(size[1]) if size else 0)) from None
    except TooLarge as error:
        raise UnreadableImage(what, str(error)) from None
    except MemoryError:
        raise UnreadableImage(what, "does not fit into memory; make it smaller") from None
    except Exception as error:  # for damaged files Pillow's readers raise almost anything
        reason = f"is damaged or cut short ({_first_line(error)}); copy or export it again"
        raise UnreadableImage(what, reason) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


_quiet = Together(_without_warnings).entered
"""Without Pillow's warnings, which name no file. The filters are the whole process's."""


def _has_several_frames(image: Image.Image) -> bool:
    with suppress(Exception):  # a damaged second frame is no reason to lose the first
        return image.format in SEVERAL_FRAMES and bool(getattr(image, "is_animated", False))
    return False


def _finish(image: Image.Image, working_size: int) -> Tensor:
    """Upright, RGB, cut and shrunk."""
    image.load()  # first: TIFF files are put upright by this
    with suppress(Exception):  # damaged notes do not make a photo unreadable
        if image.getexif().get(_ORIENTATION, 1) != 1:  # else it would be copied
            image = ImageOps.exif_transpose(image)
    rgb = _to_rgb(image)
    width, height = rgb.size
    cut_width, cut_height = min(width, LONGEST * height), min(height, LONGEST * width)
    left, top = (width - cut_width) // 2, (height - cut_height) // 2
    if (cut_width, cut_height) != rgb.size:
        rgb = rgb.crop((left, top, left + cut_width, top + cut_height))
    if working_size < (shorter := min(rgb.size)):  # as torchvision's Resize rounds
        size = (working_size * rgb.width // shorter, working_size * rgb.height // shorter)
        rgb = rgb.resize(size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1).contiguous()


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        ranges = [_range(np.asarray(band)) for band in _bands(image)]
        low, high = min(least for least, _ in ranges), max(most for _, most in ranges)
        return _by_bands(image, lambda band: Image.fromarray(_to_bytes(np.asarray(band), low, high)).convert("RGB"))
    return _by_bands(image, _band_to_rgb)


def _bands(image: Image.Image) -> Iterator[Image.Image]:
    for top in range(0, image.height, BAND):
        yield image.crop((0, top, image.width, min(top + BAND, image.height)))


def _by_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """What is done pixel by pixel, with no more than a band of a large image beside it and its result."""
    if image.height <= BAND:
        return convert(image)
    rgb = Image.new("RGB", image.size)
    for number, band in enumerate(_bands(image)):
        rgb.paste(convert(band), (0, number * BAND))
    return rgb


def _band_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "LAB":
        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB")
        assert converted is not None
        return converted
    palette = image.palette.mode if image.palette is not None else ""
    if "transparency" in image.info or any(mode[-1:] in ("A", "a") for mode in (image.mode, palette)):
        straight = image.convert(image.mode.upper()) if image.mode[-1] == "a" else image
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, straight.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _range(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    exact = _finite(values)
    return float(exact.min()), float(exact.max())


def _to_bytes(values: np.ndarray[Any, Any], low: float, high: float) -> np.ndarray[Any, Any]:
    """Integers of more than 8 bits and floats as uint8, for an image that has values from `low` to `high`; the rule is
    the module's."""
    exact = _finite(values)
    whole = np.issubdtype(values.dtype, np.integer)
    if low >= 0 and high <= (65535 if whole else 255):
        exact *= 1 / 257 if whole else 255 if high <= 1 else 1
    else:
        exact = (exact - low) * (255 / max(high - low, 1e-300))
    return np.round(exact).astype(np.uint8)


def _finite(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)


def _checked_array(image: object, what: str) -> np.ndarray[Any, Any]:
    """An array or a tensor as uint8 (h, w), (h, w, 3) or (h, w, 4)."""
    expected = (
        "expected a path, bytes, an open file, a Pillow image, an array (h, w[, 1, 3 or 4]) or a tensor (1 or 3, h, w)"
    )
    if isinstance(image, Tensor):
        fits = image.ndim == 3 and image.shape[0] in (1, 3)
        values = image.detach().cpu()
        array = (values.float() if values.is_floating_point() else values).numpy()
        array = array.transpose(1, 2, 0) if fits else array
    elif isinstance(image, np.ndarray):
        fits = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3, 4))
        array = image
    else:
        raise UnreadableImage(what, f"is of type {type(image).__name__}; {expected}")
    if not fits or 0 in array.shape:
        raise UnreadableImage(what, f"has the shape {tuple(image.shape)}; {expected}")
    if np.issubdtype(array.dtype, np.floating):
        if not (array.min() >= 0 and array.max() <= 1):  # not a number fails too
            raise UnreadableImage(what, f"has floats from {array.min():g} to {array.max():g}; expected [0, 1]")
        array = np.round(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise UnreadableImage(what, f"holds {array.dtype}; expected uint8, or floats in [0, 1]")
    return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return printable((str(error).splitlines() or [""])[0] or type(error).__name__)[:200]
