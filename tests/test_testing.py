"""What does not keep a contract is caught by the kit, and told which contract that was."""

from unittest import SkipTest

import pytest
import torch

from lca.errors import LcaError
from lca.files import State
from lca.methods import methods
from lca.testing import METHOD_CONTRACTS, TUNER_CONTRACTS, check_method, check_tuner
from lca.testing.methods import MethodSubject
from lca.tuning import tuners

Good, GoodTuner = methods["linear_probe"], tuners["ssf"]


class OfTheBatch(Good):
    def logits(self, features, branch):
        return super().logits(features - features.mean(0), branch)


class Forgotten(Good):
    """Its state is not all there is to know."""

    def __init__(self, setting, options):
        super().__init__(setting, options)
        self.lessons = 0

    def finish_task(self):
        super().finish_task()
        self.lessons += 1

    def logits(self, features, branch):
        return super().logits(features, branch) * (1 + self.lessons)


class Hidden(Good):
    def storage(self, branch=None):
        return {"heads": 1}


class Cheap(Good):
    def expected_bytes(self, tasks, classes, images):
        return 1


class Slow(Good):
    def embed(self, views, part):
        return super().embed(views, part) + 0 * super().embed(views, part)


class Hoarder(Good):
    def __init__(self, setting, options):
        super().__init__(setting, options)
        self.hoard = []

    def features(self, images, *args, **options):
        self.hoard.append(images.batch(torch.tensor([0])))
        return super().features(images, *args, **options)


class Peeker(Good):
    """It reads what was closed."""

    def __init__(self, setting, options):
        super().__init__(setting, options)
        self.earlier = []

    def features(self, images, *args, **options):
        self.earlier.append(images)
        for each in self.earlier:
            len(each)
        return super().features(images, *args, **options)


class Random(Good):
    def state(self):
        state = super().state()
        return State({**state.parts, "chance": {"value": torch.rand(1)}}, state.meta)


class OfTwoClasses(Good):
    def features(self, images, *args, **options):
        if hasattr(images, "classes") and len(images.classes) < 2:
            raise ValueError("nothing to tell apart")
        return super().features(images, *args, **options)


BROKEN = {
    OfTheBatch: "a prediction does not depend on the batch",
    Forgotten: "saved and loaded it gives equal logits",
    Hidden: "a model is safetensors and JSON, and storage says its bytes",
    Cheap: "the bytes are foretold",
    Slow: "the passes are as many as said",
    Hoarder: "it gets one task after another and keeps no image",
    Peeker: "it gets one task after another and keeps no image",
    Random: "stopped after any step and resumed it ends bit-equal",
    OfTwoClasses: "tasks of any shape are learnt: one class first",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_method_is_caught(broken):
    with pytest.raises(AssertionError, match=f"method 'linear_probe' does not keep the contract '{BROKEN[broken]}'"):
        check_method(broken, contracts=[BROKEN[broken]])
    assert methods["linear_probe"] is Good
    with pytest.raises(AssertionError):
        check_method(broken)


def test_a_message_says_what_was_expected():
    with pytest.raises(AssertionError, match=r"bytes stored .* beside what expected_bytes says: expected 1, got \d+"):
        check_method(Cheap, contracts=["the bytes are foretold"])
    with pytest.raises(AssertionError, match="ValueError: nothing to tell apart"):
        check_method(OfTwoClasses, contracts=[BROKEN[OfTwoClasses]])


def test_a_sound_method_passes_by_class_and_by_name(monkeypatch):
    run = []
    for title, check in METHOD_CONTRACTS.items():
        monkeypatch.setitem(METHOD_CONTRACTS, title, lambda subject, t=title, c=check: (run.append(t), c(subject)))
    check_method(Good)
    assert run == list(METHOD_CONTRACTS)
    check_method("linear_probe", contracts=run[:2], tuning={"name": "none"})
    assert len(run) == len(METHOD_CONTRACTS) + 2


def test_sections_change_the_recipe():
    subject = MethodSubject("ranpac", {"method": {"projection": 32}, "training": {"epochs": 1}})
    assert subject.model().recipe.method.projection == 32
    assert subject.model().recipe.training.epochs == 1
    assert subject.model().recipe.training.batch_size == 8


class Silent(Good):
    def expected_bytes(self, tasks, classes, images):
        return None


def test_what_does_not_apply_is_passed_over():
    with pytest.raises(SkipTest, match="does not say how many bytes"):
        check_method(Silent, contracts=["the bytes are foretold"])
    check_method(Silent)


def test_an_unknown_contract_or_method_is_an_error():
    with pytest.raises(LcaError, match="no contract 'the bytes are foretol'; did you mean 'the bytes are foretold'"):
        check_method("im", contracts=["the bytes are foretol"])
    with pytest.raises(LcaError, match="unknown tuner 'ssff'; did you mean 'ssf'"):
        check_tuner("ssff")


class Leaving(GoodTuner):
    """Its docstring is a sentence."""

    def detach(self):
        pass


class Idle(GoodTuner):
    """Its docstring is a sentence."""

    def parameters(self):
        return {**super().parameters(), "idle": torch.nn.Parameter(torch.ones(2))}


class Drawn(GoodTuner):
    """Its docstring is a sentence."""

    def attach(self, vit, generator):
        super().attach(vit, generator)
        for parameter in super().parameters().values():
            parameter.data += torch.rand_like(parameter)


class Mute(GoodTuner):
    pass


BROKEN_TUNERS = {
    Leaving: "attached and detached it leaves the transformer as it was: plain",
    Idle: "every tuned tensor receives a gradient",
    Drawn: "attaching leaves the global generator alone",
    Mute: "the docstring begins with a line for lists",
}


@pytest.mark.parametrize("broken", BROKEN_TUNERS)
def test_a_broken_tuner_is_caught(broken):
    told = f"tuner 'ssf' does not keep the contract '{BROKEN_TUNERS[broken]}'"
    with pytest.raises(AssertionError, match=told):
        check_tuner(broken, contracts=[BROKEN_TUNERS[broken]])
    assert tuners["ssf"] is GoodTuner
    assert TUNER_CONTRACTS
