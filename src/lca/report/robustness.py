"""What damage costs a model, beside another model if there is one: as text, and as a radar."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lca.damage.perturbations import NOISE
from lca.errors import LcaError
from lca.report.drawing import save
from lca.report.radars import FEWEST_KINDS, radar, shared_kinds
from lca.results.robustness import MEANS, RobustnessScores, along


def text(scores: RobustnessScores, other: RobustnessScores | None) -> str:
    """Every kind of damage, then the means."""
    lines = [f"{scores.images} images, {scores.where}; accuracies"]
    ours, theirs = _numbers(scores), {} if other is None else _numbers(other)
    ratios = {} if other is None else scores.flip_ratios(other)
    more = {
        name: f"   by severity {' '.join(f'{value:5.1f}' for value in each.values())}"
        for name, each in scores.corrupted.items()
    }
    for name, each in scores.perturbed.items():
        flips = f"   flips {each['flips']:.1f} %"
        if name in NOISE:
            flips += f" (from frame to frame {each['flips_previous']:.1f} %)"
        ratio = ratios.get(name)
        more[along(name)] = flips if ratio is None else f"{flips}, {ratio:.0f} % of the other's"
    for what, value in ours.items():
        if value is not None:
            beside = theirs.get(what)
            against = "" if beside is None else f"   other {beside:5.1f}   {value - beside:+5.1f}"
            lines.append(f"{what:<24}{value:5.1f} %{against}{more.get(what, '')}")
    if other is not None and ratios:
        mean, still = scores.mean_flip_ratio(other), [name for name, ratio in ratios.items() if ratio is None]
        mfr = f"    - (the other never flips: {', '.join(still)})" if mean is None else f"{mean:5.1f} %"
        lines.append(f"{'mFR':<24}{mfr}")
    return "\n".join(lines)


def _numbers(scores: RobustnessScores) -> dict[str, float | None]:
    return {
        "clean": scores.clean,
        **scores.by_kind(),
        **{name.replace("_", " "): getattr(scores, name) for name in MEANS},
    }


def check_radar(ours: Sequence[str], other: RobustnessScores | None, warn: Callable[[str], None]) -> None:
    """Refuse a radar with too few axes, and tell which kinds of damage have none."""
    theirs = ours if other is None else [*other.by_kind()]
    shown = shared_kinds([ours, theirs])
    if len(shown) < FEWEST_KINDS:
        raise LcaError(f"a radar needs three kinds of damage or more; here {', '.join(shown) or 'none'} can be drawn")
    if left := [kind for kind in (*ours, *theirs) if kind not in shown]:
        warn(f"the radar leaves out what only one of the two was asked: {', '.join(left)}")


def draw_radar(path: Path, name: str, scores: RobustnessScores, against: str, other: RobustnessScores | None) -> None:
    """Accuracy by kind of damage of a model, or of two."""
    models, where = {name: scores.by_kind()}, [scores.where]
    if other is not None:
        models[against] = other.by_kind()
        where += [other.where] * (other.where != scores.where)
    title = f"accuracy on damaged images (%), {' against '.join(where)}"
    save(radar(models, title, relative=len(models) == 2), path)
