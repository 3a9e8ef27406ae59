"""DualPrompt: one prefix for everything in the first blocks, one for every task in the next, chosen by the image."""

from itertools import product
from typing import ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from lca.methods import methods
from lca.methods._base import MethodInfo
from lca.methods._prompted import ADAM, Prompted, PromptedOptions
from lca.tuning.base import uniform
from lca.tuning.insertion import PrefixAttention, insert_prefix
from lca.tuning.prefix import Layers, chosen_blocks

POOL = 10
"""Entries of the published pool, each a prefix and its key."""


class DualPromptOptions(PromptedOptions):
    name: Literal["dualprompt"] = "dualprompt"
    general_layers: Layers = (0, 1)
    """Blocks with the prefix that all tasks share, counted from 0; or with a decimal point, shares of the depth."""
    expert_layers: Layers = (2, 3, 4)
    """Blocks with a prefix of every task. A block that is among both has the shared one, but if that leaves none for
    the tasks, as in a transformer of two blocks, the last of the shared ones is theirs."""
    pull: float = Field(0.1, ge=0)
    """Weight of the cosine between the task's key and the queries of its images."""
    batch_vote: bool = False
    """Use the prefix that most images of a batch would choose for all of them, as published: then an answer depends on
    what else is in the batch."""
    reference_reshape: bool = False
    """Repeat a mistake of the published code, in training and afterwards: the tasks' prefixes of a batch are laid out
    (keys and values, images) and read as (images, keys and values). Where all images have the same prefix, the first
    half of the batch gets its keys also as values, the second half its values also as keys. Answers then depend on the
    batch."""
    reference_pool: bool = False
    """Choose among ten entries from the first task on, as the published code does, those that no task has trained
    among them: an image may then get a prefix of random numbers. From the eleventh task on there are as many as tasks.
    Without it an image chooses among the entries that tasks have trained."""


@methods.register("dualprompt")
class DualPrompt(Prompted):
    """Prompt tuning by prefixes (the published kind). While a task is learnt its own prefix is used; afterwards the one
    whose key is nearest to the image's query by cosine, among those of the tasks so far: the published code also offers
    the entries of its pool that no task has trained yet, which `reference_pool` reproduces. A new task's prefix starts
    from the last one's."""

    info = MethodInfo(
        title="DualPrompt",
        reference="Wang et al.: DualPrompt, ECCV 2022",
        trains="the shared prefixes, the task's prefixes and key, and the task's head",
        passes="2",
    )
    Options: ClassVar = DualPromptOptions
    defaults: ClassVar = {
        "tuning": {"name": "none"},
        "training": {**ADAM, "epochs": 5, "batch_size": 24, "lr": 0.001},
    }
    options: DualPromptOptions

    def insert(self, vit: VisionTransformer) -> dict[int, PrefixAttention]:
        depth, warn = len(vit.blocks), self.setting.progress.warning
        self.general = chosen_blocks(self.options.general_layers, depth, warn)
        expert = chosen_blocks(self.options.expert_layers, depth, warn)
        self.expert = [number for number in expert if number not in self.general]
        if not self.expert and len(self.general) > 1:
            self.expert = [self.general.pop()]
        return {number: insert_prefix(vit, number, None) for number in (*self.general, *self.expert)}

    def couples_images(self) -> str | None:
        on = [name for name in ("batch_vote", "reference_reshape") if getattr(self.options, name)]
        return f"method.{on[0]}" if on else super().couples_images()

    def grow(self, task: int) -> None:
        entry, random = self._entries(), self.setting.generator("prompts", task)
        prefix, key = (2, self.options.tokens, self.setting.extractor.width), (self.setting.extractor.width,)
        for layer in self.general if entry == 0 else ():
            self.add(f"general.{layer}", uniform(prefix, 1.0, random))
        for layer in self.expert:
            last = self.prompts.get(f"expert.{layer}.{entry - 1}")
            self.add(f"expert.{layer}.{entry}", uniform(prefix, 1.0, random) if last is None else last.detach().clone())
        spare = self.prompts.get(f"spare.key.{entry}")
        self.add(f"key.{entry}", uniform(key, 1.0, random) if spare is None else spare.detach().clone())
        names = ["key", *(f"expert.{layer}" for layer in self.expert)]
        for name in names:
            self.prompts.pop(f"spare.{name}.{entry}", None)
        if self.options.reference_pool and entry == 0:
            for number, name in product(range(1, POOL), names):
                self.add(f"spare.{name}.{number}", uniform(key if name == "key" else prefix, 1.0, random))

    def trained(self) -> dict[str, nn.Parameter]:
        newest = f".{self._entries() - 1}"
        own = {name: each for name, each in self.prompts.items() if name.startswith(("expert.", "key"))}
        general = {name: each for name, each in self.prompts.items() if name.startswith("general.")}
        return general | {name: each for name, each in own.items() if name.endswith(newest)}

    def training_rows(self, query: Tensor) -> dict[int, Tensor]:
        return self._rows(torch.full((len(query),), self._entries() - 1, device=query.device))

    def training_term(self, query: Tensor) -> Tensor:
        newest = self.pool("key")[-1]
        return -self.options.pull * functional.cosine_similarity(query, newest[None]).mean()

    def rows(self, query: Tensor) -> dict[int, Tensor]:
        if not self.prompts:
            return {}
        keys = self._offered("key")
        chosen = (functional.normalize(query) @ functional.normalize(keys).T).argmax(1)
        if self.options.batch_vote:
            chosen = chosen.mode().values.expand(query.shape[0])
        return self._rows(chosen)

    def values(self, tasks: int) -> int:
        entries = max(tasks, POOL) if tasks and self.options.reference_pool else tasks
        prefixes = (len(self.general) if tasks else 0) + entries * len(self.expert)
        return (prefixes * 2 * self.options.tokens + entries) * self.setting.extractor.width

    def _rows(self, chosen: Tensor) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {layer: self.prompts[f"general.{layer}"] for layer in self.general}
        for layer in self.expert:
            found[layer] = self._offered(f"expert.{layer}")[chosen]
            if self.options.reference_reshape:
                found[layer] = found[layer].transpose(0, 1).reshape(found[layer].shape)
        return found

    def _offered(self, name: str) -> Tensor:
        """The keys or the prefixes among which images choose: those of the tasks, then those no task has trained."""
        spare = sorted(each for each in self.prompts if each.startswith(f"spare.{name}."))
        return torch.stack([*self.pool(name), *(self.prompts[each] for each in spare)])

    def _entries(self) -> int:
        return len(self.pool("key"))
