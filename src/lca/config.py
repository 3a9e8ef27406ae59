"""Recipes: frozen, typed, and strict. An unknown key is an error that names the nearest known one.

The resolved recipe is written into the run folder, and its hash names what may be reused. `recipe_files` reads them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from lca.errors import LcaError, nearest
from lca.schedules import cosine, quarter_cosine

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


class TuningOptions(NamedOptions):
    """What every tuner has; each tuner adds its own options in its file."""

    feature_norm: bool = False
    """One LayerNorm on the shared feature, trained and merged with the rest (as the published table had)."""


class MethodOptions(NamedOptions):
    """Base of the options that live in each method's file."""


class BackboneOptions(Options):
    """Which vision transformer, which weights, which input scaling."""

    name: str = "vit_pico_patch8_64"
    """A full timm tag (`vit_base_patch16_224.augreg_in21k_ft_in1k`) or an embedded model."""
    weights: Path | None = None
    """A safetensors file with the weights (`$NAME` is expanded); by default timm's download, or the embedded ones."""
    preprocessing: Literal["card", "raw"] = "card"
    """`card`: the mean and standard deviation of the weights' card. `raw`: [0, 1], as the published runs did."""


def _in_order(limits: tuple[float, float] | None) -> tuple[float, float] | None:
    if limits is not None and not 0 < limits[0] <= limits[1]:
        raise ValueError(f"expected 0 < smallest <= largest, came {limits}")
    return limits


class AugmentOptions(Options):
    """Training views: random resized crops and flips, drawn per image."""

    crop_scale: tuple[float, float] = (0.05, 1.0)
    """Smallest and largest share of the image's area that a crop covers."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width-to-height ratio of a crop."""
    flip: bool = True
    """Mirror half of the images left to right."""

    _ordered = field_validator("crop_scale", "crop_ratio")(_in_order)


class ViewOptions(Options):
    """What of an image the backbone sees, in training and afterwards."""

    augment: AugmentOptions = AugmentOptions()
    centre_crop: float = Field(0.875, gt=0, le=1)
    """Share of the shorter side that the view for prediction shows."""


class ViewChanges(Options):
    """What a recipe changes of the view that the source's card describes; what is not given stays."""

    crop_scale: tuple[float, float] | None = None
    crop_ratio: tuple[float, float] | None = None
    flip: bool | None = None
    centre_crop: float | None = Field(None, gt=0, le=1)

    _ordered = field_validator("crop_scale", "crop_ratio")(_in_order)

    def over(self, view: ViewOptions) -> ViewOptions:
        """The card's view with the changes."""
        given = self.model_dump(exclude_none=True)
        whole = {"centre_crop": given.pop("centre_crop", view.centre_crop)}
        return ViewOptions.model_validate({"augment": {**view.augment.model_dump(), **given}, **whole})


