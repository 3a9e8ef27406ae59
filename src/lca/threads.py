"""How threads wait for one another, said to OpenMP before torch loads it.

Training and closed-form heads are made of short steps. A thread that spins while it waits for the next one takes its
core from whatever else runs: on a busy machine most of the time goes there. OpenMP reads the setting once, when torch
is imported, so `import lca` says it and imports no torch.
"""

import os
import platform
import sys
import warnings

SPINS = "1000"
"""How often a waiting thread looks again before it sleeps; GNU OpenMP's own number is in the billions."""


def let_waiting_threads_sleep() -> None:
    """Set `GOMP_SPINCOUNT`, unless the user has said how threads wait; a warning where torch has been imported."""
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS  # if only for the processes that are started from here
    if "torch" in sys.modules and platform.system() == "Linux":
        warnings.warn(
            "torch was imported before lca, too late to let its waiting threads sleep: on a busy machine lessons "
            f"take longer. Import lca first, or set GOMP_SPINCOUNT={SPINS} before Python starts",
            stacklevel=3,
        )
