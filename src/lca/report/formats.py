"""Reports for other programs: Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lca.errors import LcaError
from lca.progress import Progress
from lca.report import comparison, ranking
from lca.report.tables import (
    LATEX,
    MARKDOWN,
    OVERALL,
    SHOWN,
    Style,
    Table,
    damage_table,
    domain_tables,
    legend,
    minus_table,
    one_line,
    overall_table,
    results_table,
)
from lca.results.classifiers import DAMAGE, Classifier, classifiers
from lca.results.metrics import columns
from lca.results.reading import Collection
from lca.text import markdown_text

Found = Mapping[str, Sequence[Classifier]]
"""Classifiers by data set."""

DAMAGED = (
    "C: accuracy on corrupted images, all severities; C at 5: the highest; P: on the frames of perturbation sequences; "
    "score: the mean of C and P, the LCA paper's overall robustness; flips: share of frames whose answer changes."
)


def _tables(found: Found, reference: str | None, style: Style) -> Iterator[tuple[str, str, Table]]:
    """Of every data set the results, those by domain, the differences to the reference, and the same on damaged images,
    and a table of all data sets together; each with its titles in Markdown and LaTeX. What is only shown has the
    results alone."""
    references = comparison.references(found, reference)
    for source, rows in found.items():
        chosen, damaged = references[source], [row for row in rows if row.robustness]
        yield f"**{markdown_text(source)}**\n\n", source, results_table(rows, style)
        for words, by_domain in domain_tables(rows, style).items():
            yield f"{words.capitalize()} (%):\n\n", f"{source}, {words}", by_domain
        if style is SHOWN:
            continue
        if len(rows) > 1:
            name = chosen.label + comparison.instead_of(reference, chosen)
            title = f"Minus {markdown_text(name)}, on the same seeds:\n\n"
            yield title, f"{source}, minus {name}", minus_table(rows, chosen, columns())
        if damaged:
            words = comparison.damage_in_words(rows)
            title = f"Damaged images ({markdown_text(words)}):\n\n"
            yield title, f"{source}, damaged images ({words})", damage_table(damaged, style)
        if len(damaged) > 1:
            chosen = comparison.choose_measured(damaged, chosen)
            title = f"Damaged images, minus {markdown_text(chosen.label)}, on the same seeds:\n\n"
            yield title, f"{source}, damaged images, minus {chosen.label}", minus_table(damaged, chosen, DAMAGE)
    if together := ranking.overall(found):
        yield "**all data sets**\n\n", "all data sets, AA", overall_table(together, style)


def as_markdown(
    found: Found, reference: str | None = None, left_out: Iterable[str] = (), style: Style = MARKDOWN
) -> str:
    """The results with intervals, the differences to the reference, the same on damaged images; what is left out."""
    texts = [(title, table.markdown()) for title, _, table in _tables(found, reference, style)]
    words = legend(row for rows in found.values() for row in rows)
    if style.intervals:
        ranked = sorted({count for rows in found.values() if (count := len(ranking.blocks_of(rows))) > 1})
        words += " In brackets the 95 % interval."
        words += f" rank: by AA, mean over the {' or '.join(map(str, ranked))} seeds that all have." * bool(ranked)
        words += f" {DAMAGED}" * any(row.robustness for rows in found.values() for row in rows)
    words += f" {OVERALL}" * bool(ranking.overall(found))
    alone = len(texts) == 1 and style is SHOWN
    tables = [text if alone else title + text for title, text in texts]
    return "\n".join([*tables, *(f"{markdown_text(line)}\n" for line in (words, *left_out))])


def as_latex(found: Found, reference: str | None = None, left_out: Iterable[str] = ()) -> str:
    r"""Tables for every data set and one of all together, with \usepackage{booktabs}: the best in bold, the second in
    italics; the differences to the reference with intervals; the same on damaged images; comments say what is left out.
    """
    texts = [f"% {one_line(line)}\n" for line in left_out]
    return "\n".join([*texts, *(table.latex(title) for _, title, table in _tables(found, reference, LATEX))])


def table(
    collection: Collection,
    form: str,
    draws: int,
    only: Sequence[str] = (),
    reference: str | None = None,
    *,
    overall: bool = False,
    progress: Progress,
) -> str:
    """All tables as `markdown`, `latex` or `csv`; or, of the first two, only the one of all data sets together."""
    found = classifiers(collection.runs, draws, only)
    comparison.references(found, reference)  # refuses a name that is not there, before anything is measured
    if overall and (together := ranking.overall(found)):
        markdown, latex = overall_table(together, MARKDOWN), overall_table(together, LATEX)
        return markdown.markdown() if form == "markdown" else latex.latex("all data sets, AA")
    if overall:
        raise LcaError("--overall needs several data sets, and classifiers that all of them have")
    if form == "csv":
        return as_csv(found)
    comparison.measure(found, progress)
    return (as_markdown if form == "markdown" else as_latex)(found, reference, collection.left_out())


def as_csv(found: Found) -> str:
    """A line for every classifier and seed, with all digits."""
    names = ("data", "classifier", "label", "branch", "seed", *columns().values(), *DAMAGE.values())
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*names, "bytes", "seconds"], lineterminator="\n", restval="")
    writer.writeheader()
    for source, rows in found.items():
        for row in rows:
            for run in row.runs:
                scores = run.robustness.get(row.branch)
                writer.writerow(
                    {"data": source, "classifier": row.label, "label": run.label, "branch": row.branch}
                    | {"seed": run.seed}
                    | {name: run.number(row.branch, name) for name in columns().values()}
                    | ({name: getattr(scores, name) for name in DAMAGE.values()} if scores else {})
                    | {"bytes": sum(run.bytes(row.branch).values())}
                    | {"seconds": round(sum(run.seconds(row.branch).values()), 3)}
                )
    return buffer.getvalue()
