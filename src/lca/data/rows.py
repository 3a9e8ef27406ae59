"""Rows of the `datasets` library, also of sets that are streamed: an image is decoded when its row is there, in chunks,
and of what was downloaded only its pixels at the working size are kept."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from io import BytesIO
from itertools import islice
from typing import Any, TypeGuard

from PIL import Image
from torch import Tensor

from lca.data.decoding import FORMATS, ImageLike, LeftOut, UnreadableImage, read_all
from lca.data.folders import ReadingReport, some
from lca.errors import LcaError, needs
from lca.progress import Progress

Rows = Iterable[Mapping[str, Any]]
"""A `Dataset` or an `IterableDataset`."""
CHUNK = 256
"""Rows whose images are decoded together."""
TELL = 20 * CHUNK
"""Rows after which a stream, whose end is not known, says how far it is."""
LABELS = ("ClassLabel", "Value")


def is_rows(data: object) -> TypeGuard[Rows]:
    """Whether it belongs to the `datasets` library, which need not be there to tell."""
    return type(data).__module__.partition(".")[0] == "datasets"


def read_rows(data: Rows, working_size: int, progress: Progress) -> tuple[list[tuple[ImageLike, str]], list[LeftOut]]:
    """(pixels, class) of every row of a data set that is given to a model, and the images that cannot be read."""
    if isinstance(data, Mapping):
        raise LcaError(f"the data set has several splits ({', '.join(data)}); give one of them, such as data['train']")
    kinds = kinds_of(data)
    columns = [
        [name for name, kind in kinds.items() if kind == "Image"],
        [name for name, kind in kinds.items() if kind == "ClassLabel"]
        or [name for name, kind in kinds.items() if kind in LABELS],
    ]
    if [len(each) for each in columns] != [1, 1]:
        raise LcaError(
            f"expected one column of images and one of labels, got {some(columns[0]) or 'none'} and "
            f"{some(columns[1]) or 'none'}; keep one of each: data.select_columns(['image', 'label'])"
        )
    (image,), (label,) = columns
    report = ReadingReport()
    found = [*pixels_of(data, image, label, working_size, report, progress)]
    name = namer(data, label)
    return [(pixels, name(value)) for pixels, value in found], report.left_out


def kinds_of(data: Rows) -> dict[str, str]:
    """The kind of every column: as the data set says or, where it does not know, as the first row has it."""
    features = getattr(data, "features", None)
    if features is not None:
        return {column: type(feature).__name__ for column, feature in features.items()}
    first = next(iter(data), None)
    if first is None:
        raise LcaError("the data set has no rows")

    def kind(value: Any) -> str:
        if isinstance(value, Image.Image) or (isinstance(value, Mapping) and "bytes" in value):
            return "Image"
        return "Value" if isinstance(value, str | int) else "other"

    return {column: kind(value) for column, value in first.items()}


def namer(data: Rows, label: str) -> Callable[[Any], str]:
    """What gives the class of a label: by the names that the data set has for its numbers, else as it is."""
    features = getattr(data, "features", None)
    names = None if features is None else getattr(features[label], "names", None)

    def name(value: Any) -> str:
        if value is None or value == -1:
            raise LcaError(f"some images have no label (column {label!r}); choose another split or column")
        return str(names[value] if names else value)

    return name


def pixels_of(
    data: Rows, image: str, label: str, working_size: int, report: ReadingReport, progress: Progress
) -> Iterator[tuple[Tensor, Any]]:
    """The pixels (3, h, w) and the label of every row, chunk by chunk; the broken are left out and reported."""
    with needs("a data set of the datasets library", "datasets"):
        import datasets
    if getattr(data, "features", None) is not None:  # bytes and paths: one broken image must not end the stream
        data = data.cast_column(image, datasets.Image(decode=False))  # type: ignore[attr-defined]
    numbered = enumerate(_shown(data, progress), 1)
    while chunk := [*islice(numbered, CHUNK)]:
        readable: list[tuple[int, ImageLike, Any]] = []
        for number, row in chunk:
            try:
                readable.append((number, opened(row[image]), row[label]))
            except UnreadableImage as error:
                report.left_out.append(LeftOut(f"row {number}", error.reason))
        results = read_all([picture for _, picture, _ in readable], working_size, Progress())
        for (number, _, value), result in zip(readable, results, strict=True):
            if isinstance(result, LeftOut):
                report.left_out.append(LeftOut(f"row {number}", result.reason))
            else:
                yield result.pixels, value
        if not isinstance(data, Sized) and not chunk[-1][0] % TELL:
            progress.line(f"{chunk[-1][0]:,} rows read so far")


def opened(content: Any) -> ImageLike:
    """An image as a row has it: its bytes, its place, or the image itself. It is decoded later."""
    if not isinstance(content, Mapping):
        if content is None:
            raise UnreadableImage("the row", "is empty")
        return content  # what is no image, decoding refuses
    if not content.get("bytes") and not content.get("path"):
        raise UnreadableImage("the row", "is empty")
    try:
        if content.get("bytes"):
            return Image.open(BytesIO(content["bytes"]), formats=FORMATS)
        if "://" in str(content["path"]):  # in a stream: the library fetches it
            import datasets

            return datasets.Image().decode_example(dict(content))
    except Exception as error:  # Pillow raises what a damaged header leads it to
        raise UnreadableImage("the row", f"cannot be read: {str(error)[:80]}") from error
    return str(content["path"])


def _shown(data: Rows, progress: Progress) -> Iterable[Mapping[str, Any]]:
    return progress.track(data, "reading images", len(data)) if isinstance(data, Sized) else data
