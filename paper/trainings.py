"""Which rows of the packs of the paper are of one training: `python paper/trainings.py` prints it.

Where classifiers without alignment have the same right answers, of every class after every task with every seed, they
come from the same training. Two trainings of a recipe on a GPU differ, unless it is exact.
"""

from collections import defaultdict
from pathlib import Path

from lca.results.classifiers import Classifier, classifiers
from lca.results.reading import collect, short_name
from lca.text import markdown_table

RESULTS = Path(__file__).parent.parent / "results"
Method = dict[str, Classifier]
"""The classifiers of a label by branch."""


def main() -> None:
    found: dict[tuple[str, str], dict[str, Method]] = defaultdict(dict)
    for pack in [RESULTS / "compare-mini.json", *sorted(RESULTS.glob("paper-*.json"))]:
        for source, rows in classifiers(collect([pack]).runs).items():
            methods: dict[str, Method] = defaultdict(dict)
            for row in rows:
                methods[row.group][row.branch] = row
            for label, method in methods.items():
                if "none" in method:
                    answers = str({run.seed: run.records["none"].correct for run in method["none"].runs})
                    found[short_name(source), answers][f"`{pack.stem}` {label}"] = method
    shared = sorted(((data, rows) for (data, _), rows in found.items() if len(rows) > 1), key=lambda each: each[0])
    lines = [
        [data, *(_accuracies(rows, branch) for branch in ("none", "lca")), ", ".join(rows)] for data, rows in shared
    ]
    print(markdown_table(["data", "AA of none", "AA of lca", "one training"], lines), end="")


def _accuracies(rows: dict[str, Method], branch: str) -> str:
    """All that there are: an alignment may be done again."""
    found = {f"{method[branch].measured['AA'].mean:.1f}" for method in rows.values() if branch in method}
    return ", ".join(sorted(found))


if __name__ == "__main__":
    main()
