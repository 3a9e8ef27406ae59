"""The processes of a sweep beside the one that was started."""

import os
import subprocess
import sys

import pytest

CHILD = """
import os, subprocess
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.cpu_count = lambda: 64
import torch
from lca.cli.runs import _helpers

class Helper:
    def __init__(self, command, env, stdout):
        print(env["OMP_NUM_THREADS"])
    def wait(self):
        pass

subprocess.Popen = Helper
with _helpers(2):
    print(torch.get_num_threads())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be kept to some cores here")
def test_workers_share_the_cores_they_may_use_not_those_of_the_machine():
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    found = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "1", "1"]
