"""The one model of tables: classifiers in rows, numbers in columns, as texts for a terminal, Markdown or LaTeX."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lca.errors import LcaError, nearest
from lca.report import comparison, ranking
from lca.report.ranking import Overall
from lca.results.classifiers import DAMAGE, Classifier, Measured, classifiers
from lca.results.metrics import columns, numbers
from lca.results.reading import Run, short_names
from lca.text import markdown_table, markdown_text, number, plain_table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

OVERALL = "Overall: the mean over the data sets, of classifiers that all of them have."
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
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@dataclass(frozen=True)
class Table:
    """Texts; the first of every line is a name, and stands at the left."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def markdown(self) -> str:
        return markdown_table(self.header, [[markdown_text(name), *cells] for name, *cells in self.lines])

    def plain(self) -> str:
        return plain_table(self.header, self.lines, names=False)

    def latex(self, title: str) -> str:
        """With rules of booktabs and the title as a comment."""
        rows = [" & ".join([latex_text(name), *cells]) + r" \\" for name, *cells in self.lines]
        header = " & ".join(["Classifier", *map(latex_text, self.header[1:])]) + r" \\"
        begin = rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}"
        body = [r"\toprule", header, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([f"% {one_line(title)}", begin, *body, r"\end{tabular}", ""])

    def rich(self, title: str) -> "RichTable":
        from rich.table import Table as RichTable

        table = RichTable(title=title)
        for place, name in enumerate(self.header):
            table.add_column(name, justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
        for line in self.lines:
            table.add_row(*line)
        return table


@dataclass(frozen=True)
class Style:
    """What the numbers of a table look like, and how much it says."""

    marks: Mapping[int, str]
    """A number by its place: neither the best nor the second, the best, the second."""
    between: str = " ± "
    """Mean and deviation."""
    runs: bool = True
    """With the number of runs."""
    intervals: bool = False
    """With intervals and ranks."""

    def cells(self, row: Classifier, places: Mapping[str, Mapping[str, int]]) -> list[str]:
        """The numbers of a row in the columns of `places`."""
        measured = row.measured if self.intervals else row.plain
        texts = []
        for column, place in places.items():
            each = measured.get(column)
            text = "-" if each is None else each.text(self.between)
            ends = each.ends() if each is not None and self.intervals else ""
            texts.append(self.marks[place.get(row.label, 0)].format(text) + ends)
        return texts


SHOWN = Style(dict.fromkeys(range(3), "{}"))
MARKDOWN = Style({0: "{}", 1: "**{}**", 2: "*{}*"}, intervals=True)
LATEX = Style({0: "{}", 1: r"\textbf{{{}}}", 2: r"\textit{{{}}}"}, r" $\pm$ ", runs=False)


def results_table(rows: Sequence[Classifier], style: Style) -> Table:
    """The numbers of all classifiers of a data set, and what they cost."""
    blocks = ranking.blocks_of(rows) if style.intervals else []
    ranks = ranking.mean_ranks(blocks) if len(blocks) > 1 else {}
    places = {column: ranking.places(rows, column) for column in columns()}
    runs, rank = ["runs"] * style.runs, ["rank"] * bool(ranks)
    lines = [
        [
            row.label,
            *[str(len(row.runs))] * style.runs,
            *style.cells(row, places),
            *[number(ranks.get(row.label))] * bool(ranks),
            f"{row.bytes / 1e6:.2f}",
            f"{row.seconds:.0f}",
        ]
        for row in rows
    ]
    return Table(["classifier", *runs, *columns(), *rank, "MB", "s"], lines)


DOMAINS = {
    "last": "accuracy on every domain after the last task",
    "forgetting": "forgotten of every domain: its best accuracy less its last",
}
"""What is told of domains, in words."""


def domain_table(rows: Sequence[Classifier], style: Style, what: str) -> Table:
    """A number of every domain, as `DOMAINS` says; beside accuracies their mean."""
    names = sorted({name for row in rows for name in row.by_domain(what)})
    lines = []
    for row in rows:
        found = row.by_domain(what)
        cells = [found[name].text(style.between) if name in found else "-" for name in names]
        mean = Measured([each["mean"] for each in row.stored("by_domain")]).text(style.between)
        lines.append([row.label, *cells, *[mean] * (what == "last")])
    return Table(["classifier", *names, *["mean"] * (what == "last")], lines)


def domain_tables(rows: Sequence[Classifier], style: Style) -> dict[str, Table]:
    """By what they tell; none where classes do not come back in domains."""
    chosen = [row for row in rows if row.by_domain("last")]
    return {words: domain_table(chosen, style, what) for what, words in DOMAINS.items()} if chosen else {}


def damage_table(rows: Sequence[Classifier], style: Style) -> Table:
    """The numbers of damaged images."""
    places = ranking.damage_places(rows)
    lines = [[row.label, ", ".join(map(str, row.robustness)), *style.cells(row, places)] for row in rows]
    return Table(["classifier", "seeds", *DAMAGE], lines)


def minus_table(rows: Sequence[Classifier], reference: Classifier, headings: Iterable[str]) -> Table:
    """Every other row minus the reference, and on how many seeds; where there is no difference, why."""
    headings, lines = [*headings], []
    for row, found, why in comparison.minus(rows, reference, headings):
        cells = ["-" if each is None else f"{each.mean:+.1f}{each.ends('+')}" for each in map(found.get, headings)]
        if not found:
            cells[0] = why
        seeds = max((len(each.values) for each in found.values()), default=0)
        lines.append([row.label, str(seeds), *cells])
    return Table(["classifier", "seeds", *headings], lines)


def overall_table(together: Overall, style: Style) -> Table:
    """Every classifier with its average accuracy on each data set, the mean of them, and its mean rank."""
    places, lines = together.places(), []
    for label, rows in together.rows.items():
        texts = [*(row.plain["AA"].text(style.between) for row in rows), number(together.mean(label))]
        marked = [style.marks[place.get(label, 0)].format(text) for place, text in zip(places, texts, strict=True)]
        lines.append([label, *marked, *[number(together.ranks.get(label))] * (style is not SHOWN)])
    ranks = ["rank"] * (style is not SHOWN)
    return Table(["AA", *short_names(together.sources).values(), "Overall", *ranks], lines)


def pivot_table(runs: Sequence[Run], names: Sequence[str] = ("average accuracy", "last accuracy")) -> Table:
    """A line for each branch and a column for each label: numbers by name, as AA / last. A label that several data sets
    have has a column for each."""
    for name in names:
        if name not in numbers():
            raise LcaError(f"there is no number {name!r}; {nearest(name, numbers())}")
    found, headings = classifiers(runs), {name: heading for heading, name in columns().items()}
    places, short = list(dict.fromkeys((run.label, run.data_set) for run in runs)), short_names(found)
    labels = [label for label, _ in places]
    header = [label if labels.count(label) == 1 else f"{label}, {short[source]}" for label, source in places]
    cells = {
        (row.branch, row.group, row.source): " / ".join(row.number(name).text() for name in names)
        for rows in found.values()
        for row in rows
    }
    branches = dict.fromkeys(branch for run in runs for branch in run.branches)
    lines = [[branch, *(cells.get((branch, *place), "") for place in places)] for branch in branches]
    return Table([" / ".join(headings.get(name, name) for name in names), *header], lines)


def legend(rows: Iterable[Classifier]) -> str:
    """What the columns are."""
    rows = [*rows]
    images = " or ".join(dict.fromkeys(row.runs[0].images for row in rows))
    several = any(len(row.runs) > 1 for row in rows)
    spread, fastest = (", mean ± standard deviation over seeds", " of the fastest seed") if several else ("", "")
    return (
        f"AA: mean over tasks of the accuracy on all {images} images seen so far; AA task: the same with every task "
        "counting equally; last: accuracy after the last task; forgets: mean drop of earlier tasks from their best. In "
        f"per cent{spread}. MB: stored beyond the backbone. s: seconds of training, "
        f"alignment and test{fastest} (others may have shared the machine)."
    )
