"""The tables of a report for other programs: Markdown, LaTeX, CSV."""

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from lca.report import comparison, ranking
from lca.report.comparison import DAMAGE, METRICS, Classifier, Measured
from lca.report.ranking import Overall
from lca.results.tables import OVERALL, bytes_of, legend, seconds_by_phase, short_names
from lca.text import markdown_table, markdown_text

Found = Mapping[str, Sequence[Classifier]]
"""Classifiers by data set."""
MARKDOWN_MARKS = {0: "{}", 1: "**{}**", 2: "*{}*"}
LATEX_MARKS = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\textit{{{}}}"}
"""A number by its place: neither the best nor the second, the best, the second."""


DAMAGED = (
    "C: accuracy on corrupted images, all severities; C at 5: the highest; P: on the frames of perturbation sequences; "
    "score: the mean of C and P, the LCA paper's overall robustness; flips: share of frames whose answer changes."
)


def as_markdown(found: Found, reference: str | None = None, left_out: Iterable[str] = ()) -> str:
    """The results with intervals, the differences to the reference, the same on damaged images; what is left out."""
    texts, ranked, references = [], set(), comparison.references(found, reference)
    for source, rows in found.items():
        chosen = references[source]
        texts += [f"**{markdown_text(source)}**\n", _markdown_results(rows)]
        ranked.add(len(ranking.blocks_of(rows)))
        if len(rows) > 1:
            name = chosen.label + comparison.instead_of(reference, chosen)
            texts += [
                f"Minus {markdown_text(name)}, on the same seeds:\n",
                _markdown_minus(rows, chosen, [*METRICS]),
            ]
        if damaged := [row for row in rows if row.robustness]:
            title = f"Damaged images ({markdown_text(comparison.damage_in_words(rows))}):\n"
            texts += [title, _markdown_damaged(damaged)]
        if len(damaged) > 1:
            chosen = comparison.choose_measured(damaged, chosen)
            title = f"Damaged images, minus {markdown_text(chosen.label)}, on the same seeds:\n"
            texts += [title, _markdown_minus(damaged, chosen, [*DAMAGE])]
    words = legend(row.row for rows in found.values() for row in rows)
    words += f" In brackets the 95 % interval. rank: by AA, mean over the {_seeds(ranked)} that all have."
    if any(row.robustness for rows in found.values() for row in rows):
        words += f" {DAMAGED}"
    if together := ranking.overall(found):
        texts += ["**all data sets**\n", overall_markdown(together)]
        words += f" {OVERALL}"
    return "\n".join([*texts, *(f"{markdown_text(line)}\n" for line in (words, *left_out))])


def overall_markdown(together: Overall) -> str:
    """The table of all data sets."""
    lines = _overall_lines(together, MARKDOWN_MARKS, " ± ")
    header = ["AA", *short_names(together.sources).values(), "Overall", "rank"]
    return markdown_table(header, [[markdown_text(line[0]), *line[1:]] for line in lines])


def _seeds(counts: Collection[int]) -> str:
    """How many there are, of every data set."""
    return f"{' or '.join(map(str, sorted(counts)))} seed{'' if {*counts} == {1} else 's'}"


def _overall_lines(together: Overall, marks: Mapping[int, str], between: str) -> list[list[str]]:
    """Every classifier with its average accuracy on each data set, the mean of them, and its mean rank."""
    places, lines = together.places(), []
    for label, rows in together.rows.items():
        texts = [*(_text(row.measured["AA"], between) for row in rows), f"{together.mean(label):.1f}"]
        marked = [marks[own.get(label, 0)].format(text) for own, text in zip(places, texts, strict=True)]
        rank = together.ranks.get(label)
        lines.append([label, *marked, "-" if rank is None else f"{rank:.1f}"])
    return lines


def _marked(
    row: Classifier,
    places: Mapping[str, Mapping[str, int]],
    marks: Mapping[int, str],
    between: str,
    *,
    ends: bool = False,
) -> list[str]:
    """The numbers of a row in the columns of `places`, the best and the second marked, with intervals if so asked."""
    measured = {**row.measured, **row.damaged}
    return [
        marks[own.get(row.label, 0)].format(_text(measured.get(column), between))
        + (_ends(measured.get(column)) if ends else "")
        for column, own in places.items()
    ]


def _markdown_results(rows: Sequence[Classifier]) -> str:
    ranks = ranking.mean_ranks(ranking.blocks_of(rows))
    places = {column: ranking.places(rows, column) for column in METRICS}
    lines = []
    for row in rows:
        rank = f"{ranks[row.label]:.1f}" if row.label in ranks else "-"
        cells = _marked(row, places, MARKDOWN_MARKS, " ± ", ends=True)
        lines.append([markdown_text(row.label), str(len(row.runs)), *cells, rank, *_costs(row)])
    return markdown_table(["classifier", "runs", *METRICS, "rank", "MB", "s"], lines)


