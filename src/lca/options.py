"""Options: frozen, typed, and strict. An unknown key is an error that names the nearest known one.

Every part's options stand beside the part; `recipe` puts them together.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from lca.errors import LcaError, nearest

Model = TypeVar("Model", bound=BaseModel)


class Options(BaseModel):
    """Base of all option classes."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}; {nearest(str(key), cls.model_fields)}")
        return value


class NamedOptions(Options):
    """Options of a registered thing: `name` says which one."""

    name: str


def validate(model: type[Model], content: Any, origin: str) -> Model:
    """Validate, with pydantic's errors turned into one readable message."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = [f"{origin}: {error.error_count()} mistake(s)"]
        for item in error.errors():
            place = ".".join(str(step) for step in item["loc"]) or "the top level"
            message = item["msg"].removeprefix("Value error, ")
            told = "came" in message or "unknown key" in message or isinstance(item["input"], Mapping)
            came = "" if told else f", came {item['input']!r}"
            lines.append(f"  {place}: {message}{came}")
        raise LcaError("\n".join(lines)) from None
