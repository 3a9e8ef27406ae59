"""Downloads from a server of our own that breaks off, lies and fails."""

import errno
import hashlib
import io
import re
import shutil
import socket
import tarfile
import threading
from collections import deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import URLError

import numpy as np
import pytest
from torchvision import datasets as torchvision_sets

import trees
from lca.data import downloads
from lca.data.benchmarks import BENCHMARKS
from lca.data.downloads import ByHand, archive_of, fetch, get, instructions, unpack
from lca.data.sources import read_card
from lca.errors import LcaError
from lca.files import hold
from lca.progress import Progress

CONTENT = np.random.RandomState(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves one file. `plan` says what happens to the next connections; afterwards all goes well."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.version, self.ranges, self.length, self.shift = CONTENT, '"1"', True, True, 0
        self.plan, self.asked = deque(), []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/birds.tgz"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        plan = server.plan.popleft() if server.plan else None
        if isinstance(plan, str):
            self.send_error(int(plan))
            return
        content, start = server.content, 0
        if server.ranges and wanted and self.headers.get("If-Range") in (None, server.version):
            start = int(wanted.removeprefix("bytes=").partition("-")[0]) + server.shift
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(len(content) - start))
        if server.version:
            self.send_header("ETag", server.version)
        self.end_headers()
        stop = len(content) if plan is None else plan  # a number: break off there
        self.wfile.write(content[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(downloads, "WAIT", 0.01)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "birds.tgz"


class Told(Progress):
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def break_off(server, path, monkeypatch, at):
    """A download that gave up after the first connection; returns what it said."""
    server.plan.append(at)
    with monkeypatch.context() as patch:
        patch.setattr(downloads, "TRIES", 1)
        with pytest.raises(LcaError) as caught:
            fetch(server.url, path, MD5, Progress())
    return str(caught.value)


# one file


def test_a_file_comes_whole(server, path):
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == [path.name]
    assert server.asked == [None]


def test_the_bytes_are_counted(server, path):
    class Counted(Progress):
        def __init__(self):
            self.totals, self.done = {}, {}

        @contextmanager
        def task(self, what, total):
            self.totals[what], self.done[what] = total, self.done.get(what, 0)

            def advance(units):
                self.done[what] += units

            yield advance

    counted = Counted()
    fetch(server.url, path, MD5, counted)
    assert counted.totals == {"downloading birds.tgz (kB)": 300, "checking (MB)": 0}
    assert counted.done == {"downloading birds.tgz (kB)": 300, "checking (MB)": 1}


def test_a_broken_connection_is_taken_up_where_it_broke(server, path):
    server.plan.extend([100_000, 200_000])
    told = Told()
    fetch(server.url, path, MD5, told)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=200000-"]
    assert [line.partition(" bytes")[0].rpartition(" ")[2] for line in told.lines] == ["100000", "200000"]


def test_a_later_command_goes_on(server, path, monkeypatch):
    said = break_off(server, path, monkeypatch, 120_000)
    assert re.search(r"120000 bytes are kept in .*birds\.tgz\.part; give the same command", said)
    assert not path.exists()
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=120000-"
    assert names(path.parent) == [path.name]


def test_it_gives_up_after_several_tries_without_a_byte(server, path, monkeypatch):
    monkeypatch.setattr(downloads, "TRIES", 3)
    server.plan.extend([0] * 10)
    with pytest.raises(LcaError, match="could not be downloaded"):
        fetch(server.url, path, MD5, Progress())
    assert len(server.asked) == 3


def test_a_part_of_another_address_or_version_is_not_used(server, path, monkeypatch):
    part = path.with_name("birds.tgz.part")
    part.write_bytes(b"x" * 1000)  # nobody knows of what
    fetch(server.url, path, MD5, Progress())
    assert server.asked == [None]
    break_off(server, path, monkeypatch, 1000)
    server.content, server.version = CONTENT[::-1], '"2"'
    fetch(server.url, path, None, Progress())
    assert server.asked[-1] == "bytes=1000-"
    assert path.read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_begins_anew(server, path):
    server.ranges = False
    server.plan.append(100_000)
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT


def test_a_server_that_does_not_say_how_much_there_is(server, path):
    server.length = False
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT


def test_a_server_that_sends_another_part(server, path, monkeypatch):
    break_off(server, path, monkeypatch, 1000)
    server.shift = 1
    with pytest.raises(LcaError, match=r"sent bytes 1001-299999/300000 of http.* instead of the rest"):
        fetch(server.url, path, MD5, Progress())


def test_a_part_that_is_whole_already(server, path, monkeypatch):
    break_off(server, path, monkeypatch, 299_999)
    part = path.with_name("birds.tgz.part")
    part.write_bytes(CONTENT)
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=300000-"


def test_a_part_that_is_too_long_is_thrown_away(server, path, monkeypatch):
    break_off(server, path, monkeypatch, 1000)
    path.with_name("birds.tgz.part").write_bytes(CONTENT + b"more")
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, path):
    with pytest.raises(LcaError, match=rf"has the MD5 {MD5}, expected 0000"):
        fetch(server.url, path, "0000", Progress())
    assert names(path.parent) == []


def test_a_part_that_was_changed_does_not_pass_the_checksum(server, path, monkeypatch):
    break_off(server, path, monkeypatch, 1000)
    path.with_name("birds.tgz.part").write_bytes(b"x" * 1000)
    with pytest.raises(LcaError, match=f"expected {MD5}"):
        fetch(server.url, path, MD5, Progress())
    assert names(path.parent) == []
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT


def test_a_404_is_not_tried_again(server, path):
    server.plan.append("404")
    with pytest.raises(LcaError, match=r"the server answered 404 \(Not Found\) for http"):
        fetch(server.url, path, MD5, Progress())
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(server, path):
    server.plan.extend(["503", "429"])
    fetch(server.url, path, MD5, Progress())
    assert len(server.asked) == 3


NOBODY = [
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "refused"),
    (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "name resolution"),
    (OSError(errno.ENETUNREACH, "Network is unreachable"), "unreachable"),
    (TimeoutError("timed out"), "timed out"),
]


