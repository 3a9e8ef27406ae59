"""The contracts of tuners over everything registered."""

import pytest

from lca.testing import TUNER_CONTRACTS
from lca.testing.parts import VITS
from lca.testing.tuners import TunerSubject
from lca.tuning import tuners
from parts import SMALL_TUNING


@pytest.fixture(params=[*tuners, "peft:ia3"])
def name(request):
    return request.param


@pytest.mark.parametrize("contract", TUNER_CONTRACTS)
def test_a_tuner_keeps_the_contract(name, contract):
    TUNER_CONTRACTS[contract](TunerSubject(name, SMALL_TUNING.get(name, {})))


@pytest.mark.parametrize("kind", VITS)
def test_what_is_folded_is_all_but_tokens_and_bottlenecks(name, kind):
    _, tuner = TunerSubject(name, SMALL_TUNING.get(name, {})).attached(kind)
    tuner.fold()
    assert bool(tuner.parameters()) == (name in {"adapter", "vpt", "prefix", "prompt"})
