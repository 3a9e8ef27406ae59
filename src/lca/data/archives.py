"""Zip files of class folders, read where they are: nothing is unpacked to a disk, so no name in one leads anywhere."""

import zipfile
import zlib
from collections import defaultdict
from pathlib import Path, PurePosixPath

from lca.data.decoding import SUFFIXES, Embedded, LeftOut, UnreadableImage, name_of, printable
from lca.data.folders import CLUTTER, LAYOUT, ReadingReport, class_name
from lca.data.parts import Album, Layout, recognised, unused
from lca.errors import LcaError

MOST_FILES = 500_000
MOST_BYTES = 10**12
"""Of all files in an archive together, unpacked."""
LARGEST = 2**28
"""Bytes of one file in an archive, unpacked: each is unpacked into memory."""


class Member(Embedded):
    """An image in a zip file."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._archive, self._info = archive, info
        self.name = f"{archive.filename}/{info.filename}"

    def content(self) -> bytes:
        if self._info.file_size > LARGEST:
            size, most = self._info.file_size / 1e6, LARGEST / 1e6
            raise UnreadableImage(self.name, f"would unpack to {size:.0f} MB, the limit is {most:.0f}")
        if self._info.flag_bits & 1:
            raise UnreadableImage(self.name, "is encrypted; make the archive again without a password")
        try:  # no more than the archive says is unpacked, and its checksum is looked at
            return self._archive.read(self._info)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError) as error:
            raise UnreadableImage(self.name, f"cannot be unpacked ({error}); make the archive again") from error


def album_of_zip(path: Path, layout: Layout) -> Album:
    """An archive of class folders, or of parts with class folders inside. One folder around all of it is passed
    through."""
    opened = _opened(path)
    files = {name: info for info in opened.infolist() if not info.is_dir() and (name := _inside(info.filename))}
    unsafe = iter([info.filename for info in opened.infolist() if _inside(info.filename) is None])  # told once
    outer = {name[0] for name in files}
    around = len(outer) == 1 and all(len(name) > 2 for name in files)
    if around:
        files = {name[1:]: info for name, info in files.items()}
    folders = sorted({name[0] for name in files if len(name) > 1})
    with_folders = {name[0] for name in files if len(name) > 2}

    def images(part: str, report: ReadingReport) -> dict[str, list[Embedded]]:
        if around and not part:
            report.notes.append(f"{name_of(path)} holds one folder, {min(outer)}; the classes are those inside")
        report.left_out += [LeftOut(printable(name), "has a name that leads out of the archive") for name in unsafe]
        own = {name[1:]: info for name, info in files.items() if name[0] == part} if part else files
        return _classes(opened, own, report)

    parts = recognised(name_of(path), folders, with_folders.__contains__, layout)
    instead = "unpack it and give the folder that you mean"
    return Album(name_of(path), parts, images, instead, unused(folders, parts))


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise LcaError(f"there is no file {name_of(path)}") from None
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise LcaError(
            f"{name_of(path)} cannot be opened as a zip file ({error}): it is damaged, cut short or another kind of "
            "file; make or download it again"
        ) from error
    count, size = len(archive.infolist()), sum(info.file_size for info in archive.infolist())
    if count > MOST_FILES or size > MOST_BYTES:
        raise LcaError(
            f"{name_of(path)} holds {count:,} files of {size / 1e9:,.0f} GB; an archive may hold {MOST_FILES:,} and "
            f"{MOST_BYTES / 1e9:,.0f}. Unpack it, and teach its folder"
        )
    return archive


def _inside(name: str) -> tuple[str, ...] | None:
    """The folders and the file that a name is made of; nothing of what systems leave behind, None if it leads out."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0].startswith("/") or ".." in parts or ":" in parts[0]:
        return None
    hidden = any(part.startswith(".") or part.lower() in CLUTTER for part in parts)
    return () if hidden else parts


def _classes(
    archive: zipfile.ZipFile, files: dict[tuple[str, ...], zipfile.ZipInfo], report: ReadingReport
) -> dict[str, list[Embedded]]:
    """The images of every class folder, in the order of sorted names; the report is told of other files."""
    classes: dict[str, list[Embedded]] = defaultdict(list)
    for name, info in sorted(files.items()):
        member = Member(archive, info)
        if PurePosixPath(name[-1]).suffix.lower() not in SUFFIXES:
            report.other_files.append(name_of(member))
        elif len(name) < 2:
            report.left_out.append(LeftOut(name_of(member), "lies beside the class folders; put it into one"))
        else:
            classes[class_name(name[0])].append(member)
    if not classes:
        raise LcaError(f"{printable(str(archive.filename))}: none of its folders holds an image; {LAYOUT}")
    return dict(sorted(classes.items()))