@pytest.mark.parametrize(("error", "word"), NOBODY, ids=[word for _, word in NOBODY])
def test_no_network_is_said_within_seconds(path, monkeypatch, error, word):
    waited, tried = [], []

    def nobody(*_, **__):
        tried.append(1)
        raise URLError(error)

    monkeypatch.setattr(downloads, "urlopen", nobody)
    monkeypatch.setattr(downloads.time, "sleep", waited.append)
    with pytest.raises(LcaError, match=rf"could not be downloaded: .*{word}.*Check the network"):
        fetch("https://example.org/birds.tgz", path, MD5, Progress())
    assert len(tried) == 2
    assert sum(waited) <= 2
    assert names(path.parent) == []


def test_nobody_at_an_address(path, monkeypatch):
    monkeypatch.setattr(downloads, "WAIT", 0.01)
    with pytest.raises(LcaError, match=r"could not be downloaded: .*refused.*Check the network"):
        fetch("http://127.0.0.1:1/birds.tgz", path, MD5, Progress())
    assert names(path.parent) == []


def test_a_network_that_goes_away_is_waited_for(server, path, monkeypatch):
    """Once there was an answer, a failure to connect is no longer taken for the end."""
    server.plan.append(120_000)
    plain, tried = downloads.urlopen, []

    def sometimes(*given, **options):
        tried.append(1)
        if 1 < len(tried) < 5:
            raise URLError(OSError(errno.ENETUNREACH, "Network is unreachable"))
        return plain(*given, **options)

    monkeypatch.setattr(downloads, "urlopen", sometimes)
    fetch(server.url, path, MD5, Progress())
    assert path.read_bytes() == CONTENT
    assert len(tried) == 5


