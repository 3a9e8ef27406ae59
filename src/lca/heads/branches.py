"""Branches: several classifiers on one backbone, each with its own class statistics and its own heads.

A branch sees the trunk's features and heads and gives nothing back, so any number of them share one training.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lca.files import State, Stored
from lca.heads.branch import BranchOptions
from lca.heads.growing import GrowingHeads, LinearOptions
from lca.progress import Progress
from lca.randomness import generator
from lca.statistics.distances import KnownDistances
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
        first_with: dict[str, str] = {}
        self._memory_of = {name: first_with.setdefault(self.options[name].memory_key, name) for name in self.heads}
        self.memories = {name: GaussianMemory(self.options[name].covariance) for name in first_with.values()}
        self.distances = {name: KnownDistances() for name in self.memories if keep_distances}

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

    def forget(self, label: int) -> None:
        """Remove a class from all branches' heads and statistics; aligning again is up to the caller."""
        for thing in self._stored().values():
            thing.forget(label)
        for name, distances in self.distances.items():
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

    def statistics(self, name: str) -> tuple[GaussianMemory, KnownDistances] | None:
        """The Gaussians a branch uses and the distances of the known images; None without any."""
        memory, distances = self.memory(name), self.distances.get(self._memory_of.get(name, ""))
        return (memory, distances) if memory is not None and distances is not None and memory.classes else None

    def expected_bytes(self, tasks: int, classes: int, images: int, width: int) -> int | None:
        """Bytes of all branches, as of anything `Stored`."""
        closed_form = GrowingHeads(width, LinearOptions(bias=True))
        heads = [closed_form if self.options[name].closed_form else self.trunk for name in self.heads]
        sizes = [
            each.expected_bytes(tasks, classes, images, width)
            for each in (*heads, *self.memories.values(), *self.distances.values())
        ]
        return None if None in sizes else sum(filter(None, sizes))

    def state(self) -> State:
        return State.of(self._stored())

    def load_state(self, state: State, device: torch.device) -> None:
        """The heads go to a device; statistics stay on the CPU."""
        for part, thing in self._stored().items():
            state.restore({part: thing}, device if isinstance(thing, GrowingHeads) else torch.device("cpu"))

    def _stored(self) -> dict[str, Stored]:
        """What the branches remember, by the names of its parts."""
        things: dict[str, Mapping[str, Stored]] = {
            "heads": self.heads,
            "gaussians": self.memories,
            "distances": self.distances,
        }
        return {f"{kind}/{name}": each for kind, named in things.items() for name, each in named.items()}
