"""A checkpoint of named parts, of which only the changed ones are written, beside one file written whole every time.

Both are equally durable (written beside, flushed to the disk, renamed) and both are safetensors. Ours also hashes every
part, which is how it finds the unchanged ones, and flushes every part: the first checkpoint cannot be the cheaper one.
"""

import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from lca.files import Part, State, load_state, load_tensors, save_state, save_tensors
from lca.randomness import generator
from measuring import Agreement, Comparison, Numbers, Settings, Size, Work, size_of, time_both

SUBJECT = "checkpoints"


@dataclass(frozen=True)
class Sizes:
    width: int
    rank: int
    classes: int
    images: int = 50
    blocks: int = 12


SIZES: dict[Size, Sizes] = {
    "tiny": Sizes(width=8, rank=2, classes=4, images=5, blocks=2),
    "small": Sizes(width=192, rank=16, classes=100),
    "full": Sizes(width=768, rank=64, classes=100),
}


def compare(settings: Settings) -> list[Comparison]:
    with tempfile.TemporaryDirectory() as folder:
        return _compare_saves(Path(folder), SIZES[settings.size], settings)


def _compare_saves(folder: Path, sizes: Sizes, settings: Settings) -> list[Comparison]:
    state, later = _state(sizes, epoch=0), _state(sizes, epoch=1)
    numbers, total = count(), sum(state.bytes_by_part().values())
    ours, plain = folder / "ours", folder / "plain.safetensors"

    def save_plain() -> None:
        save_tensors(plain, _flat(state))

    def save_first() -> None:
        save_state(folder / f"first-{next(numbers)}", state)

    def save_changed() -> None:
        """Each call finds the state of the other epoch in the folder."""
        save_state(ours, (state, later)[next(numbers) % 2])

    def save_unchanged() -> None:
        save_state(ours, state)

    save_plain()
    save_unchanged()
    agreement = _agreement(load_state(ours), load_tensors(plain))
    described: Numbers = {"bytes": total, "parts": len(state.parts), "classes": sizes.classes}
    case = f"{len(state.parts)} parts, {total / 1e6:.1f} MB"

    def timed(what: str, work: Work) -> Comparison:
        costs = time_both(work, save_plain, settings)
        return Comparison(SUBJECT, f"{what}, {case}", "seconds", *costs, described, agreement)

    rows = [timed("first", save_first), timed("one part changed", save_changed), timed("unchanged", save_unchanged)]
    written = size_of(_bytes_written(ours, later)), size_of(plain.stat().st_size)
    return [*rows, Comparison(SUBJECT, f"written, one part changed, {case}", "bytes", *written, described, agreement)]


def _bytes_written(folder: Path, state: State) -> int:
    """Bytes of the files that saving this state adds or replaces."""
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    save_state(folder, state)
    return sum(path.stat().st_size for path in folder.iterdir() if before.get(path) != path.stat().st_mtime_ns)


def _agreement(ours: State, plain: Part) -> Agreement:
    read = _flat(ours)
    if set(read) != set(plain):
        return Agreement(float("inf"), 0.0, "tensors read back")
    return Agreement(max(float((read[name] - plain[name]).abs().max()) for name in plain), 0.0, "tensors read back")


def _state(sizes: Sizes, epoch: int) -> State:
    """What a run holds while it trains: only the tensors in training differ from epoch to epoch."""
    draws = generator(0, "benchmark state")

    def tuned() -> Part:
        shapes = {"down": (sizes.rank, sizes.width), "up": (3 * sizes.width, sizes.rank)}
        return {
            f"blocks.{block}.{name}": torch.randn(shape, generator=draws)
            for block in range(sizes.blocks)
            for name, shape in shapes.items()
        }

    def gaussians() -> Part:
        means = {f"{label}.mean": torch.randn(sizes.width, generator=draws) for label in range(sizes.classes)}
        rows = min(sizes.images - 1, sizes.width)
        factors = {
            f"{label}.factor": torch.randn(rows, sizes.width, generator=draws).triu() for label in range(sizes.classes)
        }
        return means | factors

    parts = {"base": tuned(), "vector": tuned(), "previous": tuned(), "gaussians": gaussians()}
    parts["heads"] = {"0.weight": torch.randn(sizes.classes, sizes.width, generator=draws)}
    momentum = {f"optimiser.{name}": tensor + epoch for name, tensor in tuned().items()}
    parts["training"] = {name: tensor + epoch for name, tensor in tuned().items()} | momentum
    return State(parts, {"epoch": epoch})


def _flat(state: State) -> Part:
    return {f"{part}/{name}": tensor for part, tensors in state.parts.items() for name, tensor in tensors.items()}
