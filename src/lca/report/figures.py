"""Figures, drawn with matplotlib in a palette that colour-blind readers can tell apart."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lca.report.tables import Row

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito (2008)."""
MARKERS = "osD^vPX*"
LINES = ("-", "--", ":", "-.")
CROWDED = 10
"""Curves from which on the legend stands beside the plot."""


def accuracy_curves(rows: Sequence[Row], path: Path, title: str) -> None:
    """Accuracy after each task, one curve a classifier."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    crowded = len(rows) > CROWDED
    size = (11, max(4.2, 0.2 * len(rows))) if crowded else (7, 4.2)
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    for number, row in enumerate(rows):
        curve = row.curve()
        axes.plot(
            range(1, len(curve) + 1),
            curve,
            label=row.label,
            color=PALETTE[number % len(PALETTE)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number // len(PALETTE) % len(LINES)],
            markersize=5,
        )
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("accuracy on all classes seen so far (%)")
    axes.set_title(title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 102)
    axes.grid(alpha=0.3)
    legend = axes.legend(frameon=False, fontsize=9)
    if crowded:
        legend.set_loc("center left")
        legend.set_bbox_to_anchor((1.01, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def growth_curve(points: Sequence[tuple[float, float]], path: Path, x: str, y: str, title: str) -> None:
    """How y grows with x, both on logarithmic axes; a dotted line shows what grows in proportion."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.6), layout="constrained")
    across, up = zip(*points, strict=True)
    axes.loglog(across, up, color=PALETTE[0], marker=MARKERS[0])
    axes.loglog(across, [up[0] * each / across[0] for each in across], color=PALETTE[7], linestyle=":")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3, which="both")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def robustness_radar(models: Mapping[str, Mapping[str, float]], path: Path, title: str) -> None:
    """Accuracy by kind of damage, an axis each, one line a model; kinds that not all of them have are left out."""
    import math

    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.projections.polar import PolarAxes

    first, *others = models.values()
    kinds = [kind for kind in first if all(kind in other for other in others)]
    angles = [2 * math.pi * number / len(kinds) for number in range(len(kinds))]
    figure = pyplot.figure(figsize=(8, 6), layout="constrained")
    axes = PolarAxes(figure, 111)
    figure.add_subplot(axes)
    for number, (name, values) in enumerate(models.items()):
        line = [values[kind] for kind in kinds]
        colour = PALETTE[number % len(PALETTE)]
        axes.plot([*angles, *angles[:1]], [*line, *line[:1]], label=name, color=colour, marker=MARKERS[number % 8])
        axes.fill(angles, line, color=colour, alpha=0.08)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, [kind.replace("_", " ") for kind in kinds], fontsize=8)
    for angle, label in zip(angles, axes.get_xticklabels(), strict=True):  # beside the circle, not on it
        sideways = math.sin(angle)
        label.set_horizontalalignment("center" if abs(sideways) < 0.05 else "left" if sideways > 0 else "right")
    axes.set_ylim(0, 100)
    axes.set_rlabel_position(180 / len(kinds))  # between the first two axes
    axes.tick_params(axis="y", labelsize=8, labelcolor="grey")
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(-0.25, -0.08))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
