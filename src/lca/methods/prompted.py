"""What methods share that leave the backbone as it is and learn prefixes for it, chosen by the image.

A first pass without prefixes gives the query: the pre-trained feature of the image. By it the prefixes of a second pass
are put together, and the feature of that pass goes to the heads.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from lca.data.streams import Task
from lca.files import State
from lca.heads import HeadOptions, TaskHead
from lca.methods.base import Phase, Setting
from lca.methods.finetune import SequentialFineTuning, SequentialOptions
from lca.training import FineTuning
from lca.tuning.base import replace_module
from lca.tuning.insertion import PrefixAttention, inserting, plain_attention
from lca.tuning.prefix import chosen_blocks


class PromptedOptions(SequentialOptions):
    tokens: int = Field(5, ge=1)
    """Key rows, and as many value rows, of a prefix."""
    head: HeadOptions = HeadOptions(bias=True)


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
        return functional.cross_entropy(logits, labels) + self._method.training_term(query), logits


class Prompted(SequentialFineTuning):
    """Sequential learning of prompts instead of a tuner. They are `prompts`, by name, and grow task by task. A class
    that is forgotten leaves its head; the prompts, like a backbone, are not unlearnt."""

    options: PromptedOptions

    def __init__(self, setting: Setting, options: PromptedOptions, layers: tuple[int | float, ...]) -> None:
        super().__init__(setting, options)
        vit = setting.extractor.vit
        self.insertions: dict[int, PrefixAttention] = {}
        for number in chosen_blocks(layers, len(vit.blocks)):
            self.insertions[number] = PrefixAttention(plain_attention(vit.blocks[number]), None)
            replace_module(vit, f"blocks.{number}.attn", self.insertions[number])
        self.prompts: dict[str, nn.Parameter] = {}
        self.training = PromptTraining(self)

    @abstractmethod
    def grow(self, task: int) -> None:
        """Add the prompts of a task."""

    @abstractmethod
    def trained(self) -> dict[str, nn.Parameter]:
        """The prompts that the newest task trains."""

    @abstractmethod
    def rows(self, query: Tensor) -> dict[int, Tensor]:
        """The prefixes of images by their queries (n, width): ([n,] 2, tokens, width) by block; keys first."""

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

    def embed(self, views: Tensor, part: str) -> Tensor:
        return self.prompted(views, self.rows(self.query(views)))

    def phases(self, task: Task, labels: list[int]) -> Iterator[Phase]:
        if len(task.classes) > 1:
            yield Phase("grow", lambda _: self.grow(task.index))
        yield from super().phases(task, labels)

    def state(self) -> State:
        """The tuner is never trained, so its tensors are not kept; the prompts are."""
        state = super().state()
        del state.parts["tuned"]
        state.parts["prompts"] = {name: each.detach().clone() for name, each in self.prompts.items()}
        return state

    def load_state(self, state: State) -> None:
        self.prompts = {}
        for name, each in state.parts["prompts"].items():
            self.add(name, each)
        super().load_state(State({**state.parts, "tuned": self.tensors}, state.meta))

    def add(self, name: str, values: Tensor) -> None:
        """Enter a new prompt."""
        self.prompts[name] = nn.Parameter(values.to(self.setting.extractor.compute.device))
