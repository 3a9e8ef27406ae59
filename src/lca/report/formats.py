"""The tables of a report for other programs: Markdown, LaTeX, CSV."""

import csv
import io
import re
from collections.abc import Mapping, Sequence

from lca.report import comparison
from lca.report.comparison import METRICS, Classifier, Difference, Measured
from lca.report.tables import LEGEND, bytes_of, markdown_table, markdown_text, seconds_by_phase

Found = Mapping[str, Sequence[Classifier]]
"""Classifiers by data set."""


def as_markdown(found: Found, reference: str | None = None) -> str:
    """The results with intervals, and the differences to the reference."""
    texts = []
    for source, rows in found.items():
        texts += [f"**{markdown_text(source)}**\n", _markdown_results(rows)]
        if len(rows) > 1:
            chosen = comparison.choose(rows, reference)
            texts += [f"Minus {markdown_text(chosen.label)}, on the same seeds:\n", _markdown_differences(rows, chosen)]
    texts.append(f"{LEGEND} In brackets the 95 % interval. rank: by AA, mean over seeds.\n")
    return "\n".join(texts)


def _markdown_results(rows: Sequence[Classifier]) -> str:
    ranks = comparison.mean_ranks(comparison.blocks_of(rows))
    marks = {0: "{}", 1: "**{}**", 2: "*{}*"}
    places = {column: comparison.places(rows, column) for column in METRICS}
    lines = []
    for row in rows:
        cells = [
            marks[places[column].get(row.label, 0)].format(_text(row.measured.get(column))) + _ends(row, column)
            for column in METRICS
        ]
        rank = f"{ranks[row.label]:.1f}" if row.label in ranks else "-"
        costs = [f"{row.row.bytes / 1e6:.2f}", f"{row.row.seconds:.0f}"]
        lines.append([markdown_text(row.label), str(len(row.runs)), *cells, rank, *costs])
    return markdown_table(["classifier", "runs", *METRICS, "rank", "MB", "s"], lines)


def _markdown_differences(rows: Sequence[Classifier], reference: Classifier) -> str:
    def cell(each: Difference | None) -> str:
        if each is None:
            return "-"
        ends = each.measured.interval
        return f"{each.measured.mean:+.1f}" + ("" if ends is None else f" ({ends[0]:+.1f} to {ends[1]:+.1f})")

    found = {row.label: comparison.differences(row, reference) for row in rows if row is not reference}
    lines = [[markdown_text(label), *(cell(each.get(column)) for column in METRICS)] for label, each in found.items()]
    return markdown_table(["classifier", *METRICS], lines)


def as_latex(found: Found) -> str:
    r"""A table for every data set, with \usepackage{booktabs}: the best in bold, the second in italics."""
    header = " & ".join(["Classifier", *METRICS, "MB", "s"]) + r" \\"
    marks = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\textit{{{}}}"}
    texts = []
    for source, rows in found.items():
        places = {column: comparison.places(rows, column) for column in METRICS}
        lines = []
        for row in rows:
            cells = [
                marks[places[column].get(row.label, 0)].format(_text(row.measured.get(column), r" $\pm$ "))
                for column in METRICS
            ]
            costs = [f"{row.row.bytes / 1e6:.2f}", f"{row.row.seconds:.0f}"]
            lines.append(" & ".join([latex_text(row.label), *cells, *costs]) + r" \\")
        columns = "l" + "r" * (len(METRICS) + 2)
        body = [r"\toprule", header, r"\midrule", *lines, r"\bottomrule"]
        texts.append(
            "\n".join([f"% {_one_line(source)}", rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}", ""])
        )
    return "\n".join(texts)


_MATHS = {
    letter: name
    for letters, names in (
        ("αβγδεηθκλμπρστφω", "alpha beta gamma delta epsilon eta theta kappa lambda mu pi rho sigma tau phi omega"),
        ("×·±≤≥→∞", "times cdot pm le ge to infty"),
    )
    for letter, name in zip(letters, names.split(), strict=True)
}
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: rf"\text{name}{{}}" for letter, name in (("~", "asciitilde"), ("^", "asciicircum"))},
    **{letter: rf"\text{name}{{}}" for letter, name in (("\\", "backslash"), ("<", "less"), (">", "greater"))},
    **{letter: rf"\ensuremath{{\{name}}}" for letter, name in _MATHS.items()},
}


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


COLUMNS = ("data", "classifier", "label", "branch", "seed", *METRICS.values(), "bytes", "seconds")


def as_csv(found: Found) -> str:
    """A line for every classifier and seed, with all digits."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    for source, rows in found.items():
        for row in rows:
            for run, record in zip(row.runs, row.records, strict=True):
                summary = {name: value for name, value in record.summary().items() if name in COLUMNS}
                names = {"data": source, "classifier": row.label, "label": run.label, "branch": row.branch}
                costs = {
                    "bytes": sum(bytes_of(run.results, row.branch).values()),
                    "seconds": round(sum(seconds_by_phase(run.results, row.branch).values()), 3),
                }
                writer.writerow({**names, "seed": run.seed, **summary, **costs})
    return buffer.getvalue()


def _text(each: Measured | None, between: str = " ± ") -> str:
    if each is None:
        return "-"
    return f"{each.mean:.1f}" + ("" if each.deviation is None else f"{between}{each.deviation:.1f}")


def _ends(row: Classifier, column: str) -> str:
    ends = row.measured[column].interval if column in row.measured else None
    return "" if ends is None else f" ({ends[0]:.1f} to {ends[1]:.1f})"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
