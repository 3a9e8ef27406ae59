"""Options: frozen, typed, and strict. An unknown key is an error that names the nearest known one.

Every part's options stand beside the part; `recipe` puts them together.
"""

from collections.abc import Callable, Mapping
from reprlib import Repr
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from lca.errors import InvalidOptionsError, LcaError, nearest
from lca.registry import Registry

Model = TypeVar("Model", bound=BaseModel)
_NAMED, _SHOWN = 20, 400
"""Mistakes that a message names, and characters of what it repeats."""
_repr = Repr()
_repr.maxlist = _repr.maxtuple = _repr.maxdict = _repr.maxset = 10
_repr.maxlong, _repr.maxstring, _repr.maxother = 60, _SHOWN, _SHOWN


class Options(BaseModel):
    """Base of all option classes."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    def __init__(self, /, *given: Any, **values: Any) -> None:
        name = type(self).__name__
        if given:
            raise InvalidOptionsError(f"{name} takes its keys by name, as in {name}(key=value); got {given[0]!r}")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _told(error, name) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # sections are validated without calling it

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {shown(key)}; {nearest(str(key), cls.model_fields)}")
        return value


class NamedOptions(Options):
    """Options of a registered thing: `name` says which one."""

    name: str


def one_of(table: Registry[Any], default: str, tag: str = "name", shared: bool = False) -> Callable[[Any], Any]:
    """A validator: a name, or a mapping in which `tag` names one, becomes the options of what is registered under it.

    Things of a table that is `shared` may stand in one another's section: what another one has, at its default, is left
    out. Files of earlier versions hold the options of all of them.
    """

    def choose(value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value
        section = {tag: value} if isinstance(value, str) else value
        if not isinstance(section, Mapping):
            raise ValueError(f"expected a name, or a mapping in which `{tag}` is one; got {shown(value)}")
        section = {tag: default, **section}
        if not isinstance(section[tag], str):
            raise ValueError(f"`{tag}` must be a name, got {shown(section[tag])}")
        try:
            chosen = options_of(table[section[tag]])
        except LcaError as error:
            raise ValueError(str(error)) from None
        others = {key: value for key, value in section.items() if key not in chosen.model_fields} if shared else {}
        for key, given in others.items():
            owners = {name: options_of(table[name]).model_fields.get(key) for name in table}
            defaults = {name: field.default for name, field in owners.items() if field is not None}
            if given in defaults.values():
                section.pop(key)
            elif defaults:
                raise ValueError(
                    f"{key} is for {' and '.join(defaults)}; with {tag}: {section[tag]} it would do nothing"
                )
        return chosen.model_validate(section)

    return choose


def options_of(thing: Any) -> type[Options]:
    """The options of a registered thing: its class attribute `Options`, or the thing itself where it is all options."""
    chosen: type[Options] = getattr(thing, "Options", thing)
    return chosen


def validate(model: type[Model], content: Any, origin: str) -> Model:
    """Validate, with pydantic's errors turned into one readable message."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _told(error, origin) from None


def _told(error: ValidationError, origin: str) -> InvalidOptionsError:
    count = error.error_count()
    lines = [f"{origin}: {count} mistake(s)"]
    for item in error.errors()[:_NAMED]:
        place = _cut(".".join(str(step) for step in item["loc"])) or "the top level"
        message = item["msg"].removeprefix("Value error, ")
        told = item["type"] == "value_error" or isinstance(item["input"], Mapping)  # ours say what they got
        got = "" if told else f", got {shown(item['input'])}"
        lines.append(f"  {place}: {_cut(message)}{got}")
    if count > _NAMED:
        lines.append(f"  and {count - _NAMED} more")
    return InvalidOptionsError("\n".join(lines))


def shown(value: Any) -> str:
    """A value in a message, as Python writes it; of a large one the beginning."""
    try:
        return _cut(_repr.repr(value))
    except ValueError:  # a whole number with more digits than Python writes
        return "a whole number of thousands of digits"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
