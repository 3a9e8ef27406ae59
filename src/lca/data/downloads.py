"""Downloads of benchmarks: they go on where they broke off, and nothing is unpacked before its checksum is right.

Addresses, checksums and folders of CIFAR are torchvision's. Its helpers are not used: `download_url` begins anew after
every break, waits without a limit, falls back to plain http and leaves half a file under the name of the whole one;
`extract_archive` unpacks everything, in place, so that a full disk leaves half a folder; neither knows our progress.

What was received so far is in `FILE.part`; `FILE.part.json` says of which address and version. A file gets its name
when it is whole and checked, a folder when all of it is unpacked; members that lead out of it are refused.
"""

import errno
import hashlib
import lzma
import os
import shutil
import tarfile
import time
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import lca
from lca.data.benchmarks import benchmark_card, torchvision_set, tree_of
from lca.data.cache import json_in
from lca.data.sources import check_split
from lca.data.verification import Finding, verify
from lca.errors import LcaError
from lca.files import flush, hold, new_folder, write_json
from lca.progress import Progress

CHUNK = 1 << 18
TRIES = 5
"""Connections without any new byte before a download gives up."""
WAIT = 2.0
"""Seconds before the second of them; it doubles."""
TIMEOUT = 10.0
"""Seconds without a byte after which a connection counts as broken."""
TRIES_ALONE = 2
"""Connections before a download gives up that had no answer at all: there may be no network."""
REVISITING_CIL = """\
1. Download the archive of {what} that RevisitingCIL made (train and test folders); the link is on the page
     https://github.com/zhoudw-zdw/RevisitingCIL
   and leads to
     {archive}
2. Unpack it, so that PATH (or {inside}) holds train and test.
"""


@dataclass(frozen=True)
class Archive:
    """What can be downloaded of a benchmark: a tar file with one folder of interest."""

    split: str
    url: str
    md5: str | None
    file: str
    folder: str


class ByHand(LcaError):  # noqa: N818
    """A data set that has to be fetched by hand; the message says how."""


def archive_of(name: str, split: str | None = None) -> Archive | None:
    """The archive of a benchmark (of the given split), if there is one to download."""
    card = benchmark_card(name)
    entry = card.get("download")
    if entry is None:
        return None
    if "torchvision" in entry:
        kind = torchvision_set(name)
        archive = Archive("official", kind.url, kind.tgz_md5, kind.filename, kind.base_folder)
    else:
        archive = Archive(**entry)
    return archive if split in (None, archive.split) else None


def instructions(name: str, split: str, target: Path) -> str:
    """How to get a benchmark by hand."""
    card = benchmark_card(name)
    entry = card["splits"][split]
    if "archive" in entry:
        what, inside = card["title"].partition(",")[0], ", or ".join(f"PATH/{each}" for each in card["folders"])
        steps = REVISITING_CIL.format(what=what, archive=entry["archive"], inside=inside) + entry.get("get", "")
    else:
        steps = entry.get("get") or f"Download and unpack it from {card['page']}.\n"
    return (
        f"{name} (split {split}) cannot be downloaded by this command:\n{steps.replace('PATH', str(target))}"
        f"Expected in the end:\n{tree_of(card, split, target)}"
        f"Then check it: lca datasets verify {name} {target}\n"
        f"Terms: {card['licence']}. Page: {card['page']}"
    )


def how_to_get(name: str, split: str | None) -> str:
    """What `get` would do, or what has to be done by hand, for who has not named a folder yet."""
    card = benchmark_card(name)
    check_split(name, split)
    archive, target = archive_of(name, split), Path("data", name)
    wanted = archive.split if archive else split or next(iter(card["splits"]))
    if archive is None:
        return instructions(name, wanted, target)
    return (
        f"{name} (split {wanted}) is downloaded from {archive.url}\n"
        f"Say where to:\n  lca datasets get {name} --to {target}\n"
        "or name the folder of all data sets: LCA_DATA=data\n"
        f"Expected in the end:\n{tree_of(card, wanted, target)}"
        f"Terms: {card['licence']}. Page: {card['page']}"
    )


def get(name: str, target: Path, split: str | None, progress: Progress) -> list[Finding]:
    """Download, check and unpack a benchmark, and verify it. What is there and right stays as it is."""
    card = benchmark_card(name)
    check_split(name, split)
    archive = archive_of(name, split)
    wanted = archive.split if archive else split or next(iter(card["splits"]))
    if target.is_dir():
        there = [*verify(name, target, wanted, progress)]
        if all(finding.fine for finding in there):
            progress.line(f"{name} is in {target} already")
            return there
    if archive is None:
        raise ByHand(instructions(name, wanted, target))
    new = not target.exists()
    with hold(target, f"another process is downloading into {target}; wait for it to finish"):
        try:
            _fetch_and_unpack(name, archive, target, progress)
        finally:
            if [*target.iterdir()] == [lock := target / ".lock"]:  # nothing was received
                lock.unlink()
                if new:
                    target.rmdir()
    return [*verify(name, target, wanted, progress)]


