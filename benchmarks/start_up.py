"""How long a fresh Python takes to import the package and to print the command's help.

The yardstick is `import torch, timm`, which any program that touches a model has to pay; `import lca` does not pay it.
A bare interpreter is given as well, since all of these contain one.
"""

import subprocess
import sys
from dataclasses import replace

from measuring import Agreement, Comparison, Settings, Work, time_in_turn

SUBJECT = "start-up"
YARDSTICK = "import torch, timm"


CASES: dict[str, list[str]] = {
    "bare interpreter": ["-c", "pass"],
    "import lca": ["-c", "import lca"],
    "lca --help": ["-m", "lca", "--help"],
}


def compare(settings: Settings) -> list[Comparison]:
    settings = replace(settings, patience=5 * settings.patience)  # one repeat takes seconds
    works = [_python(*arguments) for arguments in CASES.values()]
    *ours, yardstick = time_in_turn([*works, _python("-c", YARDSTICK)], settings)
    checks = {"import lca": torch_stays_out()}
    return [
        Comparison(SUBJECT, f"{name} (plain: {YARDSTICK})", "seconds", cost, yardstick, {}, checks.get(name))
        for name, cost in zip(CASES, ours, strict=True)
    ]


def torch_stays_out() -> Agreement:
    """`import lca` must not import torch."""
    code = "import lca, sys; sys.exit('torch' in sys.modules)"
    return Agreement(subprocess.run([sys.executable, "-c", code]).returncode, 0, "torch imported by `import lca`")


def _python(*arguments: str) -> Work:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
