"""What methods share that leave the backbone as it is and learn prompts for it, chosen by the image.

A first pass without prompts gives the query: the pre-trained feature of the image. By it the prompts of a second pass
are put together, prefixes of attentions or tokens, and the feature of that pass goes to the heads.

Adam moves a value by at most about the learning rate in a step. With the published rates of about 0.001 heads, keys and
prompts need about a thousand steps a task; where a task has only a hundred, a `training.lr` of about 0.01 does better.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import Tensor, nn

from lca.data.streams import Task
from lca.errors import LcaError
from lca.files import State
from lca.heads.growing import HeadChoice, LinearOptions, TaskHead
from lca.methods._base import Setting, Step
from lca.methods.finetune import SequentialFineTuning, SequentialOptions
from lca.training.loop import FineTuning
from lca.tuning.base import expect_transformer
from lca.tuning.insertion import Insertion, inserting

QUERY = "query"
ADAM = {"optimiser": "adamw", "schedule": "constant", "weight_decay": 0.0}
"""How prompts are trained as published."""


class PromptedOptions(SequentialOptions):
    tokens: int = Field(5, ge=1)
    """Tokens of a prompt; a prefix has as many key rows and value rows."""
    head: HeadChoice = LinearOptions(bias=True)


class PromptTraining(FineTuning):
    """Trains the prompts of a method and the task's head."""

    def __init__(self, method: "Prompted") -> None:
        super().__init__(method.setting)
        self._method = method

    def parameters(self) -> dict[str, nn.Parameter]:
        return self._method.trained()

    def loss(
        self, views: Tensor, labels: Tensor, head: TaskHead, teacher: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        query = self._method.query(views)
        logits = head(self._method.prompted(views, self._method.training_rows(query)))
        return self.class_loss(logits, labels, head) + self._method.training_term(query), logits


class Prompted(SequentialFineTuning):
    """Sequential learning of prompts instead of a tuner. They are `prompts`, by name; tasks may add some. A class that
    is forgotten leaves its head; the prompts, like a backbone, are not unlearnt."""

    options: PromptedOptions
    remembers: ClassVar[tuple[str, ...]] = ("heads", "centre", "training")
    distils: ClassVar = False
    defaults: ClassVar = {"tuning": {"name": "none"}, "training": ADAM}

    def __init__(self, setting: Setting, options: PromptedOptions) -> None:
        super().__init__(setting, options)
        vit = setting.extractor.vit
        expect_transformer(vit, f"method {options.name!r}")
        if any(isinstance(each, Insertion) for each in vit.modules()):
            tuner = setting.extractor.tuner.options.name
            raise LcaError(
                f"method {options.name!r} brings prompts of its own, and tuner {tuner!r} inserts others; "
                "use tuning: none"
            )
        setting.extractor.requires_grad_(False)
        self.prompts: dict[str, nn.Parameter] = {}
        self.insertions = self.insert(vit)
        self.training = PromptTraining(self)

    @abstractmethod
    def insert(self, vit: VisionTransformer) -> Mapping[int, Insertion]:
        """Make the places for prompts in the transformer, by block."""

    def grow(self, task: int) -> None:
        """Add the prompts of a task, where every task has some of its own."""
        return

    def pool(self, name: str) -> list[Tensor]:
        """The prompts of a name that tasks have added, oldest first."""
        count = sum(each.startswith(f"{name}.") for each in self.prompts)
        return [self.prompts[f"{name}.{number}"] for number in range(count)]

    @abstractmethod
    def trained(self) -> dict[str, nn.Parameter]:
        """The prompts that the newest task trains."""

    @abstractmethod
    def rows(self, query: Tensor) -> dict[int, Tensor]:
        """What is inserted for images by their queries (n, width), by block: prefixes ([n,] 2, tokens, width), keys
        first, or tokens ([n,] tokens, width)."""

    @abstractmethod
    def values(self, tasks: int) -> int:
        """How many numbers the prompts are after so many tasks that trained them."""

    def training_rows(self, query: Tensor) -> dict[int, Tensor]:
        """The same while a task is learnt."""
        return self.rows(query)

    def training_term(self, query: Tensor) -> Tensor:
        """What is added to the loss."""
        return query.new_zeros(())

    @torch.no_grad()
    def query(self, views: Tensor) -> Tensor:
        return self.setting.extractor.pretrained(views)

    def prompted(self, views: Tensor, rows: Mapping[int, Tensor]) -> Tensor:
        with inserting({self.insertions[number]: each for number, each in rows.items()}):
            features: Tensor = self.setting.extractor(views)
        return features

    def frozen_inputs(self) -> list[str]:
        return [QUERY]

    def embed(self, views: Tensor, part: str, query: Tensor | None = None) -> Tensor:
        query = self.query(views) if query is None else query
        return query if part == QUERY else self.prompted(views, self.rows(query))

    def steps(self, task: Task, labels: list[int]) -> Iterator[Step]:
        if len(task.classes) > 1:
            yield Step("grow", lambda: self.grow(task.index))
        yield from super().steps(task, labels)

    def state(self) -> State:
        state = super().state()
        state.parts["prompts"] = {name: each.detach().clone() for name, each in self.prompts.items()}
        return state

    def load_state(self, state: State) -> None:
        self.prompts = {name: self._parameter(each) for name, each in state.parts["prompts"].items()}
        super().load_state(state)

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        trained = tasks if classes > tasks else 0  # a task of one class trains nothing
        return 4 * self.values(trained) + (super().expected_bytes(tasks, classes, images) or 0)

    def add(self, name: str, values: Tensor) -> None:
        """Enter a new prompt."""
        self.prompts[name] = self._parameter(self.setting.given.tensor(f"prompt.{name}", values))

    def _parameter(self, values: Tensor) -> nn.Parameter:
        return nn.Parameter(values.to(self.setting.extractor.compute.device, copy=True))
