"""A model's robustness: the generated or the published damage of labelled images, scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lca.classifier import ContinualClassifier
from lca.damage import corruptions, perturbations
from lca.damage.corruptions import SEVERITIES, corrupt
from lca.damage.official import corrupted_files, perturbed_files
from lca.damage.perturbations import FRAMES, NOISE, perturb
from lca.data.images import ImageSet, Pixels
from lca.data.labelled import read_images
from lca.data.options import DataOptions
from lca.data.sources import load_source, sources
from lca.data.views import evaluation_crop
from lca.errors import LcaError, nearest
from lca.progress import Progress
from lca.randomness import generator
from lca.results.robustness import RobustnessScores, along

AT_ONCE = 2**28
"""Bytes of frames made together."""

Answers = Callable[[Tensor], Tensor]
"""Images (n, 3, h, w) in uint8 -> the numbers of the classes that k classifiers answer (n, k)."""


@dataclass(frozen=True)
class Damage:
    """What images are to be damaged by; made kind by kind, for all at once would not fit into memory."""

    corrupted: Mapping[str, Callable[[int], Tensor]]
    """All images (n, 3, h, w) at a severity."""
    perturbed: Mapping[str, Callable[[Tensor], Tensor]]
    """The sequences (k, frames, 3, h, w) of the images with these numbers."""
    generated: bool = True

    @property
    def kinds(self) -> list[str]:
        """In the words of `RobustnessScores.by_kind`."""
        return [*self.corrupted, *map(along, self.perturbed)]


def labelled_images(
    data: str, model: ContinualClassifier, limit: int | None, seed: int, progress: Progress
) -> ImageSet:
    """The images of a folder, or the test images of a source; at most so many of them, drawn by seed."""
    if data.partition(":")[0] in sources and not Path(data).exists():
        same = model.recipe.data.source == data  # then what was held out for testing is held out here
        options = model.recipe.data if same else DataOptions(source=data)
        images = load_source(options, model.recipe.seed, model.extractor.preprocessing.size, progress).test
    else:
        images = read_images(data, model.working_size, progress, "test").images
    if limit is None or limit >= len(images):
        return images
    order = torch.randperm(len(images), generator=generator(seed, "robustness limit"))
    return images.subset(order[:limit].sort().values)


class Exam:
    """Labelled images as a model looks at them: as they are where all have one size, or else what it sees of them."""

    def __init__(self, model: ContinualClassifier, images: ImageSet) -> None:
        if unknown := [name for name in images.classes if name not in model.classes]:
            raise LcaError(f"the model never learnt {unknown[0]!r}; it knows {', '.join(model.classes[:5])}, ...")
        self._model, self._own_labels = model, images.labels
        self.labels = torch.tensor([model.classes.index(name) for name in images.classes])[images.labels]
        self._centre_crop, sizes = model.view.centre_crop, images.sizes
        if len(sizes.unique(dim=0)) == 1:
            height, width = sizes[0].tolist()
            pixels = images.pixels.canvas[:, :, :height, :width]
        else:
            scaling, parts = model.extractor.preprocessing, torch.arange(len(images)).split(256)
            crops = [evaluation_crop(images.batch(part), scaling, self._centre_crop) for part in parts]
            pixels, self._centre_crop = torch.cat([crop.round().byte() for crop in crops]), 1.0
        self.pixels = pixels.to(model.compute.device)
        """(n, 3, h, w) in uint8."""

    def damage(
        self,
        kinds: str = "cp",
        names: Sequence[str] = (),
        *,
        seed: int = 0,
        files: Sequence[Path] = (),
        progress: Progress | None = None,
    ) -> Damage:
        """`c`: all corruptions, `p`: the usual sequences; `names` chooses some kinds instead.

        With `files`, folders with the published arrays for these very images, in their order, they are read instead of
        generated.
        """
        known = sorted({*corruptions.NAMES, *perturbations.NAMES})
        if wrong := [name for name in names if name not in known]:
            raise LcaError(f"{wrong[0]!r} is no corruption and no perturbation; {nearest(wrong[0], known)}")
        every = self._published(files, "c" in kinds) if files else self._generated(seed)
        wanted_c = [name for name in names or corruptions.NAMES if "c" in kinds and name in corruptions.NAMES]
        wanted_p = [name for name in names or perturbations.STANDARD if "p" in kinds and name in perturbations.NAMES]
        for what, wanted, there in (
            ("corruptions", wanted_c, every.corrupted.keys()),
            ("sequences", wanted_p, every.perturbed.keys()),
        ):
            missing = [name for name in wanted if name not in there]
            if there and missing and progress is not None:
                progress.warning(f"missing {what}: {', '.join(missing)}; every mean is over the others")
        chosen = Damage(
            {name: make for name, make in every.corrupted.items() if name in wanted_c},
            {name: make for name, make in every.perturbed.items() if name in wanted_p},
            every.generated,
        )
        if not chosen.kinds:
            where = ", ".join(map(str, files)) if files else "what was asked for"
            raise LcaError(f"{where} holds no corruption and no sequence to measure; look at --kind and --only")
        return chosen

    def measure(
        self,
        damage: Damage,
        *,
        severities: Sequence[int] = SEVERITIES,
        branches: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> dict[str, RobustnessScores]:
        """The scores of the model's classifiers: of `branches`, or of the one that answers."""
        asked = list(branches or [self._model.branch])
        frames = sum(make(torch.arange(1)).shape[1] for make in damage.perturbed.values())
        steps = 1 + len(damage.corrupted) * len(severities) + frames
        with (progress or Progress()).task("robustness", steps) as advance:
            answer = partial(self._answer, asked)
            scores = score(answer, self.pixels, self.labels, damage, severities=severities, advance=advance)
        return dict(zip(asked, scores, strict=True))

    def _answer(self, branches: Sequence[str], images: Tensor) -> Tensor:
        model = self._model
        pixels = Pixels(images.to(self.pixels.device), torch.tensor(images.shape[2:]).expand(len(images), 2))
        features = model.features(pixels, centre_crop=self._centre_crop)
        return torch.stack([model.logits(features, branch).argmax(1) for branch in branches], 1)

    def _generated(self, seed: int) -> Damage:
        def sequences(name: str, numbers: Tensor) -> Tensor:
            return perturb(self.pixels[numbers.to(self.pixels.device)], name, seed, numbers.tolist())

        return Damage(
            {name: partial(corrupt, self.pixels, name, seed=seed) for name in corruptions.NAMES},
            {name: partial(sequences, name) for name in perturbations.NAMES},
        )

    def _published(self, folders: Sequence[Path], corrupted: bool) -> Damage:
        found = Damage({}, {}, generated=False)
        for folder in folders:
            if not folder.is_dir():
                raise LcaError(f"there is no folder {folder}; expected the unpacked archive of CIFAR-100-C or -P")
            sequences = perturbed_files(folder, len(self.labels))
            images: Mapping[str, Callable[[int], Tensor]] = {}
            if corrupted and (not sequences or (folder / "labels.npy").exists()):  # -P has no labels
                images = corrupted_files(folder, self._own_labels)
            found = Damage({**found.corrupted, **images}, {**found.perturbed, **sequences}, generated=False)
        return found


