"""Heads: a classifier that grows by one task head at a time. Old heads stay frozen unless alignment trains them."""

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn
from torch.nn import functional

from lca.errors import LcaError
from lca.files import Part, Stored, nbytes, whole
from lca.options import NamedOptions, one_of
from lca.registry import Registry


class HeadOptions(NamedOptions):
    """What every task head has; each adds its own options."""

    init: Literal["normal", "uniform"] | None = None
    """How rows start: `normal` with standard deviation 0.02, as `linear` and `mlp` do by default, or `uniform` within
    ±1/√d, the bias as well, as torch's own linear layer; `cosine` and `prototype` do by default."""


class TaskHead(nn.Module):
    """Logits of one task's classes."""

    Options: ClassVar[type[HeadOptions]]

    def __init__(self, width: int, classes: int, options: HeadOptions, generator: torch.Generator) -> None:
        super().__init__()
        self.classes = classes
        self.options = options

    def set_from_means(self, means: Tensor, norm: float, centre: Tensor | None = None) -> None:
        """Make the rows point at class means (classes, d), as seen from a centre (1, d): for what cannot be trained."""
        raise NotImplementedError

    def with_margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The logits (n, classes) that the loss sees while the head is trained with the backbone."""
        return logits

    def combine_rows(self, place: int, other: "TaskHead", there: int) -> None:
        """Give a class the mean of its row and another one's, as long as these are on average, so that it competes with
        the other rows as equally as they did."""
        theirs = dict(other.named_parameters())
        for name, parameter in self.named_parameters():
            if name in ("weight", "bias"):
                pair = torch.stack([parameter.data[place], theirs[name].data[there]])
                mean = pair.mean(0)
                if name == "weight":
                    mean = functional.normalize(mean, dim=0) * pair.norm(dim=1).mean()
                rows = parameter.data.clone()  # the rows before may be kept somewhere
                rows[place] = mean
                parameter.data = rows

    def keep_classes(self, chosen: Tensor) -> None:
        """Keep only the chosen classes' rows."""
        self.classes = len(chosen)
        for name, parameter in self.named_parameters():
            if name in ("weight", "bias"):
                parameter.data = parameter.data[chosen].clone()


heads: Registry[type[TaskHead]] = Registry("head")
choose_head = one_of(heads, "linear", shared=True)
HeadChoice = Annotated[SerializeAsAny[HeadOptions], BeforeValidator(choose_head)]
"""A head's name, or a mapping with its options."""


class LinearOptions(HeadOptions):
    name: Literal["linear"] = "linear"
    bias: bool = False
    """Whether there is a bias (the published heads have none)."""


@heads.register("linear")
class LinearHead(TaskHead):
    """w·x (+ b)"""

    Options = LinearOptions

    def __init__(self, width: int, classes: int, options: LinearOptions, generator: torch.Generator) -> None:
        super().__init__(width, classes, options, generator)
        self.weight = nn.Parameter(_rows(classes, width, options.init or "normal", generator))
        self.bias = nn.Parameter(torch.zeros(classes)) if options.bias else None
        if self.bias is not None and options.init == "uniform":
            self.bias.data.uniform_(-(width**-0.5), width**-0.5, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.weight, self.bias)

    def set_from_means(self, means: Tensor, norm: float, centre: Tensor | None = None) -> None:
        """From a centre μ̄: w ∝ μ - μ̄, and 0 half-way between them. Without a bias, the part of μ orthogonal to μ̄."""
        if centre is None:
            self.weight.data.copy_(norm * functional.normalize(means))
        elif self.bias is None:
            self.weight.data.copy_(norm * _beside(means, centre))
        else:
            self.weight.data.copy_(norm * functional.normalize(means - centre))
            self.bias.data.copy_(-(self.weight.data * (means + centre)).sum(1) / 2)


class MlpOptions(HeadOptions):
    name: Literal["mlp"] = "mlp"
    bias: bool = False
    """Whether the last layer has a bias."""
    hidden: int | None = Field(None, ge=1, le=65_536)
    """Width of the hidden layer; by default the feature width."""


@heads.register("mlp")
class MlpHead(TaskHead):
    """One hidden layer with GELU before the linear layer (the paper's text speaks of MLP heads)."""

    Options = MlpOptions

    def __init__(self, width: int, classes: int, options: MlpOptions, generator: torch.Generator) -> None:
        super().__init__(width, classes, options, generator)
        hidden = options.hidden or width
        self.hidden_weight = nn.Parameter(_rows(hidden, width, options.init or "normal", generator))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        last = LinearOptions(bias=options.bias, init=options.init)
        self.output = LinearHead(hidden, classes, last, generator)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self._activations(features))
        return logits

    def set_from_means(self, means: Tensor, norm: float, centre: Tensor | None = None) -> None:
        with torch.no_grad():
            centre = None if centre is None else self._activations(centre)
            self.output.set_from_means(self._activations(means), norm, centre)

    def combine_rows(self, place: int, other: TaskHead, there: int) -> None:
        """A row says nothing about another hidden layer than its own: between two heads the class keeps its row."""
        if other is self:
            self.output.combine_rows(place, self.output, there)

    def keep_classes(self, chosen: Tensor) -> None:
        super().keep_classes(chosen)
        self.output.keep_classes(chosen)

    def _activations(self, features: Tensor) -> Tensor:
        return functional.gelu(functional.linear(features, self.hidden_weight, self.hidden_bias))