def test_a_full_disk(server, path, monkeypatch):
    part = path.with_name("birds.tgz.part")
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="Make room and give the same command again") as caught:
        fetch(server.url, path, MD5, Progress())
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(part))
    assert not path.exists()
    part.unlink()
    usage = shutil.disk_usage(path.parent)._replace(free=299_999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="Make room"):
        fetch(server.url, path, MD5, Progress())
    assert not part.exists()  # seen before anything came


# archives


def pack(tmp_path, *folders):
    """The content of a .tgz of folders."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for folder in folders:
            tar.add(folder, folder.name)
    return packed.getvalue()


def test_only_the_folder_is_unpacked(tmp_path):
    for name in ("birds", "other"):
        trees.paint(tmp_path / "made" / name / "a" / "1.png")
    archive = tmp_path / "x.tgz"
    archive.write_bytes(pack(tmp_path, tmp_path / "made" / "other", tmp_path / "made" / "birds"))
    unpack(archive, "birds", tmp_path / "to" / "birds", Progress())
    assert names(tmp_path / "to") == ["birds"]
    assert (tmp_path / "to" / "birds" / "a" / "1.png").is_file()
    with pytest.raises(LcaError, match="holds no folder fish"):
        unpack(archive, "fish", tmp_path / "to" / "fish", Progress())
    assert names(tmp_path / "to") == ["birds"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_archive_leaves_nothing(tmp_path, share):
    for number in range(30):
        path = tmp_path / "birds" / f"{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(np.random.RandomState(number).bytes(5000))
    content = pack(tmp_path, tmp_path / "birds")
    archive = tmp_path / "x.tgz"
    archive.write_bytes(content[: int(share * len(content))])
    with pytest.raises(LcaError, match=r"x\.tgz cannot be unpacked .*damaged or cut short"):
        unpack(archive, "birds", tmp_path / "to" / "birds", Progress())
    assert names(tmp_path / "to") == []


def test_an_archive_cannot_write_elsewhere(tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("birds/../../escaped"), io.BytesIO())
    archive = tmp_path / "x.tgz"
    archive.write_bytes(packed.getvalue())
    with pytest.raises(LcaError, match="cannot be unpacked"):
        unpack(archive, "birds", tmp_path / "to" / "birds", Progress())
    assert names(tmp_path) == ["to", "x.tgz"]
    assert names(tmp_path / "to") == []


# benchmarks


def test_what_can_be_downloaded():
    assert {name for name in BENCHMARKS if archive_of(name)} == {"cifar10", "cifar100", "cub200"}
    kind = torchvision_sets.CIFAR100
    assert archive_of("cifar100").md5 == kind.tgz_md5
    assert archive_of("cifar100").url == kind.url
    assert archive_of("cub200", "revisitingcil") is None
    assert archive_of("cub200", "official") == archive_of("cub200")
    for name in BENCHMARKS:
        for split in read_card(name)["splits"]:
            if archive_of(name, split) is None:
                text = instructions(name, split, "/data")
                assert "PATH" not in text
                assert "https://" in text
                assert f"lca datasets verify {name} /data" in text


@pytest.fixture
def birds(server, tmp_path, monkeypatch):
    """A server with a small CUB, and a card that says so."""
    trees.cub(tmp_path / "made", {"001.Albatross": (2, 1), "002.Bobolink": (2, 1)})
    server.content = pack(tmp_path, tmp_path / "made" / "CUB_200_2011")
    trees.shrink(monkeypatch, "cub200", 2, "official", train=4, test=2)
    changes = {"url": server.url, "md5": hashlib.md5(server.content).hexdigest()}
    monkeypatch.setitem(read_card("cub200"), "download", {**read_card("cub200")["download"], **changes})
    return server


def test_get_cub(birds, tmp_path):
    target, told = tmp_path / "data", Told()
    assert all(finding.fine for finding in get("cub200", target, None, told))
    assert names(target) == [".lock", "CUB_200_2011"]
    asked = len(birds.asked)
    assert all(finding.fine for finding in get("cub200", target, None, told))
    assert len(birds.asked) == asked
    assert told.lines == [f"cub200 is in {target} already"]


def test_get_goes_on(birds, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "TRIES", 1)
    birds.plan.append(500)
    with pytest.raises(
        LcaError, match=r"500 bytes are kept .*\nThe page of the data set is https://www\.vision\.caltech"
    ):
        get("cub200", tmp_path / "data", None, Progress())
    get("cub200", tmp_path / "data", None, Progress())
    assert birds.asked[-1] == "bytes=500-"


def test_get_does_not_trust_what_it_finds(birds, tmp_path, monkeypatch):
    target = tmp_path / "data"
    target.mkdir()
    (target / "CUB_200_2011.tgz").write_bytes(birds.content[:-50])  # half of a download by other means
    assert all(finding.fine for finding in get("cub200", target, None, Progress()))
    (target / "CUB_200_2011" / "images" / "002.Bobolink" / "image_0000.png").unlink()
    with pytest.raises(
        LcaError, match=r"CUB_200_2011 is there, but is not whole: .*Remove it and give the command again"
    ):
        get("cub200", target, None, Progress())


def test_get_with_a_disk_that_fills_while_unpacking(birds, tmp_path, monkeypatch):
    target = tmp_path / "data"

    def full(self, member, path, **_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extract", full)
        with pytest.raises(OSError, match="No space left"):
            get("cub200", target, None, Progress())
    assert names(target) == [".lock", "CUB_200_2011.tgz"]
    asked = len(birds.asked)
    assert all(finding.fine for finding in get("cub200", target, None, Progress()))
    assert len(birds.asked) == asked  # the archive was right


def test_one_download_at_a_time(birds, tmp_path):
    with hold(tmp_path / "data", ""), pytest.raises(LcaError, match="another process is downloading"):
        get("cub200", tmp_path / "data", None, Progress())


def test_get_cifar_as_torchvision_knows_it(server, tmp_path, monkeypatch):
    trees.cifar(tmp_path / "made", monkeypatch, train=5, test=2)
    server.content = pack(tmp_path, tmp_path / "made" / "cifar-100-python")
    monkeypatch.setattr(torchvision_sets.CIFAR100, "url", server.url)
    with pytest.raises(LcaError, match=f"expected {torchvision_sets.CIFAR100.tgz_md5}"):
        get("cifar100", tmp_path / "data", None, Progress())
    assert not (tmp_path / "data").exists(), "nothing came"
    (tmp_path / "data").mkdir()
    with pytest.raises(LcaError, match=f"expected {torchvision_sets.CIFAR100.tgz_md5}"):
        get("cifar100", tmp_path / "data", None, Progress())
    assert names(tmp_path / "data") == [], "a folder that was there stays"
    monkeypatch.setattr(torchvision_sets.CIFAR100, "tgz_md5", hashlib.md5(server.content).hexdigest())
    trees.shrink(monkeypatch, "cifar100", 100, "official", train=500, test=200, per_class={"train": 5, "test": 2})
    findings = get("cifar100", tmp_path / "data", None, Progress())
    assert all(finding.fine for finding in findings), findings
    assert names(tmp_path / "data") == [".lock", "cifar-100-python"]


def test_what_has_to_be_fetched_by_hand(tmp_path, monkeypatch):
    with pytest.raises(ByHand, match=r"imagenet_a \(split revisitingcil\) cannot be downloaded by this command"):
        get("imagenet_a", tmp_path / "data", None, Progress())
    assert not (tmp_path / "data").exists()
    with pytest.raises(ByHand, match=r"cub200 \(split revisitingcil\)"):
        get("cub200", tmp_path / "data", "revisitingcil", Progress())
    trees.class_folders(tmp_path / "data", {"a": (2, 1), "b": (2, 1)})
    trees.shrink(monkeypatch, "vtab", 2, "revisitingcil", train=4, test=2)
    assert all(finding.fine for finding in get("vtab", tmp_path / "data", None, Progress()))
    with pytest.raises(LcaError, match="vtab has no split 'x'"):
        get("vtab", tmp_path / "data", "x", Progress())
