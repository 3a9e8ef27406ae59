"""`lca datasets`: the list, get and verify."""

import http.server
import json
import re
import threading

import pytest

import tiny
import trees
from lca.data import downloads
from lca.data.benchmarks import BENCHMARKS
from lca.data.sources import read_card


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LCA_DATA", raising=False)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A small vtab and a card that says so."""
    trees.shrink(monkeypatch, "vtab", 2, "revisitingcil", train=4, test=2)
    return trees.class_folders(tmp_path / "vtab", {"a": (2, 1), "b": (2, 1)})


def test_the_list_says_how_large_each_is(lca):
    text = " ".join(lca("datasets")[1].split())
    assert "200 classes, train / test images: official: 5,994 / 5,794; revisitingcil: 9,430 / 2,358." in text
    assert set(BENCHMARKS) <= set(lca("datasets")[1].split())


def test_verify_what_is_right(lca, small, tmp_path, monkeypatch):
    code, out, _ = lca("datasets", "verify", "vtab", small)
    assert code == 0
    assert out.splitlines() == [
        f"ok     layout: {small}, split revisitingcil",
        "ok     classes: 2",
        "ok     train images: 4",
        "ok     test images: 2",
    ]
    monkeypatch.setenv("LCA_DATA", str(tmp_path))
    assert lca("datasets", "verify", "vtab")[:2] == (0, out)
    assert "ok     content of 6 images" in lca("datasets", "verify", "vtab", "--images")[1]
    assert lca("datasets", "verify", "vtab", "--split", "revisitingcil")[0] == 0
    code, _, err = lca("datasets", "verify", "vtab", "--split", "official")
    assert (code, err) == (2, "error: vtab has no split 'official'; its splits: revisitingcil\n")


def test_verify_what_is_wrong(lca, small):
    (small / "test" / "b" / "000.png").write_text("broken")
    code, out, _ = lca("datasets", "verify", "vtab", small, "--images")
    assert code == 1
    assert re.search(r"^WRONG  content of 6 images: 1 cannot be read: .*test/b/000\.png", out, re.MULTILINE)
    (small / "test" / "b" / "000.png").unlink()
    code, out, _ = lca("datasets", "verify", "vtab", small)
    assert code == 1
    assert "WRONG  test: no images of 1 classes: b\n" in out
    assert "WRONG  test images: expected 2, got 1\n" in out
    assert out.endswith("2 things are not as the data set's card says\n")


def test_what_cannot_be_verified(lca, tmp_path):
    code, _, err = lca("datasets", "verify", "cifar1000", tmp_path)
    assert code == 2
    assert "none of the benchmarks; did you mean 'cifar100'" in err
    code, _, err = lca("datasets", "verify", "vtab", tmp_path / "gone")
    assert (code, err) == (2, f"error: there is no folder {tmp_path / 'gone'}\n")
    code, _, err = lca("datasets", "verify", "vtab")
    assert code == 2
    assert "Give its folder as `verify vtab PATH`, or set LCA_DATA" in err
    code, out, _ = lca("datasets", "verify", "vtab", tmp_path)
    assert code == 1
    assert "WRONG  layout: " in out
    assert "it holds nothing; expected" in out


def test_get_says_how_where_it_cannot(lca, tmp_path, monkeypatch):
    code, out, err = lca("datasets", "get", "omnibenchmark", "--to", tmp_path / "omni")
    assert (code, err) == (1, "")
    assert "https://github.com/zhoudw-zdw/RevisitingCIL" in out
    assert f"{tmp_path / 'omni'}/train/CLASS" in out
    code, out, err = lca("datasets", "get", "omnibenchmark")
    assert (code, err) == (1, "")
    assert "https://github.com/zhoudw-zdw/RevisitingCIL" in out
    assert "data/omnibenchmark/train/CLASS" in out
    code, out, err = lca("datasets", "get", "cifar100")
    assert (code, err) == (1, "")
    assert "is downloaded from https://www.cs.toronto.edu/" in out
    assert "lca datasets get cifar100 --to data/cifar100" in out
    assert lca("datasets", "get", "cub200", "--split", "x")[0] == 2
    monkeypatch.setenv("LCA_DATA", str(tmp_path / "all"))
    assert f"{tmp_path}/all/omnibenchmark/train/CLASS" in lca("datasets", "get", "omnibenchmark")[1]
    assert "split revisitingcil" in lca("datasets", "get", "cub200", "--split", "revisitingcil")[1]
    assert lca("datasets", "get", "nothing")[0] == 2
    assert not (tmp_path / "all").exists()


def test_get_what_is_there(lca, small):
    code, out, err = lca("datasets", "get", "vtab", "--to", small)
    assert (code, err) == (0, f"vtab is in {small} already\n")
    assert out.splitlines()[-1] == f"use it as data.source=vtab:{small}"
    assert lca("datasets", "get", "vtab", "--to", small, "--quiet") == (0, out, "")


def test_get_from_a_server(lca, tmp_path, monkeypatch):
    """Nothing is at the address; the disk is full."""
    monkeypatch.setattr(downloads, "WAIT", 0.01)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "there.tgz").write_bytes(b"x" * 100_000)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(tmp_path / "site"))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        entry = read_card("cub200")["download"]
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            monkeypatch.setitem(entry, "url", f"{address}/gone.tgz")
            gone = lca("datasets", "get", "cub200", "--to", "data")
            monkeypatch.setitem(entry, "url", f"{address}/there.tgz")
            wrong = lca("datasets", "get", "cub200", "--to", "data")
            left = (tmp_path / "data").exists()
            (tmp_path / "data").mkdir()
            (tmp_path / "data" / "CUB_200_2011.tgz.part").symlink_to("/dev/full")
            full = lca("datasets", "get", "cub200", "--to", "data")
        finally:
            server.shutdown()
            thread.join()
    assert gone[0] == 2
    assert f"error: the server answered 404 (File not found) for {address}/gone.tgz" in gone[2]
    assert "The page of the data set is https://www.vision.caltech.edu/" in gone[2]
    assert wrong[0] == 2
    assert "expected 97eceeb196236b17998738112f37df78" in wrong[2]
    assert not left, "neither has left anything"
    assert full[0] == 74
    assert "data/CUB_200_2011.tgz.part: No space left on device. Make room" in full[2]


def test_a_run_on_a_benchmark(lca, tmp_path, monkeypatch):
    trees.cub(tmp_path / "birds", {f"{number:03}.bird": (3, 2) for number in (1, 2, 3, 4)})
    trees.class_folders(tmp_path / "birds" / "cub", {f"{number:03}.bird": (2, 1) for number in (1, 2, 3, 4)})
    words = [
        "run",
        "simplecil",
        "--set",
        "data.source=cub200:birds",
        "--set",
        "data.tasks=2",
        "--set",
        "device=cpu",
        "-q",
    ]
    with tiny.tiny_backbone():
        code, _, err = lca(*words)
        assert code == 2
        assert "several splits" in err
        for split, count in (("official", 8), ("revisitingcil", 4)):
            code, _, err = lca(*words, "--set", f"data.split={split}", "--out", split)
            assert code == 0
            assert "is not the cub200 of the literature" in err  # also when quiet
            results = json.loads((tmp_path / split / "results.json").read_text())
            assert results["data"]["source"] == f"cub200-{split}"
            assert sum(results["data"]["test_images"]) == count