class CosineOptions(HeadOptions):
    name: Literal["cosine"] = "cosine"
    scale: float = Field(20.0, gt=0)
    """Factor on the cosine."""
    train_scale: bool = True
    """Whether training and alignment go on to change the factor."""
    margin: float = Field(0.0, ge=0)
    """CosFace: what is taken from the cosine of an image's own class while the backbone is trained, so that classes get
    tighter."""


class PrototypeOptions(CosineOptions):
    name: Literal["prototype"] = "prototype"  # type: ignore[assignment]


@heads.register("cosine")
class CosineHead(TaskHead):
    """scale · cos(w, x), rows and scale trained, or the rows alone."""

    Options: ClassVar = CosineOptions

    def __init__(self, width: int, classes: int, options: CosineOptions, generator: torch.Generator) -> None:
        super().__init__(width, classes, options, generator)
        self.weight = nn.Parameter(_rows(classes, width, options.init or "uniform", generator))
        self.scale = nn.Parameter(torch.tensor(options.scale)) if options.train_scale else options.scale
        self.margin = options.margin

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * functional.linear(functional.normalize(features), functional.normalize(self.weight))

    def with_margin(self, logits: Tensor, labels: Tensor) -> Tensor:
        right = labels[:, None] == torch.arange(self.classes, device=labels.device)
        return logits - self.scale * self.margin * right

    def set_from_means(self, means: Tensor, norm: float, centre: Tensor | None = None) -> None:
        rows = functional.normalize(means) if centre is None else _beside(means, centre)
        alone = rows.norm(dim=1, keepdim=True) < 0.5  # a row must have a direction
        self.weight.data.copy_(torch.where(alone, functional.normalize(means), rows))


@heads.register("prototype")
class PrototypeHead(CosineHead):
    """Cosine to the class means. Trained like a cosine head while the backbone is tuned; then its rows are replaced by
    the class means, in a branch by those of the branch's Gaussians. Alignment takes no other step on it."""

    Options: ClassVar = PrototypeOptions


