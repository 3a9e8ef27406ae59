"""The contracts of methods over everything registered: every method, tuner, head, merge operator, drift model and
second pass."""

import pytest

import tiny
from lca.methods import methods
from lca.testing import METHOD_CONTRACTS
from lca.testing.methods import SHAPES, MethodSubject

VARIANTS = tiny.variants()
OF_THE_METHOD_ALONE = {
    "stopped after any step and resumed it ends bit-equal",
    "it gets one task after another and keeps no image",
    "the passes are as many as said",
    *(f"it learns and answers on any transformer: {shape}" for shape in SHAPES),
}
"""What a tuner, head, operator or drift model has no part in."""
OF_HEADS_TOO = {
    "a class that comes alone does not get all answers",
    "what is renamed, forgotten or made one is taken back to the last bit",
}
"""What of all these only heads have a part in."""


def applies(contract, variant):
    of_the_method = "," not in variant or "second pass" in variant
    return of_the_method or (
        contract not in OF_THE_METHOD_ALONE and (contract not in OF_HEADS_TOO or variant.endswith("head"))
    )


@pytest.fixture(scope="module")
def subject(request):
    """All tests of one variant come one after another, so that a process teaches it once."""
    return MethodSubject(VARIANTS[request.param]["method"]["name"], VARIANTS[request.param])


CASES = [(variant, contract) for variant in VARIANTS for contract in METHOD_CONTRACTS if applies(contract, variant)]


@pytest.mark.filterwarnings("ignore:.*block")  # prompt layers beyond the last block are clipped
@pytest.mark.parametrize(("subject", "contract"), CASES, indirect=["subject"])
def test_a_method_keeps_the_contract(subject, contract):
    METHOD_CONTRACTS[contract](subject)


def test_what_applies_to_some_only_is_registered():
    assert set(METHOD_CONTRACTS) > OF_THE_METHOD_ALONE | OF_HEADS_TOO
    assert {name for name in VARIANTS if "," not in name} == set(methods)