def accuracy(answers: Tensor, labels: Tensor) -> float:
    """Share of right answers, in per cent."""
    return float(100 * (answers.cpu() == labels.cpu()).double().mean())


def sequence_scores(answers: Tensor, labels: Tensor, noise: bool) -> dict[str, float]:
    """Accuracy and flip rates of answers (n, frames)."""
    answers = answers.cpu()
    right = answers == labels.cpu()[:, None]
    previous = answers[:, 1:] != answers[:, :-1]
    flips = answers[:, 1:] != answers[:, :1] if noise else previous
    shares = {"accuracy": right, "flips": flips, "flips_previous": previous}
    return {name: float(100 * each.double().mean()) for name, each in shares.items()}


def score(
    answer: Answers,
    images: Tensor,
    labels: Tensor,
    damage: Damage,
    *,
    severities: Sequence[int] = SEVERITIES,
    at_once: int = 512,
    advance: Callable[[int], None] = lambda steps: None,
) -> list[RobustnessScores]:
    """Ask classifiers about images (n, 3, h, w) in uint8, about every kind of damage of all of them, along sequences.

    `advance` is told how often all were asked.
    """

    def asked(every: Tensor) -> list[Tensor]:
        """The answers (n,) of each classifier."""
        return list(torch.cat([answer(part) for part in every.split(at_once)]).unbind(1))

    found = [RobustnessScores(accuracy(answers, labels), len(images), damage.generated) for answers in asked(images)]
    advance(1)
    for name, make in damage.corrupted.items():
        for severity in severities:
            for scores, answers in zip(found, asked(make(severity)), strict=True):
                scores.corrupted.setdefault(name, {})[severity] = accuracy(answers, labels)
            advance(1)
    together = max(AT_ONCE // (FRAMES * max(images[:1].numel(), 1)), 1)
    for name, sequences in damage.perturbed.items():
        rows: list[list[Tensor]] = [[] for _ in found]
        for numbers in torch.arange(len(images)).split(together):
            frames = sequences(numbers)
            for row, answers in zip(rows, asked(frames.flatten(0, 1)), strict=True):
                row.append(answers.reshape(len(frames), -1).cpu())
        for scores, row in zip(found, rows, strict=True):
            scores.perturbed[name] = sequence_scores(torch.cat(row), labels, name in NOISE)
        advance(rows[0][0].shape[1])
    return found
