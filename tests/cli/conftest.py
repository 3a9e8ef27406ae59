"""The command line in this process."""

import sys

import pytest

from lca.cli import main


@pytest.fixture
def lca(monkeypatch, capsys):
    """Run a command line; gives exit code, standard output and standard error."""

    def go(*words):
        monkeypatch.setattr(sys, "argv", ["lca", *(str(word) for word in words)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return caught.value.code or 0, out, err

    return go
