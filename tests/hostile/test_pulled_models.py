"""A repository of a stranger's: bounded before it is downloaded, checked before it appears."""

import json
import os
import stat

import pytest
from attacks import reseal, with_value

from lca import LcaError
from lca.files import MANIFEST_LIMIT, hold, sealed
from lca.models import hub as hubs
from lca.models.hub import CARD_LIMIT, pull, push


@pytest.fixture
def repository(hub, folder, tmp_path):
    """The files of a pushed model, as the hub keeps them."""
    push(folder, "anna/digits", endpoint=hub)
    return tmp_path / "hub" / "anna" / "digits" / (tmp_path / "hub" / "anna" / "digits" / "main").read_text()


def refused(hub, tmp_path, message):
    with pytest.raises(LcaError, match=message) as caught:
        pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "model"]
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("state.json", MANIFEST_LIMIT + 1, r"state\.json has 16,777,217 bytes; at most 16,777,216 are downloaded"),
        ("README.md", CARD_LIMIT + 1, r"README\.md has 1,048,577 bytes; at most 1,048,576 are downloaded"),
    ],
)
def test_files_are_bounded(hub, repository, tmp_path, name, size, message):
    with (repository / name).open("ab") as file:
        file.write(b" " * (size - file.tell()))
    refused(hub, tmp_path, message)


def test_the_whole_is_bounded(hub, repository, tmp_path, monkeypatch):
    monkeypatch.setattr(hubs, "MODEL_LIMIT", 1000)
    refused(hub, tmp_path, r"all parts has [\d,]+ bytes; at most 1,000 are downloaded")


def test_a_model_that_knows_nothing_is_not_pulled(hub, repository, tmp_path):
    reseal(repository, lambda content: with_value(content, ("parts",), {}))
    refused(hub, tmp_path, "knows no class")


def test_what_does_not_match_its_hash_is_not_pulled(hub, repository, tmp_path):
    path = repository / "state.json"
    path.write_text(path.read_text().replace('"tasks": 2', '"tasks": 3'))
    refused(hub, tmp_path, "does not match the hash in it")


def test_what_is_out_of_bounds_is_not_pulled(hub, repository, tmp_path):
    reseal(repository, lambda content: with_value(content, ("meta", "temperatures"), {"lda": 0.0}))
    refused(hub, tmp_path, "anna/digits was changed or damaged: temperatures.lda")


def test_too_many_parts_are_not_pulled(hub, repository, tmp_path):
    content = json.loads((repository / "state.json").read_text())
    parts = {f"p{number}": f"p{number}-0123456789abcdef.safetensors" for number in range(10_001)}
    (repository / "state.json").write_text(json.dumps(sealed({"parts": parts, "meta": content["meta"]})))
    refused(hub, tmp_path, "names 10,001 parts; at most 10,000")


def test_what_was_pulled_is_for_its_owner(hub, repository, tmp_path):
    before = os.umask(0o022)
    try:
        pull("anna/digits", tmp_path / "theirs", endpoint=hub)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "theirs").iterdir()} == {0o600}


def test_a_path_of_thousands_of_folders_is_one_error(hub, repository, tmp_path):
    deep = tmp_path.joinpath(*["a"] * 2000)
    with pytest.raises(LcaError, match="more than 200 folders deep"):
        pull("anna/digits", deep, endpoint=hub)
    with pytest.raises(LcaError, match="more than 200 folders deep"), hold(deep, "busy"):
        pytest.fail("it was made")
    assert not (tmp_path / "a").exists()
