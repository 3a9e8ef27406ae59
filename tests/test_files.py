import errno
import fcntl
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest
import torch

import tiny
from lca import files
from lca.errors import LcaError
from lca.files import (
    State,
    check_part,
    has_state,
    hash_file,
    hash_json,
    hold,
    is_part,
    is_part_name,
    load_state,
    load_tensors,
    new_folder,
    read_json,
    read_manifest,
    save_state,
    save_tensors,
    tensor_bytes,
    write_atomic,
    write_json,
)


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def state(value=1.0, other=5.0):
    return State(
        {"a": {"x": torch.full((2, 3), value)}, "b/c": {"y": torch.tensor([other])}, "empty": {}},
        {"value": value, "names": ["ä", "b"]},
    )


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(LcaError, match=r"could not write .*No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_flushed_before_the_rename(tmp_path, monkeypatch):
    path, order = tmp_path / "file", []
    fsync, replace = os.fsync, type(path).replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("flush"), fsync(number)))
    monkeypatch.setattr(type(path), "replace", lambda one, two: (order.append("rename"), replace(one, two)))
    write_atomic(path, b"new")
    assert order == ["flush", "rename", "flush"]  # the last one flushes the folder


def test_json_is_readable_and_refuses_nan(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"ä": [1, 2.5, None]})
    assert read_json(path) == {"ä": [1, 2.5, None]}
    assert "ä" in path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"loss": float("nan")})
    assert read_json(path) == {"ä": [1, 2.5, None]}


