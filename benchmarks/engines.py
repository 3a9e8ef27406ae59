"""One training step by two processes: our own sums of gradients beside torch's DDP and Lightning Fabric.

Fabric is no dependency; it comes from a folder of its own:

python -m pip install --no-deps --target "$FABRIC" lightning-fabric lightning-utilities
OMP_NUM_THREADS=1 PYTHONPATH="$FABRIC" torchrun --nproc_per_node 2 benchmarks/engines.py
"""

import statistics
import time
from collections.abc import Callable

import lightning_fabric
import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from lca.backbones import load_backbone
from lca.device import Compute
from lca.features import FeatureExtractor
from lca.ranks import _Several
from lca.recipe import Recipe


class Model(nn.Module):
    """The embedded transformer with LoRA, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        recipe = Recipe()
        self.extractor = FeatureExtractor(load_backbone(recipe.backbone), recipe.tuning, 0, Compute.choose("cpu"))
        self.head = nn.Linear(self.extractor.width, 10)

    def forward(self, views: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extractor(views))
        return logits

    def trained(self) -> list[nn.Parameter]:
        return [each for each in self.parameters() if each.requires_grad]


def main() -> None:
    fabric = lightning_fabric.Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    ranks = _Several()
    models = {name: Model().train() for name in ("ours", "ddp", "fabric")}
    optimisers = {name: torch.optim.SGD(model.trained(), lr=0.01, momentum=0.9) for name, model in models.items()}
    wrapped: dict[str, nn.Module] = {"ours": models["ours"], "ddp": DistributedDataParallel(models["ddp"])}
    wrapped["fabric"], optimisers["fabric"] = fabric.setup(models["fabric"], optimisers["fabric"])

    def step(name: str, views: Tensor, labels: Tensor) -> None:
        own, counted = ranks.share(torch.arange(len(views)))
        loss = cross_entropy(wrapped[name](views[own]), labels[own])
        optimisers[name].zero_grad()
        if name == "fabric":
            fabric.backward(loss)
        else:
            loss.backward()
        if name == "ours":
            ranks.sum_gradients(models["ours"].trained(), counted / len(views))
        optimisers[name].step()

    views, labels = _batch(33)
    alone = Model().train()
    optimiser = torch.optim.SGD(alone.trained(), lr=0.01, momentum=0.9)
    start = [each.detach().clone() for each in alone.trained()]
    cross_entropy(alone(views), labels).backward()
    optimiser.step()
    moved = _farthest(alone.trained(), start)
    for name, model in models.items():
        step(name, views, labels)
        if ranks.leads:
            print(f"{name}: {_farthest(model.trained(), alone.trained()):.1e} from one process's update of {moved:.1e}")
    for size in (2, 32):
        _time(step, list(models), size, ranks.leads)


def _time(step: Callable[[str, Tensor, Tensor], None], names: list[str], size: int, leads: bool) -> None:
    """Every one in turn, so that what disturbs the machine disturbs all."""
    views, labels = _batch(size)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(9):
        for name, taken in seconds.items():
            distributed.barrier()
            began = time.perf_counter()
            step(name, views, labels)
            taken.append(time.perf_counter() - began)
    for name, taken in seconds.items():
        if leads:
            best, median = 1e3 * min(taken), 1e3 * statistics.median(taken)
            print(f"batch {size}, {name}: best {best:.1f} ms, median {median:.1f} ms a step")


def _batch(size: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.rand(size, 3, 64, 64, generator=draws), torch.randint(10, (size,), generator=draws)


def _farthest(values: list[nn.Parameter], others: list[nn.Parameter] | list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(values, others, strict=True))


if __name__ == "__main__":
    main()
