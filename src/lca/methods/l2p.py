"""L2P: a pool of prompts that all tasks share; every image takes those whose keys are nearest to it."""

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from lca.errors import LcaError
from lca.methods import methods
from lca.methods._base import MethodInfo, Setting
from lca.methods._prompted import ADAM, Prompted, PromptedOptions
from lca.tuning.base import uniform
from lca.tuning.insertion import TokenInsertion, insert_tokens
from lca.tuning.prompt import class_position


class L2pOptions(PromptedOptions):
    name: Literal["l2p"] = "l2p"
    pool_size: int = Field(10, ge=1)
    """Prompts in the pool; it does not grow."""
    top_k: int = Field(5, ge=1)
    """Prompts of the pool that an image takes."""
    spread: float = Field(1.0, gt=0)
    """Prompts start as U(-spread, spread)."""
    pull: float = Field(0.1, ge=0)
    """Weight of the cosines between an image's query and the keys of its prompts."""
    batch_vote: bool = False
    """Use the prompts that most images of a batch would take for all of them, as published, in training and
    afterwards: then an answer depends on what else is in the batch."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_k > self.pool_size:
            raise ValueError(f"top_k must be at most pool_size ({self.pool_size}), got {self.top_k}")
        return self


@methods.register("l2p")
class L2p(Prompted):
    """The prompts are tokens between class token and patches, at the position of the class token where that has an
    embedding. The feature is the mean of what becomes of them after the final norm."""

    info = MethodInfo(
        title="L2P",
        reference="Wang et al.: Learning to Prompt for Continual Learning, CVPR 2022",
        trains="the pool of prompts with its keys, and the task's head",
        passes="2",
    )
    Options: ClassVar = L2pOptions
    defaults: ClassVar = {
        "tuning": {"name": "none"},
        "training": {**ADAM, "epochs": 5, "batch_size": 16, "lr": 0.001875},
    }
    options: L2pOptions

    def __init__(self, setting: Setting, options: L2pOptions) -> None:
        super().__init__(setting, options)
        random, width = setting.generator("prompts"), setting.extractor.width
        self.add("pool", uniform((options.pool_size, options.tokens, width), options.spread, random))
        self.add("keys", uniform((options.pool_size, width), 1.0, random))

    def insert(self, vit: VisionTransformer) -> dict[int, TokenInsertion]:
        if list(vit.norm.children()):
            raise LcaError("l2p takes the final norm as it is, but the tuner has wrapped it; use tuning: none")
        return {0: insert_tokens(vit, None, class_position(vit), pool=True)}

    def couples_images(self) -> str | None:
        return "method.batch_vote" if self.options.batch_vote else super().couples_images()

    def trained(self) -> dict[str, nn.Parameter]:
        return self.prompts

    def rows(self, query: Tensor) -> dict[int, Tensor]:
        return {0: self.prompts["pool"][self._chosen(self._cosines(query))].flatten(1, 2)}

    def training_term(self, query: Tensor) -> Tensor:
        cosines = self._cosines(query)
        return -self.options.pull * cosines.gather(1, self._chosen(cosines)).sum(1).mean()

    def values(self, tasks: int) -> int:
        return self.options.pool_size * (self.options.tokens + 1) * self.setting.extractor.width

    def _cosines(self, query: Tensor) -> Tensor:
        return functional.normalize(query) @ functional.normalize(self.prompts["keys"]).T

    def _chosen(self, cosines: Tensor) -> Tensor:
        """The prompts of images: (n, pool) -> numbers (n, top_k)."""
        chosen = cosines.topk(self.options.top_k, dim=1).indices
        if not self.options.batch_vote:
            return chosen
        size = self.options.pool_size
        votes = torch.zeros_like(cosines).scatter(1, chosen, 1.0).sum(0)
        ranks = size * votes - torch.arange(size, device=votes.device)  # of equally many votes the first one wins
        return ranks.topk(self.options.top_k).indices.expand(cosines.shape[0], -1)
