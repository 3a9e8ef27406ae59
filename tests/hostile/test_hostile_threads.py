"""One classifier and several threads: each reads one state, whole, and a change is unmoved by its readers."""

import copy
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tiny
from lca.data.decoding import read_together
from lca.progress import Progress
from lca.turns import Together

KINDS = {
    "lora": {},
    "full": {"tuning": {"name": "full"}},
    "prompts inside": {"method": tiny.method_section("l2p")},
    "two passes": {"method": {"name": "im", "second_pass": "frozen", "align": ["lda"]}},
}
NEW = {"7": 6, "8": 6}


def model_of(kind, **changes):
    return tiny.taught(tiny.classifier(tiny.recipe(KINDS[kind], training={"epochs": 3}, **changes)), [{"0": 6, "1": 6}])


def answers(model):
    return [(answer.label, answer.probabilities) for answer in model._answers(asked(), None, 99.0)]


def asked():
    return tiny.images({"0": 2, "7": 2}, skip=10).pixels


def lessons_read(model, change):
    """The answers of three threads that ask for as long as a change lasts, which each begins before."""
    ended, asking, found = threading.Event(), threading.Barrier(4), []

    def ask():
        torch.set_num_threads(1)
        found.append(answers(model))
        asking.wait()
        while not ended.is_set():
            found.append(answers(model))

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(ask) for _ in range(3)]
        asking.wait()
        try:
            change()
        finally:
            ended.set()
        for reader in readers:
            reader.result()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_who_reads_during_a_lesson_gets_the_old_answers_or_the_new_and_moves_nothing(kind):
    model, alone = model_of(kind), model_of(kind)
    before = answers(model)
    found = lessons_read(model, lambda: model.learn(tiny.task(1, NEW)))
    alone.learn(tiny.task(1, NEW))
    after = answers(alone)
    assert before != after
    assert found.count(before) > 3  # beyond the first answer of each
    assert all(each in (before, after) for each in found)
    assert answers(model) == after
    ours, theirs = model.state(), alone.state()
    for part, tensors in theirs.parts.items():
        assert all(torch.equal(ours.parts[part][name], tensor) for name, tensor in tensors.items()), part


def test_within_a_change_its_own_thread_sees_it_and_others_all_of_the_model_from_before(tmp_path):
    model = model_of("lora")
    before = answers(model)

    def elsewhere(work):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result(60)

    def interrupted():
        with model._change():
            model.method.forget(1)
            model.classes.remove("1")
            assert answers(model) != before
            assert elsewhere(lambda: answers(model)) == before
            assert elsewhere(lambda: model.state().meta["classes"]) == ["0", "1"]
            assert elsewhere(lambda: model.undoable) == 1
            elsewhere(lambda: model.save(tmp_path / "model"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert answers(model) == before
    with tiny.tiny_backbone():
        loaded = type(model).load(tmp_path / "model")
    assert answers(loaded) == before
    assert loaded.undoable == 1


def test_after_a_change_the_stand_in_is_gone_and_without_a_reader_there_is_none():
    model = model_of("lora")
    made = []
    twin = model.twin
    model.twin = lambda state: made.append(1) or twin(state)
    model.rename("0", "zero")
    assert not made
    lessons_read(model, lambda: model.learn(tiny.task(1, NEW)))
    assert made == [1]
    assert model.turns._stand_in is None


def test_exact_mode_stays_on_until_its_last_thread_has_left():
    compute = model_of("lora", exact=True).compute
    first, second = compute.determinism(), compute.determinism()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.are_deterministic_algorithms_enabled()
    second.__exit__(None, None, None)
    assert not torch.are_deterministic_algorithms_enabled()


def test_threads_that_decode_leave_the_filters_of_warnings_as_they_were(photo):
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: read_together([photo] * 3, 16, Progress()), range(12)))
    assert warnings.filters == before


@pytest.fixture
def photo(tmp_path):
    from PIL import Image

    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_a_shared_context_ends_with_its_last_user_also_after_errors():
    events = []

    class Context:
        def __enter__(self):
            events.append("in")

        def __exit__(self, *_):
            events.append("out")

    together = Together(Context)

    def fails():
        with together.entered():
            with together.entered():
                pass
            assert events == ["in"]
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert events == ["in", "out"]
    with together.entered():
        assert events == ["in", "out", "in"]


def test_a_classifier_can_be_copied():
    model = model_of("lora")
    assert answers(copy.deepcopy(model)) == answers(model)
