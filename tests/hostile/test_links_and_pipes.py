"""No file of a model folder that is a link, a pipe or a device is opened, emptied, uploaded or waited for."""

import os
import stat
import time

import pytest
from attacks import load

import tiny
from lca import LcaError
from lca.files import check_part, hash_file, hold, is_held, load_tensors, read_manifest, save_state, write_atomic
from lca.models.hub import push

PARTS = (".lock", "state.json", "README.md", "heads")


def forget(folder):
    with tiny.tiny_backbone():
        return tiny.lca_command("forget", folder, "0")


def file_of(folder, name):
    return read_manifest(folder)[0]["heads"] if name == "heads" else folder / name


def put_in_place(path, kind, precious):
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "dangling link":
        path.symlink_to(precious.with_name("new"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "device", "folder"])
@pytest.mark.parametrize("name", PARTS)
def test_what_is_no_regular_file_is_refused(folder, tmp_path, name, kind, tries):
    precious = tmp_path / "precious"
    precious.write_bytes(b"years of work")
    put_in_place(file_of(folder, name), kind, precious)
    began = time.monotonic()
    if name == ".lock":
        with pytest.raises(LcaError, match=r"\.lock"):
            forget(folder)
        with pytest.raises(LcaError, match=r"\.lock"):
            is_held(folder)
    elif name != "README.md":
        with pytest.raises(LcaError):
            load(folder)
    with pytest.raises(LcaError) if name != ".lock" else pytest.raises(Exception, match=r"endpoint|hub|reached|log in"):
        push(folder, "anna/digits", endpoint="http://127.0.0.1:9", token="none")
    assert time.monotonic() - began < 10
    assert precious.read_bytes() == b"years of work"
    assert not precious.with_name("new").exists()
    tries["refused in one error"] += 1


def test_a_link_in_the_place_of_a_written_file_is_replaced(folder, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"years of work")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(precious)
    forget(folder)
    write_atomic(tmp_path / "model" / "extra", b"x")
    assert not (folder / "README.md").is_symlink()
    assert precious.read_bytes() == b"years of work"


def test_the_content_of_a_lock_stays(folder):
    (folder / ".lock").write_bytes(b"somebody wrote here")
    forget(folder)
    assert (folder / ".lock").read_bytes() == b"somebody wrote here"
    os.link(folder / "README.md", folder / "other")
    (folder / ".lock").unlink()
    os.link(folder / "other", folder / ".lock")  # another name of a file of mine
    with hold(folder, "busy"):
        assert is_held(folder)
    assert (folder / "other").stat().st_size > 100


def test_weights_of_my_own_may_be_links_but_no_pipes(folder, tmp_path):
    part = next(iter(read_manifest(folder)[0].values()))
    (tmp_path / "link.safetensors").symlink_to(part)
    os.mkfifo(tmp_path / "pipe")
    assert load_tensors(tmp_path / "link.safetensors").keys() == load_tensors(part).keys()
    assert hash_file(tmp_path / "link.safetensors") == hash_file(part)
    with pytest.raises(LcaError, match="no regular file"):
        load_tensors(tmp_path / "pipe")
    link = part.with_name(f"x{part.name}")
    link.symlink_to(part)
    with pytest.raises(LcaError, match="links are not followed"):
        check_part(link, "the model")


def modes(folder):
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize(("umask", "file", "inner"), [(0o022, "0o600", "0o700"), (0o277, "0o400", "0o500")])
def test_models_are_for_their_owner(model, tmp_path, umask, file, inner):
    before = os.umask(umask)
    try:
        if umask == 0o022:
            model.save(tmp_path / "model")
            forget(tmp_path / "model")
            save_state(tmp_path / "deep" / "state", model.state())
        else:  # what was asked for is not more than the umask lets through
            write_atomic(tmp_path / "file", b"", private=True)
            assert modes(tmp_path)["file"] == file
            return
    finally:
        os.umask(before)
    found = modes(tmp_path / "model")
    assert found.pop("model") == inner
    assert set(found.values()) == {file}
    assert modes(tmp_path / "deep")["state"] == inner