class GrowingHeads(nn.Module, Stored):
    """The concatenated logits of all task heads, in the order their classes were learnt."""

    def __init__(self, width: int, options: HeadOptions) -> None:
        super().__init__()
        self.width = width
        self.options = options
        self.tasks = nn.ModuleList()

    @property
    def sizes(self) -> list[int]:
        return [head.classes for head in self._heads()]

    def new_places(self, labels: list[int]) -> list[int]:
        """The places in a list of labels of those that no head has yet."""
        learnt = sum(self.sizes)
        return [place for place, label in enumerate(labels) if label >= learnt]

    def new_head(self, classes: int, generator: torch.Generator, options: HeadOptions | None = None) -> TaskHead:
        """A fresh head that is not part of the classifier yet."""
        options = options or self.options
        return heads[options.name](self.width, classes, options, generator)

    def append(self, head: TaskHead) -> None:
        """Add a head; heads in the classifier are frozen."""
        self.tasks.append(head.requires_grad_(False))

    def set_prototypes(self, means: Tensor) -> None:
        """Point the rows of prototype heads at the class means (all classes, d); other heads stay."""
        for head, rows in zip(self._heads(), means.split(self.sizes), strict=True):
            if isinstance(head, PrototypeHead):
                head.set_from_means(rows, norm=1.0)

    def extend(self, others: "GrowingHeads") -> None:
        """Append copies of the heads that the others have beyond these."""
        for head in others.copy().tasks[len(self.tasks) :]:
            self.tasks.append(head)

    def forget(self, label: int) -> None:
        number, gone = self._place(label)
        head = self._heads()[number]
        kept = [place for place in range(head.classes) if place != gone]
        if kept:
            head.keep_classes(torch.tensor(kept, device=next(head.parameters()).device))
        else:
            del self.tasks[number]

    def merge(self, label: int, other: int) -> None:
        (number, place), (others, there) = self._place(label), self._place(other)
        heads = self._heads()
        heads[number].combine_rows(place, heads[others], there)
        self.forget(other)

    def forward(self, features: Tensor) -> Tensor:
        if not len(self.tasks):
            return features.new_zeros(len(features), 0)
        return torch.cat([head(features) for head in self._heads()], dim=1)

    def at_once(self, features: Tensor) -> Tensor:
        """The same logits, but for rounding, in one product where all heads are linear, or all cosines: for many small
        steps."""
        cosines = [head for head in self._heads() if isinstance(head, CosineHead)]
        if cosines and len(cosines) == len(self.tasks):
            rows = functional.normalize(torch.cat([head.weight for head in cosines]))
            scales = torch.cat([rows.new_ones(head.classes) * head.scale for head in cosines])
            return scales * functional.linear(functional.normalize(features), rows)
        linear = [head for head in self._heads() if isinstance(head, LinearHead)]
        biases: list[Tensor] = [head.bias for head in linear if head.bias is not None]
        if len(linear) < len(self.tasks) or 0 < len(biases) < len(linear):
            return self(features)
        return functional.linear(
            features, torch.cat([head.weight for head in linear]), torch.cat(biases) if biases else None
        )

    def append_from_means(self, means: Tensor, generator: torch.Generator, centre: Tensor | None = None) -> None:
        """Add a head whose rows are class means, as long as the other heads' rows, so that all compete equally. Without
        a centre (1, d) they hold what all features share, and beside trained rows they would win everywhere."""
        lasts = [head.output if isinstance(head, MlpHead) else head for head in self._heads()]
        norms = [head.weight.norm(dim=1) for head in lasts if isinstance(head, LinearHead)]
        head = self.new_head(len(means), generator).to(means.device)
        head.set_from_means(means, float(torch.cat(norms).mean()) if norms else 1.0, centre)
        self.append(head)

    def trainable(self, chosen: Literal["all", "none"] | tuple[int, ...]) -> list[nn.Parameter]:
        """The parameters of all, no or the chosen task heads (negative numbers count from the newest)."""
        if chosen == "none":
            return []
        count = len(self.tasks)
        numbers = range(count) if chosen == "all" else [n for n in chosen if -count <= n < count]
        picked = {number % count for number in numbers} if count else set()
        return [
            parameter
            for number in sorted(picked)
            if not isinstance(self.tasks[number], PrototypeHead)
            for parameter in self.tasks[number].parameters()
        ]

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int:
        return tasks * nbytes(dict(self.new_head(classes // tasks, torch.Generator()).named_parameters()))

    def copy(self) -> "GrowingHeads":
        """An independent copy on the same device."""
        twin = GrowingHeads(self.width, self.options)
        part, meta = self.state()
        twin.load({name: tensor.clone() for name, tensor in part.items()}, meta)
        return twin

    def state(self) -> tuple[Part, dict[str, Any]]:
        part = {
            f"{number}.{name}": tensor.detach()
            for number, head in enumerate(self._heads())
            for name, tensor in head.named_parameters()
        }
        return part, {
            "heads": [{"classes": head.classes, "options": head.options.model_dump()} for head in self._heads()]
        }

    def load(self, part: Part, meta: Any = None) -> None:
        self.tasks = nn.ModuleList()
        for number, entry in enumerate(meta["heads"]):
            rows = part[f"{number}.weight" if f"{number}.weight" in part else f"{number}.output.weight"]
            if whole(entry["classes"], 1) != len(rows):
                raise LcaError(f"head {number} has {len(rows)} rows for {entry['classes']} classes")
            head = self.new_head(entry["classes"], torch.Generator(), choose_head(entry["options"]))
            for name, parameter in head.named_parameters():
                stored = part[f"{number}.{name}"]
                if (stored.shape, stored.dtype) != (parameter.shape, parameter.dtype):
                    raise LcaError(
                        f"head {number}: {name} has shape {tuple(stored.shape)} of {stored.dtype}, "
                        f"expected {tuple(parameter.shape)} of {parameter.dtype}"
                    )
                parameter.data = stored.clone()
            self.append(head)

    def _place(self, label: int) -> tuple[int, int]:
        """The number of the head of a label, and its row there."""
        for number, size in enumerate(self.sizes):
            if label < size:
                return number, label
            label -= size
        raise IndexError("there is no such label")

    def _heads(self) -> list[TaskHead]:
        return [head for head in self.tasks if isinstance(head, TaskHead)]


def linear_heads(weight: Tensor, bias: Tensor, sizes: list[int], like: GrowingHeads) -> GrowingHeads:
    """Task heads made of given rows: for closed-form classifiers such as LDA."""
    options = LinearOptions(bias=True)
    built = GrowingHeads(like.width, options)
    for rows, offsets in zip(weight.split(sizes), bias.split(sizes), strict=True):
        head = LinearHead(like.width, len(rows), options, torch.Generator())
        head.weight.data, head.bias = rows.clone(), nn.Parameter(offsets.clone())
        built.append(head)
    return built


def _beside(means: Tensor, centre: Tensor) -> Tensor:
    """The directions of what is orthogonal to the centre in each mean; 0 where nothing is but rounding."""
    shared = functional.normalize(centre)
    rest = means - (means * shared).sum(1, keepdim=True) * shared
    return functional.normalize(rest, eps=1e-3 * float(means.norm(dim=1).mean()))


def _rows(rows: int, width: int, init: str, generator: torch.Generator) -> Tensor:
    """U(±1/√d), or a normal of standard deviation 0.02, truncated at ±2, so practically never."""
    values = torch.empty(rows, width)
    if init == "uniform":
        return values.uniform_(-(width**-0.5), width**-0.5, generator=generator)
    return values.normal_(0, 0.02, generator=generator).clamp_(-2, 2)