class DataOptions(Options):
    """Which images, in which order, in which tasks."""

    source: str = "digits"
    """A registered source, or `folder:PATH` with class folders (or `train` and `test` folders of them) inside."""
    split: str | None = None
    """A named split of the data set, where its card has several: `official` or `revisitingcil` of cub200."""
    tasks: int | list[int] | None = None
    """Number of tasks of (nearly) equal size, or the list of their sizes; by default what the source's card says."""
    base: int | None = Field(None, ge=1)
    """Classes in the first task; needs `increment`."""
    increment: int | None = Field(None, ge=1)
    """Classes in every task after the first; the last one may be shorter."""
    order: Literal["seeded", "natural", "domains", "file"] = "seeded"
    """`seeded`: the literature's permutation of the classes. `natural`: as the source has them. `domains`: domain by
    domain, by default a task each; the domain is what stands before the first `-` or `_` of a class's name. `file`: as
    `order_file` says."""
    order_file: Path | None = None
    """A text file with the name of every class on a line of its own, in the order they are learnt."""
    order_seed: int | None = Field(None, ge=0, lt=2**32)
    """Seed of the class order; by default the run's seed."""
    train_limit: int | None = Field(None, ge=1)
    """At most this many training images per class, drawn by seed: few-shot learning."""
    long_tail: float | None = Field(None, ge=1)
    """Make training images rarer class by class: the class of rank r of C, ranks drawn by seed, keeps n · ρ^(-r/(C-1))
    of its n, at least one; ρ is this number, the largest class compared with the smallest."""
    returning: float = Field(0.0, ge=0, le=1)
    """Share of the classes of earlier tasks that come back in every later task, drawn by seed. The training images of a
    class are divided among the tasks in which it comes."""
    validation: float = Field(0.0, ge=0, lt=1)
    """Share of the training images of every class that is held out for tuning decisions."""
    evaluate: Literal["test", "validation"] = "test"
    """What the accuracies are measured on. Tuning decisions use `validation`, never `test`."""
    test_share: float = Field(0.2, gt=0, lt=1)
    """For a folder without `train` and `test`: the share of each class, drawn by seed, that becomes the test set."""
    split_seed: int = Field(0, ge=0)
    """Seed of that draw. It is not the run's: otherwise one run's test images would be another one's training images,
    and a choice made on the one would have seen the test of the other."""
    view: ViewChanges = ViewChanges()
    """Crops and flips; what is not given is as the source's card says."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.base is None) != (self.increment is None):
            raise ValueError("base and increment go together: the first task's classes and every later task's")
        if (self.order == "file") != (self.order_file is not None):
            raise ValueError("order: file and order_file go together")
        if self.base is not None and self.tasks is not None:
            raise ValueError("give either tasks or base and increment, not both")
        if isinstance(self.tasks, int) and self.tasks < 1:
            raise ValueError(f"tasks must be at least 1, came {self.tasks}")
        if isinstance(self.tasks, list) and (not self.tasks or min(self.tasks) < 1):
            raise ValueError(f"every task needs at least one class, came {self.tasks}")
        if self.evaluate == "validation" and self.validation == 0:
            raise ValueError("evaluate: validation needs a validation share, for example validation: 0.2")
        return self


class TrainingOptions(Options):
    """Fine-tuning of a task: one optimiser, cosine schedule, per-epoch steps."""

    epochs: int = Field(10, ge=1)
    batch_size: int = Field(64, ge=1)
    last_batch: Literal["keep", "drop"] = "keep"
    """What becomes of an epoch's last batch where it is shorter: a step of its own, which on a GPU is neither compiled
    nor captured, or nothing, so that every epoch leaves out a few images, other ones each time."""
    optimiser: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(0.01, gt=0)
    tuner_lr: float | None = Field(None, gt=0)
    """Learning rate of the tuned tensors, where it differs from the head's."""
    rate_scale: float = Field(1.0, gt=0)
    """Factor on both learning rates: one number to tune a method whose rates are published."""
    schedule: Literal["cosine", "constant", "steps", "quarter_cosine"] = "cosine"
    """How the learning rates change from epoch to epoch; `steps` divides them by ten after each milestone,
    `quarter_cosine` is CODA-Prompt's."""
    milestones: tuple[float, ...] = ()
    """`steps`: shares of the epochs, for example 0.9."""
    final_lr: float = Field(1e-6, ge=0)
    """The cosine schedule's end for `lr`, reached after the last epoch; `tuner_lr` ends in proportion."""
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    loss: Literal["cross_entropy", "lca"] = "cross_entropy"
    """On the task's own classes. `lca`: the alignment loss (Eq. 1 and 2) as the training loss, on the features of the
    images instead of samples (the paper's Remark 1)."""
    robustness: float = Field(0.1, ge=0)
    """`lca`: λ, the weight of the pairwise term |ℓ(z) - ℓ(z')| of images of one class in a batch."""
    distillation: float = Field(0.0, ge=0)
    """Weight of the mean squared difference to the previous backbone's feature of the same view, from task 2 on."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError("milestones and schedule: steps go together")
        if not all(0 < share < 1 for share in self.milestones):
            raise ValueError(f"milestones are shares of the epochs between 0 and 1, came {self.milestones}")
        if self.loss != "lca" and self.robustness != TrainingOptions.model_fields["robustness"].default:
            raise ValueError(f"robustness is for loss: lca; with {self.loss} it would do nothing")
        return self

    def rate(self, full: float, epoch: int) -> float:
        """The learning rate in an epoch, of tensors whose full one is `full`."""
        if self.schedule == "constant":
            return full
        if self.schedule == "quarter_cosine":
            return quarter_cosine(full, epoch, self.epochs)
        done = epoch / self.epochs
        if self.schedule == "steps":
            return full * 0.1 ** sum(done >= share for share in self.milestones)
        return cosine(full, self.final_lr * (full / self.lr), done)


DEFAULT_NAMES = {"method": "im", "tuning": "lora"}
"""Sections that name a registered thing, and the thing they mean when they do not say."""


class Recipe(Options):
    """One run: everything that influences a number, and where it may not."""

    name: str = "run"
    """Names the run folder; not part of what the numbers depend on."""
    method: SerializeAsAny[MethodOptions] = "im"  # type: ignore[assignment]
    backbone: BackboneOptions = BackboneOptions()
    tuning: SerializeAsAny[TuningOptions] = "lora"  # type: ignore[assignment]
    training: TrainingOptions = TrainingOptions()
    data: DataOptions = DataOptions()
    seed: int = Field(1993, ge=0, lt=2**32)
    device: str = "auto"
    """`auto` (a GPU when there is one), `cpu`, `cuda` or `cuda:1`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the backbone; `auto` is bf16 on a GPU that computes in it and fp32 elsewhere."""
    exact: bool = False
    """Deterministic algorithms in fp32: a resumed run on a GPU is bit-equal, at a price in speed."""
    compile: bool | None = None
    """Whether the backbone is compiled (torch.compile), which takes a minute once and then trains faster. By default on
    a GPU when a task is large enough for that to pay, and never with `exact`."""
    keep_models: Literal["none", "last", "all"] = "last"
    """Which of the models after each task stay in the run folder."""
    strangers: bool = False
    """Score the test images of the tasks to come as well, to measure how well unknown things are told. One more pass
    over them after each task."""
    forward_transfer: bool = False
    """Measure what the features are worth for the next task before it is learnt. Two passes over its images, which the
    method does not see."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_method_is_published(cls, value: Any) -> Any:
        """What a recipe leaves open is as the method's own `defaults` say."""
        from lca.methods import methods

        if not isinstance(value, Mapping):
            return value
        section = value.get("method", DEFAULT_NAMES["method"])
        named = section.get("name", DEFAULT_NAMES["method"]) if isinstance(section, Mapping) else section
        name = str(getattr(named, "name", named))
        return merge_mappings(methods[name].defaults, value) if name in methods else value

    @field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> Any:
        from lca.methods import methods

        return _choose(value, DEFAULT_NAMES["method"], lambda name: methods[name].Options)

    @field_validator("tuning", mode="before")
    @classmethod
    def _tuning(cls, value: Any) -> Any:
        from lca.tuning import tuners

        return _choose(value, DEFAULT_NAMES["tuning"], lambda name: tuners[name].Options)

    def dump(self) -> dict[str, Any]:
        """Plain JSON values; `Recipe.model_validate` is its inverse."""
        return self.model_dump(mode="json")

    def trunk(self) -> dict[str, Any]:
        """The keys that influence the backbone; the others only change heads and Gaussians on top of it."""
        content = self.dump()
        for key in ("name", "keep_models", "strangers", "forward_transfer"):
            del content[key]
        from lca.methods import methods

        for key in methods[self.method.name].branch_keys:
            content["method"].pop(key, None)
        return content


