"""How much memory operations take."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Watches every operation within: how many bytes the largest storage behind a result has."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        tensors = (each for each in tree_leaves(result) if isinstance(each, torch.Tensor))
        self.bytes = max([self.bytes, *(each.untyped_storage().nbytes() for each in tensors)])
        return result
