"""The one rule for which runs are seeds of one recipe."""

from collections.abc import Mapping
from typing import Any

from lca.errors import LcaError
from lca.recipe import differences, of_all_seeds, validate_recipe


def recipe_differences(one: Mapping[str, Any], two: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys that keep the runs of two dumped recipes from being seeds of one, a line each that begins with
    the prefix.

    There are none where nothing but the seed, and what is not meant to change a number, tells them apart. Options that
    were added since have their defaults; what is no recipe any more is taken as it is written.
    """
    if of_all_seeds(one) == of_all_seeds(two):
        return []
    return differences(of_all_seeds(of_today(one)), of_all_seeds(of_today(two)), prefix)


def key_of_today(recipe: Mapping[str, Any]) -> str | None:
    """The key by which this version names a dumped recipe, of whatever version; None for what is no recipe (any
    more)."""
    try:
        return validate_recipe(recipe).key if recipe else None
    except LcaError:
        return None


def of_today(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """A dumped recipe of an earlier version as this one would dump it; what is no recipe any more as it is."""
    try:
        return validate_recipe(recipe).dump()
    except LcaError:
        return recipe
