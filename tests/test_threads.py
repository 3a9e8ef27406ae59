"""Threads that wait sleep soon, unless the user says otherwise or it is too late."""

import os
import subprocess
import sys

import pytest

from lca.threads import let_waiting_threads_sleep

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
    ids=["nothing", "how long", "how"],
)
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(own, expected):
    """In a fresh interpreter; whoever imports the package first gets no warning."""
    script = "import lca, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | own
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{expected} False\n", "")


def test_where_torch_was_imported_first_a_word_is_said(monkeypatch, recwarn):
    assert "torch" in sys.modules
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    with pytest.warns(UserWarning, match="torch was imported before lca, too late .* Import lca first"):
        let_waiting_threads_sleep()
    assert os.environ["GOMP_SPINCOUNT"] == "1000"
    let_waiting_threads_sleep()
    assert not recwarn.list, "once is enough"


def test_a_name_that_is_not_there_suggests_the_nearest():
    import lca

    with pytest.raises(AttributeError, match="did you mean 'ContinualClassifier'"):
        lca.ContinualClassifer  # noqa: B018