def _fetch_and_unpack(name: str, archive: Archive, target: Path, progress: Progress) -> None:
    folder = target / archive.folder
    if folder.exists():
        raise LcaError(
            f"{folder} is there, but is not whole: `lca datasets verify {name} {target}` says what is wrong. "
            "Remove it and give the command again, or choose another --to"
        )
    path = target / archive.file
    if not (path.exists() and archive.md5 is not None and _md5(path, progress) == archive.md5):
        if path.exists():
            aside = path.with_name(f"{path.name}.wrong")
            path.replace(aside)
            progress.warning(f"{path} is not the original archive (its checksum differs); it is now {aside.name}")
        try:
            fetch(archive.url, path, archive.md5, progress)
        except LcaError as error:
            raise LcaError(f"{error}\nThe page of the data set is {benchmark_card(name)['page']}") from error
    unpack(path, archive.folder, folder, progress)
    path.unlink()


def fetch(url: str, path: Path, md5: str | None, progress: Progress) -> None:
    """Download a file, going on with an earlier part; it gets its name when it is whole and its checksum is right."""
    part = path.with_name(path.name + ".part")
    try:
        _fetch_part(url, part, progress)
        if md5 is not None and (actual := _md5(part, progress)) != md5:
            _drop(part)
            raise LcaError(
                f"{url} has the MD5 {actual}, expected {md5}: the file was damaged on its way or is another one. It "
                "was removed; try again"
            )
        flush(part)
        part.replace(path)
        _drop(part)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        text = f"{os.strerror(errno.ENOSPC)}. Make room and give the same command again; it goes on"
        raise OSError(errno.ENOSPC, text, str(part)) from error


def _fetch_part(url: str, part: Path, progress: Progress) -> None:
    """Connect until all bytes are there."""
    failed, tries = 0, TRIES_ALONE
    while True:
        before = _size(part)
        try:
            if _receive(url, part, progress):
                return
            reason, tries = "the connection broke off", TRIES
        except HTTPError as error:
            if error.code not in (408, 429) and error.code < 500:
                raise LcaError(f"the server answered {error.code} ({error.reason}) for {url}") from None
            reason, tries = f"the server answered {error.code}", TRIES
        except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        received = _size(part)
        failed, tries = (1, TRIES) if received > before else (failed + 1, tries)
        if failed >= tries:
            kept = f". {received} bytes are kept in {part}; give the same command again to go on" if received else ""
            raise LcaError(f"{url} could not be downloaded: {reason}. Check the network{kept}")
        progress.line(f"{reason} after {received} bytes; trying again")
        time.sleep(WAIT * 2 ** (failed - 1))


def _receive(url: str, part: Path, progress: Progress) -> bool:
    """One connection; true when the file is whole."""
    note = _note(part)
    known = json_in(note)
    have = _size(part) if known.get("url") == url else 0
    headers = {"User-Agent": f"lca/{lca.__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if known.get("version"):
            headers["If-Range"] = known["version"]  # a file that has changed is sent from its beginning
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code != 416 or not have:
            raise
        if error.headers.get("Content-Range", "").endswith(f"/{have}"):  # nothing lies behind what we have
            return True
        _drop(part)
        return False
    with response:
        done = have if response.status == 206 else 0
        span = response.headers.get("Content-Range", "an unknown part")
        if done and not span.startswith(f"bytes {have}-"):
            raise LcaError(f"the server sent {span} of {url} instead of the rest; try again")
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        write_json(note, {"url": url, "version": "" if version.startswith("W/") else version})
        missing = response.length or 0  # None where the server does not say it
        if missing > shutil.disk_usage(part.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(part))
        what, total = f"downloading {url.rpartition('/')[2]} (kB)", (done + missing) // 1000
        with part.open("ab" if done else "wb") as file, progress.task(what, total) as advance:
            advance(done // 1000)
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                advance(done // 1000 - (done - len(chunk)) // 1000)
        return not response.length


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _drop(part: Path) -> None:
    for path in (part, _note(part)):
        path.unlink(missing_ok=True)


def _md5(path: Path, progress: Progress) -> str:
    digest, megabyte = hashlib.md5(usedforsecurity=False), 1 << 20
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(megabyte), b"")
        for chunk in progress.track(chunks, "checking (MB)", _size(path) // megabyte):
            digest.update(chunk)
    return digest.hexdigest()


def unpack(archive: Path, folder: str, target: Path, progress: Progress) -> None:
    """Unpack one folder of a tar file to `target`, which appears when all of it is there."""
    size = archive.stat().st_size
    try:
        with (
            new_folder(target) as beside,
            archive.open("rb") as file,
            tarfile.open(fileobj=file) as tar,
            progress.task(f"unpacking {archive.name} (kB)", size // 1000) as advance,
        ):
            done = 0
            for member in tar:
                top, _, rest = member.name.removeprefix("./").partition("/")
                if top == folder and rest:
                    tar.extract(member.replace(name=rest, deep=False), beside, filter="data")
                advance(file.tell() // 1000 - done)
                done = file.tell() // 1000
            if not any(beside.iterdir()):
                raise LcaError(f"{archive} holds no folder {folder}; it is another archive than the expected one")
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise LcaError(
            f"{archive} cannot be unpacked ({reason}): it is damaged or cut short. Remove it and give the command again"
        ) from error
