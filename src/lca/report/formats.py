"""The tables of a report for other programs: Markdown, LaTeX, CSV."""

import csv
import io
import re
from collections.abc import Mapping, Sequence

from lca.report import comparison
from lca.report.comparison import METRICS, Classifier, Difference, Measured, Overall
from lca.report.tables import LEGEND, OVERALL, bytes_of, markdown_table, markdown_text, seconds_by_phase, short_name

Found = Mapping[str, Sequence[Classifier]]
"""Classifiers by data set."""
MARKDOWN_MARKS = {0: "{}", 1: "**{}**", 2: "*{}*"}
LATEX_MARKS = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\textit{{{}}}"}
"""A number by its place: neither the best nor the second, the best, the second."""


def as_markdown(found: Found, reference: str | None = None) -> str:
    """The results with intervals, and the differences to the reference."""
    texts = []
    for source, rows in found.items():
        texts += [f"**{markdown_text(source)}**\n", _markdown_results(rows)]
        if len(rows) > 1:
            chosen = comparison.choose(rows, reference)
            texts += [f"Minus {markdown_text(chosen.label)}, on the same seeds:\n", _markdown_differences(rows, chosen)]
    legend = f"{LEGEND} In brackets the 95 % interval. rank: by AA, mean over seeds."
    if together := comparison.overall(found):
        lines = _overall_lines(together, MARKDOWN_MARKS, " ± ")
        header = ["AA", *map(short_name, together.sources), "Overall", "rank"]
        texts += [
            "**all data sets**\n",
            markdown_table(header, [[markdown_text(line[0]), *line[1:]] for line in lines]),
        ]
        legend += f" {OVERALL}"
    return "\n".join([*texts, f"{legend}\n"])


def _overall_lines(together: Overall, marks: Mapping[int, str], between: str) -> list[list[str]]:
    """Every classifier with its average accuracy on each data set, the mean of them, and its mean rank."""
    places, lines = together.places(), []
    for label, rows in together.rows.items():
        texts = [*(_text(row.measured["AA"], between) for row in rows), f"{together.mean(label):.1f}"]
        marked = [marks[own.get(label, 0)].format(text) for own, text in zip(places, texts, strict=True)]
        rank = together.ranks.get(label)
        lines.append([label, *marked, "-" if rank is None else f"{rank:.1f}"])
    return lines


def _markdown_results(rows: Sequence[Classifier]) -> str:
    ranks = comparison.mean_ranks(comparison.blocks_of(rows))
    places = {column: comparison.places(rows, column) for column in METRICS}
    lines = []
    for row in rows:
        cells = [
            MARKDOWN_MARKS[places[column].get(row.label, 0)].format(_text(row.measured.get(column)))
            + _ends(row, column)
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
    r"""A table for every data set and one of all together, with \usepackage{booktabs}: the best in bold, the second in
    italics."""
    tables = []
    for source, rows in found.items():
        places = {column: comparison.places(rows, column) for column in METRICS}
        lines = []
        for row in rows:
            cells = [
                LATEX_MARKS[places[column].get(row.label, 0)].format(_text(row.measured.get(column), r" $\pm$ "))
                for column in METRICS
            ]
            lines.append([row.label, *cells, f"{row.row.bytes / 1e6:.2f}", f"{row.row.seconds:.0f}"])
        tables.append(_latex_table(source, [*METRICS, "MB", "s"], lines))
    if together := comparison.overall(found):
        header = [*(latex_text(short_name(source)) for source in together.sources), "Overall", "rank"]
        tables.append(_latex_table("all data sets, AA", header, _overall_lines(together, LATEX_MARKS, r" $\pm$ ")))
    return "\n".join(tables)


def _latex_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [" & ".join([latex_text(line[0]), *line[1:]]) + r" \\" for line in lines]
    body = [r"\toprule", " & ".join(["Classifier", *header]) + r" \\", r"\midrule", *rows, r"\bottomrule"]
    begin = rf"\begin{{tabular}}{{l{'r' * len(header)}}}"
    return "\n".join([f"% {_one_line(title)}", begin, *body, r"\end{tabular}", ""])


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
