"""CODA-Prompt: every task adds prompt components; an image's prompt is their sum, weighted by how they match it."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from lca.heads.growing import HeadChoice, LinearOptions
from lca.methods import methods
from lca.methods._base import MethodInfo
from lca.methods._prompted import ADAM, Prompted, PromptedOptions
from lca.tuning.insertion import PrefixAttention, insert_prefix
from lca.tuning.prefix import Layers, chosen_blocks


class CodaPromptOptions(PromptedOptions):
    name: Literal["coda_prompt"] = "coda_prompt"
    tokens: int = Field(4, ge=1)
    components: int = Field(10, ge=1)
    """New prompt components of every task (as published 100 over ten tasks)."""
    head: HeadChoice = LinearOptions(bias=True, init="uniform")
    layers: Layers = (0, 1, 2, 3, 4)
    """Blocks with a prompt, counted from 0; or with a decimal point, at which share of the depth."""


@methods.register("coda_prompt")
class CodaPrompt(Prompted):
    """α_k = cos(q ∘ A_k, K_k), prompt = Σ α_k P_k over all components so far; those of earlier tasks are frozen. New
    ones start at random, orthogonal to all before them as long as the width leaves room. The published penalty on
    non-orthogonality has weight 0 there and is left out; its pool is sized by the number of tasks, ours grows; it
    leaves out the last, shorter batch of an epoch, ours does not."""

    info = MethodInfo(
        title="CODA-Prompt",
        reference="Smith et al.: CODA-Prompt, CVPR 2023",
        trains="the new prompt components with their keys, and the task's head",
        passes="2",
    )
    Options: ClassVar = CodaPromptOptions
    defaults: ClassVar = {
        "tuning": {"name": "none"},
        "training": {**ADAM, "epochs": 20, "batch_size": 128, "lr": 0.001, "schedule": "quarter_cosine"},
    }
    options: CodaPromptOptions

    def insert(self, vit: VisionTransformer) -> dict[int, PrefixAttention]:
        chosen = chosen_blocks(self.options.layers, len(vit.blocks), self.setting.progress.warning)
        return {number: insert_prefix(vit, number, None) for number in chosen}

    def grow(self, task: int) -> None:
        count, width, group = self.options.components, self.setting.extractor.width, self._groups()
        random = self.setting.generator("prompts", task)
        for layer in self.insertions:
            for what, shape in (("P", (2 * self.options.tokens, width)), ("K", (width,)), ("A", (width,))):
                earlier = [each.detach().cpu().flatten(1) for each in self.pool(f"{layer}.{what}")]
                fresh = torch.randn(count, *shape, generator=random)
                self.add(f"{layer}.{what}.{group}", _orthogonal(fresh.flatten(1), earlier).reshape(fresh.shape))

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self.prompts.items() if name.endswith(f".{self._groups() - 1}")}

    def rows(self, query: Tensor) -> dict[int, Tensor]:
        if not self.prompts:
            return {}
        found = {}
        for layer in self.insertions:
            prompts, keys, attention = (self._all(layer, what) for what in "PKA")
            weights = functional.cosine_similarity(query[:, None] * attention, keys, dim=2)
            mixed = torch.einsum("nk,ktd->ntd", weights, prompts)
            found[layer] = mixed.unflatten(1, (2, self.options.tokens))
        return found

    def values(self, tasks: int) -> int:
        rows = 2 * self.options.tokens + 2  # a component, its key and its attention
        return tasks * self.options.components * len(self.insertions) * rows * self.setting.extractor.width

    def _all(self, layer: int, what: str) -> Tensor:
        """A layer's components of all tasks; only the newest task's are trained."""
        parts = self.pool(f"{layer}.{what}")
        return torch.cat([*(each.detach() for each in parts[:-1]), parts[-1]])

    def _groups(self) -> int:
        return len(self.pool(f"{next(iter(self.insertions))}.K"))


def _orthogonal(fresh: Tensor, earlier: list[Tensor]) -> Tensor:
    """Rows of length 1, orthogonal to each other and to the earlier ones where the width has room for that."""
    before = torch.cat([fresh[:0], *earlier])
    if len(before) + len(fresh) <= fresh.shape[1]:
        basis = torch.linalg.qr(torch.cat([before, fresh]).double().T).Q
        fresh = basis.T[len(before) :].float()
    return functional.normalize(fresh, dim=1)
