"""Branches: several classifiers on one backbone, each with its own class statistics and its own heads.

A branch sees the trunk's features and heads and gives nothing back, so any number of them share one training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lca.files import State
from lca.heads.branch import BranchOptions
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.progress import Progress
from lca.randomness import generator
from lca.statistics.distances import KEPT, KnownDistances
from lca.statistics.gaussians import GaussianMemory


class BranchSet:
    """The branches of a method: the heads and Gaussians that differ from branch to branch.

    Branches with the same statistics share one set of Gaussians, named after the first of them. A branch that keeps
    none has neither: it answers with the trunk's heads as they were trained. How far known images lie from their
    Gaussians is kept only where it is asked for, by a method that can tell unknown images.
    """

    def __init__(self, options: Sequence[BranchOptions], trunk: GrowingHeads, keep_distances: bool = True) -> None:
        self.options = {each.name: each for each in options}
        self.trunk = trunk
        self.heads = {each.name: trunk.copy() for each in options if each.keeps_statistics}
        self.memories: dict[str, GaussianMemory] = {}
        self.distances: dict[str, KnownDistances] = {}
        self._memory_of: dict[str, str] = {}
        first_with: dict[str, str] = {}
        for name in self.heads:
            first = first_with.setdefault(self.options[name].memory_key, name)
            self._memory_of[name] = first
            if first == name:
                self.memories[name] = GaussianMemory(self.options[name].covariance)
                if keep_distances:
                    self.distances[name] = KnownDistances()

    def memory(self, name: str) -> GaussianMemory | None:
        """The Gaussians a branch uses, or None where it keeps no statistics."""
        return self.memories[self._memory_of[name]] if name in self._memory_of else None

    def parts_of(self, name: str) -> set[str]:
        """The parts of the state that belong to a branch."""
        if name not in self._memory_of:
            return set()
        return {f"heads/{name}", *(f"{kind}/{self._memory_of[name]}" for kind in ("gaussians", "distances"))}

    def observe(self, labels: Tensor, tuned: Tensor, merged: Tensor, before: Tensor | None = None) -> None:
        """Move the old Gaussians with the backbone, then add the classes of a task.

        The features are those of the task's images under the task's own backbone, the new merged one and the one
        before, which only the first task can do without.
        """
        labels, tuned, merged = labels.cpu(), tuned.cpu(), merged.cpu()
        for name, memory in self.memories.items():
            options = self.options[name]
            if memory.classes:
                if before is None:
                    raise ValueError("the features from before are needed to move the Gaussians that are there")
                transport = options.drift.fit(before.cpu(), merged)
                memory.transport(transport.means, transport.rows)
            features = merged if options.statistics == "after" else tuned
            for label in labels.unique().tolist():
                memory.observe(label, features[labels == label])
            if name in self.distances:
                self.distances[name].rescale(memory.typical_distances())
                apart = memory.nearest_left_out(features, labels)
                for label in labels.unique().tolist():
                    self.distances[name].observe(label, apart[labels == label])

    def correct_distances(self, features: Tensor, labels: Tensor) -> None:
        """Let images of the last task that were held out correct how far known images lie."""
        for name, memory in self.memories.items():
            self.distances[name].correct(labels.cpu(), memory.mahalanobis(features.cpu()).amin(1))

    def forget(self, label: int) -> None:
        """Remove a class from all branches' heads and statistics; aligning again is up to the caller."""
        for heads in self.heads.values():
            heads.forget(label)
        for memory in self.memories.values():
            memory.forget(label)
        for name, distances in self.distances.items():
            distances.forget(label)
            if self.memories[name].classes:
                distances.rescale(self.memories[name].typical_distances())

    def align(
        self, name: str, task: int, *, first: bool, seed: int, device: torch.device, progress: Progress
    ) -> dict[str, float]:
        """Bring the trunk's new heads into a branch, then align all of its heads; returns what was measured.

        The draws depend on the task only: branches that differ in an option are compared on the same samples.
        """
        options, memory = self.options[name], self.memory(name)
        heads = self.trunk.copy() if options.restarts else self.heads[name]
        heads.extend(self.trunk)
        self.heads[name] = heads.to(device)
        if memory is None or not options.applies(first):
            return {}
        with progress.task(f"task {task + 1}, align {name}", options.rounds) as advance:
            self.heads[name], measured = options.fit(
                heads,
                memory.to(device),
                lambda purpose, epoch, on: generator(seed, purpose, task, epoch, on),
                lambda: advance(1),
            )
        return measured

    def logits(self, features: Tensor, name: str) -> Tensor:
        logits: Tensor = self.heads.get(name, self.trunk)(features)
        return logits

    def unknown_scores(self, features: Tensor) -> dict[str, Tensor]:
        """Squared Mahalanobis distance to the nearest class, per dimension, by branch; none without statistics."""
        rows = features.cpu()
        scores = {name: each.mahalanobis(rows).amin(1) / rows.shape[1] for name, each in self.memories.items()}
        return {name: scores[memory] for name, memory in self._memory_of.items()}

    def percentiles(self, features: Tensor, name: str) -> Tensor | None:
        """How far features lie from every class, as percentiles of the known images: (n, classes), on the CPU."""
        statistics = self.statistics(name)
        return None if statistics is None else statistics[1].percentiles(statistics[0].mahalanobis(features.cpu()))

    def statistics(self, name: str) -> tuple[GaussianMemory, KnownDistances] | None:
        """The Gaussians a branch uses and the distances of the known images; None without any."""
        memory = self.memory(name)
        return None if memory is None or not memory.classes else (memory, self.distances[self._memory_of[name]])

    def expected_bytes(self, tasks: int, classes: int, images: int) -> int | None:
        """Bytes of all branches after tasks of equal size and so many classes with so many images each."""
        closed_form = GrowingHeads(self.trunk.width, LinearOptions(bias=True))
        total = len(self.distances) * classes * 4 * min(images, KEPT)
        for options in (self.options[name] for name in self.heads):
            like = closed_form if options.closed_form else self.trunk
            total += like.expected_bytes(tasks, classes)
        for memory in self.memories.values():
            size = memory.expected_bytes(classes, images, self.trunk.width)
            if size is None:
                return None
            total += size
        return total

    def state(self) -> State:
        state = State()
        for name, heads in self.heads.items():
            state.parts[f"heads/{name}"], state.meta[f"heads/{name}"] = heads.state()
        for name, memory in self.memories.items():
            state.parts[f"gaussians/{name}"], state.meta[f"gaussians/{name}"] = memory.state()
        for name, distances in self.distances.items():
            state.parts[f"distances/{name}"], state.meta[f"distances/{name}"] = distances.state()
        return state

    def load_state(self, state: State, device: torch.device) -> None:
        for name, heads in self.heads.items():
            heads.load(state.parts[f"heads/{name}"], state.meta[f"heads/{name}"])
            heads.to(device)
        for name, memory in self.memories.items():
            memory.load(state.parts[f"gaussians/{name}"], state.meta[f"gaussians/{name}"])
        for name, distances in self.distances.items():
            distances.load(state.parts[f"distances/{name}"], state.meta[f"distances/{name}"])
