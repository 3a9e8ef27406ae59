"""Branches: several classifiers on one backbone, each with its own class statistics and its own heads.

A branch sees the trunk's features and heads and gives nothing back, so any number of them share one training.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

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
        self.heads = {each.name: trunk.copy() for each in options if each.keeps_statistics and not each.derived}
        self._derived: dict[tuple[str, torch.device], nn.Module] = {}  # until the next change of the statistics
        first_with: dict[str, str] = {}
        keeping = [each.name for each in options if each.keeps_statistics]
        self._memory_of = {name: first_with.setdefault(self.options[name].memory_key, name) for name in keeping}
        self.memories = {name: GaussianMemory(self.options[name].covariance) for name in first_with.values()}
        self.distances = {name: KnownDistances() for name in self.memories if keep_distances}

    def memory(self, name: str) -> GaussianMemory | None:
        """The Gaussians a branch uses, or None where it keeps no statistics."""
        return self.memories[self._memory_of[name]] if name in self._memory_of else None

    def parts_of(self, name: str) -> set[str]:
        """The parts of the state that belong to a branch."""
        if name not in self._memory_of:
            return set()
        statistics = {f"{kind}/{self._memory_of[name]}" for kind in ("gaussians", "distances")}
        return statistics | ({f"heads/{name}"} if name in self.heads else set())

    def observe(
        self,
        labels: Tensor,
        tuned: Tensor,
        merged: Tensor,
        before: Tensor | None = None,
        images: Tensor | None = None,
        families: Tensor | None = None,
        spoilt: Tensor | None = None,
    ) -> None:
        """Move the old Gaussians with the backbone, then add the classes of a task.

        The features are those of the task's images under the task's own backbone, the new merged one and the one
        before, which only the first task can do without. If they are the merged ones, nothing has moved. `images` tells
        which image each row is a view of, the plain views first; without, each is one. A label of -1 is that of no
        class: such rows only show how the backbone moved. `families` and `spoilt` are what `KnownDistances.see` wants,
        under the merged backbone: the first only where it has moved, the second of a photo of each class.
        """
        labels, tuned, merged = labels.cpu(), tuned.cpu(), merged.cpu()
        before = None if before is None else before.cpu()
        still = before is not None and torch.equal(before, merged)
        rows = torch.nonzero(labels >= 0)[:, 0]
        own, views = labels[rows], None if images is None else images.cpu()[rows]
        self._derived.clear()
        for name, memory in self.memories.items():
            options = self.options[name]
            if memory.classes and not still:
                if before is None:
                    raise ValueError("the features from before are needed to move the Gaussians that are there")
                move = options.drift.fit(before, merged, labels)
                memory.transport(move)
                if name in self.distances:
                    self.distances[name].transport(move)
            features = (merged if options.statistics == "after" else tuned)[rows]
            for label in own.unique().tolist():
                chosen = own == label
                seen = 1 if views is None else int(chosen.sum()) // len(views[chosen].unique())
                memory.observe(label, features[chosen], seen)
            if name in self.distances:
                known = self.distances[name]
                known.see(families, spoilt, len(own.unique()))
                if not len(known.families):
                    raise ValueError("the features of the background are needed to tell unknown images from known ones")
                known.rescale(memory)
                known.learn(memory, features, own, views)

    def forget(self, label: int) -> None:
        """Remove a class from all branches' heads and statistics; aligning again is up to the caller."""
        for thing in self._stored().values():
            thing.forget(label)
        self._statistics_changed()

    def merge(self, label: int, other: int) -> None:
        """Make two classes one in all branches' heads and statistics; aligning again is up to the caller."""
        for thing in self._stored().values():
            thing.merge(label, other)
        self._statistics_changed()

    @property
    def combines(self) -> bool:
        """Whether there are statistics by which two classes become one."""
        return any(memory.combines for memory in self.memories.values())

    @property
    def lacks_background(self) -> bool:
        """Whether anything is to be told from a background that has not been seen."""
        return any(not len(known.families) for known in self.distances.values())

    def adopt(self, families: Tensor) -> None:
        """Go on from the state of an earlier version, which knew no background."""
        for name, known in self.distances.items():
            if self.memories[name].classes and not len(known.families):
                known.adopt(self.memories[name], families)

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
        with progress.task(f"align {name}", options.rounds) as advance:
            self.heads[name], measured = options.fit(
                heads,
                memory.to(device),
                lambda purpose, epoch, on: generator(seed, purpose, task, epoch, on),
                lambda: advance(1),
            )
        return measured

    def logits(self, features: Tensor, name: str) -> Tensor:
        logits: Tensor = self._answering(name, features.device)(features)
        return logits

    def left_out_logits(
        self,
        name: str,
        features: Tensor,
        labels: Tensor,
        images: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> tuple[Tensor, Tensor] | None:
        """Logits (n, classes) of images of the last task, as if they had not been learnt, and their labels; without
        those that are alone in their class. None for heads that cannot tell. `asked` are other features of the images
        than those of their plain views."""
        memory = self.memory(name)
        if memory is None:
            return None
        rows = torch.nonzero(labels.cpu() >= 0)[:, 0]
        features, labels = features.cpu()[rows], labels.cpu()[rows]
        views, asked = None if images is None else images.cpu()[rows], None if asked is None else asked.cpu()
        own = self.options[name].left_out(memory, features, labels, views, asked)
        if own is None:
            return None
        device = next(self.heads.get(name, self.trunk).parameters(), features).device  # where heads answer
        logits = self.logits((features[: len(own)] if asked is None else asked).to(device), name).cpu()
        logits = logits.scatter(1, labels[: len(own), None], own[:, None].to(logits))
        return logits[~own.isnan()], labels[: len(own)][~own.isnan()]

    def _answering(self, name: str, device: torch.device) -> nn.Module:
        """What gives a branch's logits."""
        memory = self.memory(name)
        if memory is None or not memory.classes or not self.options[name].derived:
            return self.heads.get(name, self.trunk)
        if (name, device) not in self._derived:
            self._derived[name, device] = self.options[name].derive(memory.to(device))
        return self._derived[name, device]

    def statistics(self, name: str) -> tuple[GaussianMemory, KnownDistances] | None:
        """The Gaussians a branch uses and the distances of the known images; None without any."""
        memory, distances = self.memory(name), self.distances.get(self._memory_of.get(name, ""))
        return (memory, distances) if memory is not None and distances is not None and memory.classes else None

    def expected_bytes(
        self, tasks: int, classes: int, images: int, width: int, views: int = 1, pairs: int = 0
    ) -> int | None:
        """Bytes of all branches, as of anything `Stored`, where statistics see every image in so many views and drift
        models see so many rows in each task."""
        closed_form = GrowingHeads(width, LinearOptions(bias=True))
        heads = [closed_form if self.options[name].closed_form else self.trunk for name in self.heads]
        sizes = [
            *(each.expected_bytes(tasks, classes, images, width) for each in (*heads, *self.distances.values())),
            *(each.expected_bytes(tasks, classes, images * views, width) for each in self.memories.values()),
        ]
        residuals = sum(self.options[name].drift.leaves_residual for name in self.memories)
        unexplained = min(width, (tasks - 1) * min(pairs, width))
        return None if None in sizes else sum(filter(None, sizes)) + 4 * width * residuals * unexplained

    def state(self) -> State:
        return State.of(self._stored())

    def load_state(self, state: State, device: torch.device) -> None:
        """The heads go to a device; statistics stay on the CPU."""
        self._derived.clear()
        for part, thing in self._stored().items():
            state.restore({part: thing}, device if isinstance(thing, GrowingHeads) else torch.device("cpu"))

    def _statistics_changed(self) -> None:
        """After classes went: bring what follows from the statistics up to date."""
        self._derived.clear()
        for name, distances in self.distances.items():
            if self.memories[name].classes:
                distances.rescale(self.memories[name])
            else:  # the photos that were spoilt were theirs
                self.distances[name] = KnownDistances()

    def _stored(self) -> dict[str, Stored]:
        """What the branches remember, by the names of its parts."""
        things: dict[str, Mapping[str, Stored]] = {
            "heads": self.heads,
            "gaussians": self.memories,
            "distances": self.distances,
        }
        return {f"{kind}/{name}": each for kind, named in things.items() for name, each in named.items()}