def _costs(row: Classifier) -> list[str]:
    return [f"{row.row.bytes / 1e6:.2f}", f"{row.row.seconds:.0f}"]


def _markdown_damaged(rows: Sequence[Classifier]) -> str:
    places = ranking.damage_places(rows)
    lines = [
        [markdown_text(row.label), _seeds_of(row), *_marked(row, places, MARKDOWN_MARKS, " ± ", ends=True)]
        for row in rows
    ]
    return markdown_table(["classifier", "seeds", *DAMAGE], lines)


def _seeds_of(row: Classifier) -> str:
    return ", ".join(map(str, row.robustness))


def _markdown_minus(rows: Sequence[Classifier], reference: Classifier, columns: Sequence[str]) -> str:
    lines = [[markdown_text(line[0]), *line[1:]] for line in _minus(rows, reference, columns)]
    return markdown_table(["classifier", "seeds", *columns], lines)


def _minus(rows: Sequence[Classifier], reference: Classifier, columns: Sequence[str]) -> list[list[str]]:
    """Every other row minus the reference, and on how many seeds; where there is no difference, why."""
    lines = []
    for row in rows:
        if row is not reference:
            found = comparison.differences(row, reference, columns)
            cells = [
                "-" if each is None else f"{each.measured.mean:+.1f}{_ends(each.measured, '+')}"
                for each in map(found.get, columns)
            ]
            if not found:
                cells[0] = comparison.why_none(row, reference, damaged=columns[0] in DAMAGE)
            seeds = max((len(each.measured.values) for each in found.values()), default=0)
            lines.append([row.label, str(seeds), *cells])
    return lines


def as_latex(found: Found, reference: str | None = None, left_out: Iterable[str] = ()) -> str:
    r"""Tables for every data set and one of all together, with \usepackage{booktabs}: the best in bold, the second in
    italics; the differences to the reference with intervals; the same on damaged images; comments say what is left out.
    """
    tables = [f"% {_one_line(line)}\n" for line in left_out]
    references = comparison.references(found, reference)
    for source, rows in found.items():
        chosen = references[source]
        places = {column: ranking.places(rows, column) for column in METRICS}
        lines = [[row.label, *_marked(row, places, LATEX_MARKS, r" $\pm$ "), *_costs(row)] for row in rows]
        tables.append(_latex_table(source, [*METRICS, "MB", "s"], lines))
        if len(rows) > 1:
            instead = comparison.instead_of(reference, chosen)
            tables.append(_latex_minus(source, rows, chosen, [*METRICS], instead))
        if damaged := [row for row in rows if row.robustness]:
            places = ranking.damage_places(damaged)
            lines = [[row.label, _seeds_of(row), *_marked(row, places, LATEX_MARKS, r" $\pm$ ")] for row in damaged]
            title = f"{source}, damaged images ({comparison.damage_in_words(rows)})"
            tables.append(_latex_table(title, ["seeds", *DAMAGE], lines))
        if len(damaged) > 1:
            chosen = comparison.choose_measured(damaged, chosen)
            tables.append(_latex_minus(f"{source}, damaged images", damaged, chosen, [*DAMAGE]))
    if together := ranking.overall(found):
        tables.append(overall_latex(together))
    return "\n".join(tables)


def overall_latex(together: Overall) -> str:
    """The table of all data sets."""
    header = [*map(latex_text, short_names(together.sources).values()), "Overall", "rank"]
    return _latex_table("all data sets, AA", header, _overall_lines(together, LATEX_MARKS, r" $\pm$ "))


def _latex_minus(
    title: str, rows: Sequence[Classifier], reference: Classifier, columns: Sequence[str], instead: str = ""
) -> str:
    title = f"{title}, minus {reference.label}{instead}"
    return _latex_table(title, ["seeds", *columns], _minus(rows, reference, columns))


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


COLUMNS = ("data", "classifier", "label", "branch", "seed", *METRICS.values(), *DAMAGE.values(), "bytes", "seconds")


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
                scores = run.robustness.get(row.branch)
                damage = {name: getattr(scores, name) for name in DAMAGE.values()} if scores else {}
                writer.writerow({**names, "seed": run.seed, **summary, **damage, **costs})
    return buffer.getvalue()


def _text(each: Measured | None, between: str = " ± ") -> str:
    if each is None:
        return "-"
    return f"{each.mean:.1f}" + ("" if each.deviation is None else f"{between}{each.deviation:.1f}")


def _ends(each: Measured | None, sign: str = "") -> str:
    ends = None if each is None else each.interval
    return "" if ends is None else f" ({ends[0]:{sign}.1f} to {ends[1]:{sign}.1f})"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
