"""DualPrompt: one prefix for everything in the first blocks, one for every task in the next, chosen by the image."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from lca.methods import methods
from lca.methods.base import MethodInfo, Setting
from lca.methods.prompted import Prompted, PromptedOptions
from lca.tuning.base import uniform
from lca.tuning.prefix import chosen_blocks


class DualPromptOptions(PromptedOptions):
    name: Literal["dualprompt"] = "dualprompt"
    general_layers: tuple[int | float, ...] = (0, 1)
    """Blocks with the prefix that all tasks share, counted from 0; or with a decimal point, shares of the depth."""
    expert_layers: tuple[int | float, ...] = (2, 3, 4)
    """Blocks with a prefix of every task; a block that is among both has the shared one."""
    pull: float = Field(0.1, ge=0)
    """Weight of the cosine between the task's key and the queries of its images."""
    batch_vote: bool = False
    """Use the prefix that most images of a batch would choose for all of them, as published: then an answer depends on
    what else is in the batch."""


@methods.register("dualprompt")
class DualPrompt(Prompted):
    """Prompt tuning by prefixes (the published kind). While a task is learnt its own prefix is used; afterwards the one
    whose key is nearest to the image's query by cosine. A new task's prefix starts from the last one's."""

    info = MethodInfo(
        title="DualPrompt",
        reference="Wang et al.: DualPrompt, ECCV 2022",
        trains="the shared prefixes, the task's prefixes and key, and the task's head",
    )
    Options: ClassVar = DualPromptOptions
    options: DualPromptOptions

    def __init__(self, setting: Setting, options: DualPromptOptions) -> None:
        super().__init__(setting, options, (*options.general_layers, *options.expert_layers))
        general = chosen_blocks(options.general_layers, len(setting.extractor.vit.blocks))
        self.general, self.expert = general, [layer for layer in self.insertions if layer not in general]

    def grow(self, task: int) -> None:
        entry, width = self._entries(), self.setting.extractor.width
        random = self.setting.generator("prompts", task)
        shape = (2, self.options.tokens, width)
        for layer in self.general if entry == 0 else ():
            self.add(f"general.{layer}", uniform(shape, 1.0, random))
        for layer in self.expert:
            last = self.prompts.get(f"expert.{layer}.{entry - 1}")
            self.add(f"expert.{layer}.{entry}", uniform(shape, 1.0, random) if last is None else last.detach().clone())
        self.add(f"key.{entry}", uniform((width,), 1.0, random))

    def trained(self) -> dict[str, nn.Parameter]:
        newest = f".{self._entries() - 1}"
        own = {name: each for name, each in self.prompts.items() if name.startswith(("expert.", "key"))}
        general = {name: each for name, each in self.prompts.items() if name.startswith("general.")}
        return general | {name: each for name, each in own.items() if name.endswith(newest)}

    def training_rows(self, query: Tensor) -> dict[int, Tensor]:
        return self._rows(torch.full((len(query),), self._entries() - 1, device=query.device))

    def training_term(self, query: Tensor) -> Tensor:
        key = self.prompts[f"key.{self._entries() - 1}"]
        return -self.options.pull * functional.cosine_similarity(query, key[None]).mean()

    def rows(self, query: Tensor) -> dict[int, Tensor]:
        if not self.prompts:
            return {}
        keys = torch.stack([self.prompts[f"key.{entry}"] for entry in range(self._entries())])
        chosen = (functional.normalize(query) @ functional.normalize(keys).T).argmax(1)
        if self.options.batch_vote:
            chosen = chosen.mode().values.expand(query.shape[0])
        return self._rows(chosen)

    def _rows(self, chosen: Tensor) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {layer: self.prompts[f"general.{layer}"] for layer in self.general}
        for layer in self.expert:
            pool = torch.stack([self.prompts[f"expert.{layer}.{entry}"] for entry in range(self._entries())])
            found[layer] = pool[chosen]
        return found

    def _entries(self) -> int:
        return sum(name.startswith("key.") for name in self.prompts)
