"""Our contracts on a method, a tuner or a merge operator of your own, as in `docs/add-a-method.md`.

    from lca.testing import check_method
    check_method(MyMethod)          # or its name, if it is registered or its package installed

What is not kept is an AssertionError that names the contract and says what was expected. With pytest a test for each is
made by `@pytest.mark.parametrize("contract", METHOD_CONTRACTS)` and `check_method(MyMethod, contracts=[contract])`.
"""

from lca.testing.methods import METHOD_CONTRACTS, check_method
from lca.testing.operators import OPERATOR_CONTRACTS, check_operator
from lca.testing.tuners import TUNER_CONTRACTS, check_tuner

__all__ = ["METHOD_CONTRACTS", "OPERATOR_CONTRACTS", "TUNER_CONTRACTS", "check_method", "check_operator", "check_tuner"]