def test_missing_and_damaged_json(tmp_path):
    with pytest.raises(LcaError, match="there is no file"):
        read_json(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"a": ')
    with pytest.raises(LcaError, match="not valid JSON"):
        read_json(tmp_path / "half.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(LcaError, match="not valid JSON"):
        read_json(tmp_path / "deep.json")
    with pytest.raises(LcaError, match=f"{tmp_path} cannot be read: Is a directory"):
        read_json(tmp_path)


def test_tensors_round_trip_also_when_not_contiguous(tmp_path):
    tensors = {"turned": torch.arange(6.0).reshape(2, 3).T, "half": torch.ones(2, dtype=torch.float16)}
    save_tensors(tmp_path / "t.safetensors", tensors)
    loaded = load_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert loaded["half"].dtype == torch.float16


def test_tensors_that_share_memory_are_written_each(tmp_path):
    tensor = torch.arange(4.0)
    save_tensors(tmp_path / "t.safetensors", {"one": tensor, "two": tensor, "part": tensor[:2]})
    loaded = load_tensors(tmp_path / "t.safetensors")
    assert torch.equal(loaded["one"], loaded["two"])
    assert loaded["part"].tolist() == [0, 1]


def test_missing_and_damaged_tensors(tmp_path):
    with pytest.raises(LcaError, match="there is no file"):
        load_tensors(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"not tensors at all")
    with pytest.raises(LcaError, match="not a readable safetensors file"):
        load_tensors(tmp_path / "bad.safetensors")


def test_a_state_round_trips(tmp_path):
    assert not has_state(tmp_path)
    save_state(tmp_path, state())
    assert has_state(tmp_path)
    loaded = load_state(tmp_path)
    assert loaded.meta == state().meta
    names = {part: sorted(tensors) for part, tensors in loaded.parts.items()}
    assert names == {"a": ["x"], "b/c": ["y"], "empty": []}
    assert torch.equal(loaded.parts["a"]["x"], state().parts["a"]["x"])


def test_bytes_by_part_are_the_tensor_bytes():
    assert state().bytes_by_part() == {"a": 24, "b/c": 4}


@pytest.mark.parametrize("failing_write", [0, 1, 2])
def test_a_save_that_fails_at_any_file_leaves_the_old_state(tmp_path, monkeypatch, failing_write):
    save_state(tmp_path, state(1.0, 5.0))
    replace, writes = type(tmp_path).replace, []

    def fail_at(one, two):
        writes.append(two)
        if len(writes) > failing_write:
            full_disk()
        return replace(one, two)

    monkeypatch.setattr(type(tmp_path), "replace", fail_at)
    with pytest.raises(LcaError, match="No space left"):
        save_state(tmp_path, state(2.0, 6.0))
    monkeypatch.undo()
    assert len(writes) == failing_write + 1
    loaded = load_state(tmp_path)
    assert loaded.meta["value"] == 1.0
    assert loaded.parts["a"]["x"][0, 0] == 1.0
    assert loaded.parts["b/c"]["y"][0] == 5.0
    save_state(tmp_path, state(2.0, 6.0))
    assert load_state(tmp_path).parts["b/c"]["y"][0] == 6.0
    assert len(list(tmp_path.iterdir())) == 4


def test_unchanged_parts_are_not_written_again_and_stale_ones_go(tmp_path):
    save_state(tmp_path, state(1.0, 5.0))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    save_state(tmp_path, state(1.0, 6.0))
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(after) == len(before) == 4
    kept = [name for name in before if after.get(name) == before[name]]
    assert sorted(name.partition("-")[0] for name in kept) == ["a", "empty"]


def test_a_damaged_part_is_detected(tmp_path):
    save_state(tmp_path, state())
    part = next(tmp_path.glob("a-*.safetensors"))
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(LcaError, match=f"{part.name} does not match the hash"):
        load_state(tmp_path)


def test_a_missing_part_is_named(tmp_path):
    save_state(tmp_path, state())
    part = next(tmp_path.glob("a-*.safetensors"))
    part.unlink()
    with pytest.raises(LcaError, match=f"there is no file .*{part.name}"):
        load_state(tmp_path)


def test_another_format_is_refused(tmp_path):
    save_state(tmp_path, state())
    manifest = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(LcaError, match="has format 99"):
        load_state(tmp_path)
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(LcaError, match="has format None"):
        load_state(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": None},
        {"meta": None},
        {"parts": ["a"], "meta": {}},
        {"parts": {"a": 3}, "meta": {}},
        {"parts": {}, "meta": "text"},
    ],
)
def test_a_manifest_that_lacks_something_was_damaged(tmp_path, change):
    write_json(tmp_path / "state.json", {"format": 2})
    with pytest.raises(LcaError, match=r"state\.json was changed or damaged"):
        read_manifest(tmp_path)
    save_state(tmp_path, state())
    write_json(tmp_path / "state.json", {**read_json(tmp_path / "state.json"), **change})
    with pytest.raises(LcaError, match=r"state\.json was changed or damaged"):
        load_state(tmp_path)


FOREIGN = (
    "../other-0123456789abcdef.safetensors",
    "sub/other-0123456789abcdef.safetensors",
    "sub\\other-0123456789abcdef.safetensors",
    "/etc/passwd",
    "..",
    "",
    "a\0b-0123456789abcdef.safetensors",
    "notes.txt",
    ".state.json.01234567.tmp",
)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_manifest_names_parts_in_its_folder_only(tmp_path, name):
    write_json(tmp_path / "state.json", {"format": 2, "parts": {"a": name}, "meta": {}})
    assert not is_part_name(name)
    with pytest.raises(LcaError, match=r"no part of a model.* was changed or damaged"):
        read_manifest(tmp_path)


def test_any_part_gets_a_name_of_a_part(tmp_path):
    save_state(tmp_path, State({"heads/a\\b/../c": {"x": torch.ones(1)}}))
    assert load_state(tmp_path).parts["heads/a\\b/../c"]["x"].item() == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_part_is_checked_by_its_name(tmp_path):
    save_state(tmp_path, state())
    part = read_manifest(tmp_path)[0]["a"]
    check_part(part, "the model")
    part.write_bytes(part.read_bytes() + b"x")
    with pytest.raises(LcaError, match=f"the model was changed or damaged: {part.name} does not match the hash"):
        check_part(part, "the model")
    part.unlink()
    with pytest.raises(LcaError, match=f"the model is not whole: there is no file {part.name}"):
        check_part(part, "the model")
    with pytest.raises(LcaError, match=r"the model cannot be read: .*: Not a directory"):
        check_part(Path("/dev/null") / part.name, "the model")


def test_a_reader_that_is_overtaken_by_a_writer_reads_again(tmp_path, monkeypatch):
    save_state(tmp_path, state(0.0, 0.0))
    values = iter([1.0, 2.0, 3.0])

    def overtaken(folder):
        found = read_manifest(folder)
        if (value := next(values, None)) is not None:
            save_state(folder, state(value, value))
        return found

    monkeypatch.setattr(files, "read_manifest", overtaken)
    loaded = load_state(tmp_path)
    assert loaded.meta["value"] == loaded.parts["a"]["x"][0, 0] == loaded.parts["b/c"]["y"][0] == 3.0


def test_a_part_that_goes_before_it_is_read(tmp_path, monkeypatch):
    save_state(tmp_path, state(0.0, 0.0))
    values, read = iter([1.0]), files.content_of

    def overtaken(path, limit, **options):
        if path.name.startswith("b") and (value := next(values, None)) is not None:
            save_state(tmp_path, state(value, value))
        return read(path, limit, **options)

    monkeypatch.setattr(files, "content_of", overtaken)
    assert load_state(tmp_path).parts["b/c"]["y"][0] == 1.0


def test_readers_beside_a_writer_always_see_one_whole_state(tmp_path):
    save_state(tmp_path, state(0.0, 0.0))
    done, saves = threading.Event(), []

    def write():
        while not done.is_set():
            saves.append(len(saves) % 2 + 1.0)  # back and forth: the same names come again
            save_state(tmp_path, state(saves[-1], saves[-1]))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        loads = 0
        while loads < 200 or (len(saves) < 20 and writer.is_alive()):
            loads += 1
            loaded = load_state(tmp_path)
            assert loaded.meta["value"] == loaded.parts["a"]["x"][0, 0] == loaded.parts["b/c"]["y"][0]
    finally:
        done.set()
        writer.join()
    assert len(saves) >= 20


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "folder"

    def fill_half():
        with new_folder(target) as beside:
            (beside / "file").write_text("half")
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        fill_half()
    assert list(target.parent.iterdir()) == []
    with new_folder(target) as beside:
        (beside / "file").write_text("whole")
        assert not target.exists()
    assert (target / "file").read_text() == "whole"
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_of_two_new_folders_the_first_stays(tmp_path):
    target = tmp_path / "folder"
    with new_folder(target) as slow:
        (slow / "file").write_text("slow")
        with new_folder(target) as fast:
            (fast / "file").write_text("fast")
    assert (target / "file").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_hashes(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert hash_file(tmp_path / "empty").startswith("e3b0c44298fc1c14")
    assert hash_json({"a": 1, "b": [2]}) == hash_json({"b": [2], "a": 1}) != hash_json({"a": 1, "b": [3]})


def test_saving_deletes_nobody_elses_files(tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    foreign = [folder / name for name in ("precious.safetensors", "weights-v2.safetensors", "notes.txt", ".hidden.tmp")]
    for path in foreign:
        path.write_bytes(b"mine")
    save_state(folder, State({"a": {"x": torch.zeros(2)}}))
    save_state(folder, State({"a": {"x": torch.ones(2)}}))
    assert all(path.read_bytes() == b"mine" for path in foreign)
    assert len(list(folder.glob("a-*.safetensors"))) == 1


def test_the_manifest_names_the_files_and_reads_no_tensor(tmp_path):
    save_state(tmp_path, state())
    for path in tmp_path.glob("*.safetensors"):
        path.chmod(0)
    files, meta = read_manifest(tmp_path)
    assert meta == state().meta
    assert set(files) == {"a", "b/c", "empty"}
    assert all(path.parent == tmp_path and path.is_file() for path in files.values())


def test_tensor_bytes_are_those_of_the_tensors(tmp_path):
    tensors = {"one": torch.zeros(3, 5), "half": torch.zeros(7, dtype=torch.float16), "none": torch.zeros(0, 4)}
    save_tensors(tmp_path / "t.safetensors", tensors)
    assert tensor_bytes(tmp_path / "t.safetensors") == 3 * 5 * 4 + 7 * 2
    save_tensors(tmp_path / "empty.safetensors", {})
    assert tensor_bytes(tmp_path / "empty.safetensors") == 0
    with pytest.raises(LcaError, match=r"none\.safetensors cannot be read"):
        tensor_bytes(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("heads--best-0123456789abcdef.safetensors", True),
        (".state.json.01234567.tmp", True),
        (".README.md.0a1b2c3d.tmp", True),
        ("weights-v2.safetensors", False),
        ("weights-0123456789ABCDEF.safetensors", False),
        ("state.json", False),
        ("README.md", False),
        (".hidden.tmp", False),
        (".probe.01234567.tmp", True),
    ],
)
def test_which_files_are_parts(tmp_path, name, ours):
    assert is_part(tmp_path / name) == ours


def holder(folder, say):
    """What the other process does."""
    with hold(folder, "busy"):
        say.send("held")
        time.sleep(60)


def test_a_folder_is_held_by_one_process_and_free_when_it_dies(tmp_path):
    folder = tmp_path / "deep" / "folder"
    hear, say = multiprocessing.Pipe(duplex=False)
    other = tiny.started(holder, folder, say, daemon=True)
    say.close()
    assert hear.recv() == "held"
    with pytest.raises(LcaError, match="wait for the other"), hold(folder, "wait for the other"):
        pytest.fail("held twice")
    other.kill()
    other.join()
    with hold(folder, "busy"):
        pass
    with hold(folder, "busy"):
        pass
    with pytest.raises(RuntimeError, match="inside"), hold(folder, "busy"):
        raise RuntimeError("inside")
    with hold(folder, "busy"):
        assert folder.is_dir()


def held(folder):
    with hold(folder, "busy"):
        return sorted(path.name for path in folder.iterdir())


def test_who_only_looks_keeps_nobody_from_holding_a_folder(tmp_path):
    """`is_held` locks for a moment; here that moment lasts."""
    lock = (tmp_path / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(0.2, lock.close).start()
    with hold(tmp_path, "busy"):
        assert lock.closed


def test_a_held_folder_holds_nothing_but_the_lock(tmp_path):
    assert held(tmp_path / "new") == [".lock"]


def test_a_folder_below_a_file_cannot_be_held(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LcaError, match=r"file/x cannot be used as a folder: Not a directory"):
        held(tmp_path / "file" / "x")
    with pytest.raises(LcaError, match=r"file cannot be used as a folder: File exists"):
        held(tmp_path / "file")
    with pytest.raises(LcaError, match=r"/dev/null/x cannot be used as a folder: Not a directory"):
        held(Path("/dev/null/x"))
    (tmp_path / "odd" / ".lock").mkdir(parents=True)
    with pytest.raises(LcaError, match=r"odd cannot be used as a folder: .*\.lock: Is a directory"):
        held(tmp_path / "odd")


def test_a_folder_that_takes_no_files_cannot_be_held(tmp_path):
    """/proc takes none even from root."""
    with pytest.raises(LcaError, match=r"/proc/self/x cannot be used as a folder: No such file"):
        held(Path("/proc/self/x"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write where the mode forbids it")
def test_a_read_only_folder_cannot_be_held(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".lock").touch()  # it may be opened: only the probe tells
    (tmp_path / "model").chmod(0o500)
    with pytest.raises(LcaError, match=r"nothing can be written in .*model: Permission denied"):
        held(tmp_path / "model")


def test_a_full_disk_is_noticed_before_the_work(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    monkeypatch.setattr(files, "new_file", lambda path, private: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(LcaError, match=r"nothing can be written in .*model: No space left on device"):
        held(folder)
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", full_disk)  # some file systems notice it only then
    with pytest.raises(LcaError, match=r"nothing can be written in .*model: No space left on device"):
        held(folder)
    monkeypatch.undo()
    assert held(folder) == [".lock"], "no probe is left, and the lock is free"
