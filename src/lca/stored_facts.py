"""What the JSON of a model says, field by field: types and bounds of everything that is read from a stranger's file.

Here stands what needs no tensors: what `lca info`, a card or a push tell of a model. `received` has the rest.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from lca.errors import LcaError
from lca.history import Lesson

MOST_CLASSES, LONGEST_NAME, MOST_LESSONS, LARGEST_INPUT = 100_000, 1000, 100_000, 4096
"""Classes, characters of a name, steps of the history, and pixels of a side of the input."""
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)

Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Triple = Annotated[list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(min_length=3, max_length=3)]


class _Stored(BaseModel):
    model_config = _STRICT


class _Named(_Stored):
    name: Name


class _Backbone(_Named):
    weights: Name | None


class _Recipe(_Stored):
    """The keys of the recipe that a card tells; `received` reads all of it."""

    method: _Named
    tuning: _Named
    backbone: _Backbone
    seed: int


class _Scaling(_Stored):
    size: int = Field(ge=1, le=LARGEST_INPUT)
    mean: Triple
    std: Triple
    interpolation: Literal["bilinear", "bicubic"]

    @field_validator("std")
    @classmethod
    def _divides(cls, value: list[float]) -> list[float]:
        if min(value) < 1e-6:
            raise ValueError(f"a standard deviation must be above 0, got {value}")
        return value


class _Model(_Stored):
    recipe: _Recipe
    view: dict[str, Any]
    backbone: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    preprocessing: _Scaling
    licence: Annotated[str, Field(max_length=20_000)]
    classes: Annotated[list[Name], Field(max_length=MOST_CLASSES)]
    tasks: int = Field(ge=0, le=MOST_LESSONS)
    history: Annotated[list[dict[str, Any]], Field(max_length=MOST_LESSONS)]
    temperatures: dict[Name, Annotated[float, Field(ge=1e-12, le=1e12)]]
    method: dict[str, Any]
    versions: dict[Name, Name] = {}

    @field_validator("classes")
    @classmethod
    def _different(cls, names: list[str]) -> list[str]:
        if len(set(names)) < len(names):
            raise ValueError("a class is named twice")
        return names


_LESSONS = TypeAdapter(list[Lesson], config=ConfigDict(**_STRICT, extra="forbid"))


def check_facts(meta: Mapping[str, Any], where: object) -> None:
    """An error that names the first fields of a model's JSON that are not what they must be."""
    try:
        _Model.model_validate(meta)
        for lesson in _LESSONS.validate_json(json.dumps(meta["history"])):
            _check_counts(lesson)
    except ValidationError as error:
        places = [
            ".".join(str(step)[:60] for step in item["loc"]) + f": {item['msg'][:120]}" for item in error.errors()
        ]
        raise LcaError(f"{where} was changed or damaged: {'; '.join(places[:3])}") from None
    except ValueError as error:
        raise LcaError(f"{where} was changed or damaged: history: {error}") from None


def _check_counts(lesson: Lesson) -> None:
    parts = (lesson.right, lesson.called_unknown)
    counts = (*lesson.images.values(), lesson.held_out, *parts, lesson.left_out, lesson.left_one_out)
    if min(counts) < 0 or max(counts) > 10**12 or max(parts) > lesson.held_out:
        raise ValueError("counts must be numbers of images, and no more may be right than were held out")
    if lesson.held_out and lesson.calibration_error is None:
        raise ValueError("where images were held out, there is a calibration error")
