"""Contract 4: while a task is learnt, nothing of earlier tasks can be read."""

from contextlib import contextmanager

import pytest
import torch

import tiny
from lca.data.images import ClosedError
from lca.data.streams import Stream
from lca.methods import methods
from lca.methods._base import Step
from lca.runs.experiment import run
from lca.testing.methods import watched_batches

HOARDS = {
    "the images": lambda task: task.train,
    "some of the images": lambda task: task.train.subset(torch.tensor([0, 2])),
    "a class": lambda task: task.train.of_classes(task.classes[:1]),
    "a part of a part": lambda task: task.train.of_classes(task.classes[:1]).subset(torch.tensor([1])),
}


@pytest.fixture(autouse=True)
def _tiny():
    with tiny.tiny_backbone():
        yield


@pytest.mark.parametrize("hoard", HOARDS)
def test_a_method_that_hoards_images_fails(tmp_path, hoard):
    hoarded = []

    class Hoarder(methods["finetune"]):
        def steps(self, task, labels):
            yield from super().steps(task, labels)
            hoarded.append(HOARDS[hoard](task))
            yield Step("rehearse", lambda: {"images": float(sum(len(each.pixels) for each in hoarded))})

    with methods.standing_in("finetune", Hoarder), pytest.raises(ClosedError, match="a task that is over"):
        run(tiny.recipe(method="finetune"), tmp_path / "run")
    assert len(hoarded) == 2, "the first task may be read while it is learnt, but not during the second"


def test_only_joint_needs_all_data():
    assert [name for name in methods if methods[name].info.needs_all_data] == ["joint"]


@pytest.mark.parametrize("name", list(methods))
def test_a_run_gives_one_task_after_another_and_keeps_no_image(monkeypatch, tmp_path, name):
    """And so does every method, to which a run is nothing but lessons: see lca.testing."""
    given, opened = [], Stream._opened

    @contextmanager
    def watched(self, *args):
        with opened(self, *args) as task:
            assert held() == 0, "images of an earlier task are still held"
            given.append(task.classes)
            assert len(task.train) == 6 * len(task.classes)
            yield task

    monkeypatch.setattr(Stream, "_opened", watched)
    with watched_batches() as held:
        results = run(tiny.recipe(method=tiny.method_section(name)), tmp_path / "run")
        assert held() == 0
    order, sizes = results["data"]["class_order"], results["data"]["task_sizes"]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    one_by_one = [tuple(order[start : start + size]) for start, size in zip(starts, sizes, strict=True)]
    assert given == ([tuple(order)] if methods[name].info.needs_all_data else one_by_one)


@pytest.mark.parametrize("opened", ["open", "everything"])
def test_a_closed_task_cannot_be_read(opened):
    from lca.data.sources import load_source
    from lca.progress import Progress

    data = tiny.recipe(data={"validation": 0.3}).data
    stream = Stream(load_source(data, 5, 16, Progress()), data, 5)
    with stream.open(1) if opened == "open" else stream.everything() as task:
        assert len(task.train.pixels) == len(task.train.labels) > 0
        assert task.validation is not None
        assert len(task.validation) > 0
    for images in (task.train, task.validation):
        for read in ("pixels", "labels", "__len__"):
            with pytest.raises(ClosedError, match="a task that is over"):
                getattr(images, read)()
