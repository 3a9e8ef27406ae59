"""Who is best: places and ranks of classifiers, on a data set and on all of them together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from lca.report.comparison import rivals, same_damage
from lca.results.classifiers import DAMAGE, Classifier, lower_is_better


def mean_ranks(blocks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean over blocks (a data set and a seed) of the rank by falling value, equal ones sharing theirs; of the labels
    that all blocks have."""
    labels = [label for label in blocks[0] if all(label in block for block in blocks)] if blocks else []

    def rank(value: float, values: Sequence[float]) -> float:
        return sum(other > value for other in values) + (values.count(value) + 1) / 2

    columns = [[block[label] for label in labels] for block in blocks]
    return {
        label: sum(rank(column[place], column) for column in columns) / len(columns)
        for place, label in enumerate(labels)
    }


def blocks_of(rows: Sequence[Classifier], column: str = "AA") -> list[dict[str, float]]:
    """The values of one data set by label, a block for every seed that all rivals have."""
    values = {each.label: each.values(column) for each in rivals(rows)}
    seeds = set.intersection(*(set(each) for each in values.values()))
    return [{label: each[seed] for label, each in values.items()} for seed in sorted(seeds)]


def places(rows: Sequence[Classifier], column: str) -> dict[str, int]:
    """1 for the best and 2 for the second of several by label, as the rounded numbers of a table show them."""
    found = {each.label: each.plain.get(column) for each in rivals(rows)}
    means = {label: each.mean for label, each in found.items() if each is not None}
    return best_two(means, lower_is_better(column))


def damage_places(rows: Sequence[Classifier]) -> dict[str, dict[str, int]]:
    """The best and the second by column of damaged images; none where not all were measured on the same seeds and
    damage."""
    alike = all(same_damage(rows[0], row) and {*row.robustness} == {*rows[0].robustness} for row in rows)
    return {column: places(rows, column) if alike else {} for column in DAMAGE}


def best_two(means: Mapping[str, float], lower: bool = False) -> dict[str, int]:
    """1 for the best and 2 for the second of several numbers by label, rounded as a table shows them."""
    rounded = {label: round(mean, 1) for label, mean in means.items()}
    order = sorted(set(rounded.values()), reverse=not lower)
    return (
        {label: order.index(mean) + 1 for label, mean in rounded.items() if mean in order[:2]} if len(means) > 1 else {}
    )


@dataclass(frozen=True)
class Overall:
    """Average accuracies on several data sets, of the classifiers that all of them have."""

    sources: Sequence[str]
    rows: Mapping[str, Sequence[Classifier]]
    """By label, one of each data set."""
    ranks: Mapping[str, float]
    blocks: int
    """Pairs of data set and seed that the ranks are the mean of."""

    @property
    def several(self) -> bool:
        """Whether any classifier has more than one seed."""
        return any(len(row.runs) > 1 for rows in self.rows.values() for row in rows)

    def mean(self, label: str) -> float:
        """Over data sets."""
        return fmean(row.plain["AA"].mean for row in self.rows[label])

    def best_first(self) -> list[str]:
        """The labels by falling mean."""
        return sorted(self.rows, key=lambda label: -self.mean(label))

    def places(self) -> list[dict[str, int]]:
        """The best and the second in the column of every data set and in that of the means."""
        columns = [rivals(rows) for rows in zip(*self.rows.values(), strict=True)]
        means = {each.label: self.mean(each.label) for each in columns[0]}
        return [*(places(rows, "AA") for rows in columns), best_two(means)]


def overall(found: Mapping[str, Sequence[Classifier]]) -> Overall | None:
    """All data sets together; None where there is only one, or no classifier that all of them have."""
    first, *others = [{row.label: row for row in rows} for rows in found.values()]
    common = {label: [row, *(rows[label] for rows in others if label in rows)] for label, row in first.items()}
    common = {label: rows for label, rows in common.items() if len(rows) == len(found) > 1}
    if not common:
        return None
    blocks = [block for rows in zip(*common.values(), strict=True) for block in blocks_of(rows)]
    return Overall([*found], common, mean_ranks(blocks), len(blocks))
