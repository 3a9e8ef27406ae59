"""A model that somebody else may have made, on its way in: what its recipe may ask for, and whether its tensors fit.

A recipe of the user's own may name files, variables (`$NAME`) and downloads. That of a model may name none: weights of
the backbone lie in the model folder, come with the package, are on this machine under their name, or are given by the
user. Sizes have upper bounds, so that nothing large is made because a file says so.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lca.backbones import at_hand
from lca.errors import LcaError
from lca.files import Part, State
from lca.recipe import Recipe, validate_recipe
from lca.stored_facts import check_facts

LARGEST = {"method": 65_536, "tuning": 4096}
"""Whole numbers in these sections: ranks, tokens, widths, samples."""
MOST_ENTRIES, DEEPEST = 1000, 20
"""In a list or mapping of the recipe, and levels of it."""
DTYPES = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
}


def checked_recipe(state: State, where: Path, device: str | None, weights: str | Path | None, download: bool) -> Recipe:
    """The recipe of a model that was read, with what the user gives in place of what it names."""
    check_facts(state.meta, where)
    content = state.meta["recipe"]
    named, given = content["backbone"]["weights"], None if weights is None else str(weights)
    content = {**content, "backbone": {**content["backbone"], "weights": given}}
    if device is not None:
        content["device"] = device
    _check_names(content["tuning"], where)
    _check_sizes(content, where)
    with fits(where):
        recipe = validate_recipe(content, str(where))
    _check_sizes(recipe.model_dump(), where)
    if "backbone" not in state.parts and given is None:
        if named is not None:
            raise LcaError(
                f"{where} was taught on backbone weights from a file ({_last(named)}), which a model folder does not "
                "make lca open: give it with --weights FILE (weights=FILE), or save the model with --bundle"
            )
        if not download and not at_hand(recipe.backbone.name):
            raise LcaError(
                f"{where} needs the weights of {recipe.backbone.name}, which are not on this machine, and a model "
                "folder starts no download by itself: allow it with --allow-download (allow_download=True), or give "
                "a file with --weights FILE"
            )
    return recipe


def check_tensors(parts: Mapping[str, Part], where: Path) -> None:
    """Every tensor of a model is of a known type, and every number finite."""
    for part, tensors in parts.items():
        for name, tensor in tensors.items():
            if tensor.dtype not in DTYPES:
                raise LcaError(f"{where}: {part}: {name} holds {tensor.dtype}, which no part of a model does")
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise LcaError(
                    f"{where}: {part}: {name} holds numbers that are not finite: training diverged, or it was damaged"
                )


@contextmanager
def fits(where: Path) -> Iterator[None]:
    """Around what is made of the content of a model: what does not fit together is one error, with no traceback."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except LcaError as error:
        if len(text := str(error)) > 2000:
            raise LcaError(f"{text[:2000]} ...") from error
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise LcaError(
            f"{where} was changed or damaged: its parts do not fit its recipe ({type(error).__name__}: {first})"
        ) from error


def _last(name: str) -> str:
    return repr(name.replace("\\", "/").rpartition("/")[2][:100])


def _check_sizes(content: Mapping[str, Any], where: Path) -> None:
    for section, largest in LARGEST.items():
        for place, value in _leaves(content[section], section, where):
            if isinstance(value, int) and abs(value) > largest:
                raise LcaError(f"{where}: recipe: {place} is {str(value)[:40]}; at most {largest} is read")


def _check_names(tuning: Any, where: Path) -> None:
    """Options of the peft library can name files and modules to import: those of a model may not."""
    options = tuning.get("options") if isinstance(tuning, Mapping) else None
    options = options if isinstance(options, Mapping) else {}
    for place, value in _leaves(options, "tuning.options", where):
        key = place.removeprefix("tuning.options").lstrip(".").partition(".")[0]
        nested = place.count(".") > 2 and not key.endswith("_pattern") and not isinstance(options.get(key), list)
        path = isinstance(value, str) and not key.startswith("target_") and set(value) & set("/\\$~")
        if key.startswith(("megatron", "runtime")) or nested or path:
            raise LcaError(f"{where}: recipe: {place} names what a model may not name; ask its maker")


def _leaves(content: Any, place: str, where: Path, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every value with its place, of bounded mappings and lists."""
    if not isinstance(content, Mapping | list | tuple):
        yield place, content
        return
    if depth > DEEPEST or len(content) > MOST_ENTRIES:
        raise LcaError(f"{where}: recipe: {place[:100]} has too many entries or levels")
    pairs = content.items() if isinstance(content, Mapping) else enumerate(content)
    for key, value in pairs:
        yield from _leaves(value, f"{place}.{str(key)[:60]}", where, depth + 1)