def validate_recipe(content: Mapping[str, Any], origin: str = "recipe") -> Recipe:
    return validate(Recipe, content, origin)


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


def merge_mappings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, recursively. A section that names another thing replaces the section as a whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if key in DEFAULT_NAMES:
            named = {"name": value} if isinstance(value, str) else value
            before = {"name": old} if isinstance(old, str) else old or {}
            if isinstance(named, Mapping) and isinstance(before, Mapping):
                name = before.get("name", DEFAULT_NAMES[key])
                same = named.get("name", name) == name
                value, old = dict(named), before if same else {}
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_mappings(old, value)
        else:
            merged[key] = value
    return merged


def nest(dotted: str, value: Any) -> dict[str, Any]:
    """("a.b", 1) as {"a": {"b": 1}}."""
    for step in reversed(dotted.split(".")):
        value = {step: value}
    return value


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys in which two dumped recipes differ, one readable line each."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        left, right = old.get(key, "(absent)"), new.get(key, "(absent)")
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            lines += differences(left, right, f"{prefix}{key}.")
        elif left != right:
            lines.append(f"{prefix}{key}: {left} -> {right}")
    return lines


def of_all_seeds(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the seeds of one classifier have in common: a dumped recipe without the seed, and without what is not meant
    to change a number."""
    own = {"seed", "name", "device", "keep_models", "strangers", "forward_transfer"}
    return {key: value for key, value in recipe.items() if key not in own}


def _choose(value: Any, default: str, options_of: Any) -> Any:
    """The options object a section names: `lora`, `{name: lora, rank: 4}` or options already made."""
    if isinstance(value, BaseModel):
        return value
    section = {"name": value} if isinstance(value, str) else value
    if not isinstance(section, Mapping):
        raise ValueError(f"expected a name or a mapping with a name, came {value!r}")
    try:
        chosen = options_of(section.get("name", default))
    except LcaError as error:
        raise ValueError(str(error)) from None
    return chosen.model_validate({"name": default, **section})
