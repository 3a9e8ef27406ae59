"""The contracts of merge operators over everything registered; test_methods.py merges with every one of them."""

import pytest

from lca.merging.operators import operators
from lca.testing import METHOD_CONTRACTS, OPERATOR_CONTRACTS
from lca.testing.operators import OperatorSubject

OF_THE_OPERATOR_ALONE = [contract for contract in OPERATOR_CONTRACTS if not contract.endswith(tuple(METHOD_CONTRACTS))]


@pytest.mark.parametrize("contract", OF_THE_OPERATOR_ALONE)
@pytest.mark.parametrize("name", operators)
def test_an_operator_keeps_the_contract(name, contract):
    OPERATOR_CONTRACTS[contract](OperatorSubject(name, {}))
