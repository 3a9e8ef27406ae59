"""A model's robustness: the generated or the published damage of labelled images, scored."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lca.classifier import ContinualClassifier
from lca.damage import corruptions, perturbations
from lca.damage.corruptions import corrupt
from lca.damage.official import corrupted_files, perturbed_files
from lca.damage.perturbations import perturb
from lca.data.images import ImageSet, Pixels
from lca.data.views import evaluation_crop
from lca.errors import LcaError, nearest
from lca.progress import Progress
from lca.results.robustness import RobustnessScores, along, measure


def prepared(images: ImageSet, model: ContinualClassifier) -> tuple[Tensor, float]:
    """Images (n, 3, h, w) of one size in uint8, and the centre crop with which the model is to look at them: images as
    they are where all have one size, or else what the model sees of them."""
    sizes, centre_crop = images.sizes, model.view.centre_crop
    if len(sizes.unique(dim=0)) == 1:
        height, width = sizes[0].tolist()
        return images.pixels.canvas[:, :, :height, :width], centre_crop
    scaling, parts = model.extractor.preprocessing, torch.arange(len(images)).split(256)
    return torch.cat([evaluation_crop(images.batch(part), scaling, centre_crop).round().byte() for part in parts]), 1.0


def robustness(
    model: ContinualClassifier,
    images: ImageSet,
    *,
    kinds: Sequence[str] = ("c", "p"),
    names: Sequence[str] = (),
    severities: Sequence[int] = corruptions.SEVERITIES,
    seed: int = 0,
    branches: Sequence[str] = (),
    files: Sequence[Path] = (),
    progress: Progress | None = None,
    planned: Callable[[Sequence[str]], None] = lambda kinds: None,
) -> dict[str, RobustnessScores]:
    """Score the classifiers of a model, `branches` or the one that answers, on labelled images whose classes it knows.

    `kinds`: `c` for corruptions, `p` for sequences; `names` limits both to some. With `files`, folders with the
    published arrays for these very images, in their order, they are read instead of generated. `planned` is told what
    is going to be measured, in the words of `RobustnessScores.by_kind`; what it raises ends it.
    """
    if unknown := [name for name in images.classes if name not in model.classes]:
        raise LcaError(f"the model never learnt {unknown[0]!r}; it knows {', '.join(model.classes[:5])}, ...")
    if wrong := [name for name in names if name not in (*corruptions.NAMES, *perturbations.NAMES)]:
        known = sorted({*corruptions.NAMES, *perturbations.NAMES})
        raise LcaError(f"{wrong[0]!r} is no corruption and no perturbation; {nearest(wrong[0], known)}")
    asked = list(branches or [model.branch])
    if no_branch := [name for name in asked if name not in model.method.branches()]:
        raise LcaError(f"there is no branch {no_branch[0]!r}; there are {model.method.branches()}")
    progress, device = progress or Progress(), model.compute.device
    labels = torch.tensor([model.classes.index(name) for name in images.classes])[images.labels]
    whole, crop = prepared(images, model)
    whole = whole.to(device)

    def answer(part: Tensor) -> Tensor:
        pixels = Pixels(part.to(device), torch.tensor(part.shape[2:]).expand(len(part), 2))
        features = model.features(pixels, centre_crop=crop)
        return torch.stack([model.logits(features, branch).argmax(1) for branch in asked], 1)

    def sequences(name: str, numbers: Tensor) -> Tensor:
        return perturb(whole[numbers.to(device)], name, seed, numbers.tolist())

    every_c: dict[str, Callable[[int], Tensor]] = {}
    every_p: dict[str, Callable[[Tensor], Tensor]] = {}
    if not files:
        every_c = {name: partial(corrupt, whole, name, seed=seed) for name in corruptions.NAMES}
        every_p = {name: partial(sequences, name) for name in perturbations.NAMES}
    for folder in files:
        if not folder.is_dir():
            raise LcaError(f"there is no folder {folder}; expected the unpacked archive of CIFAR-100-C or -P")
        found_p = perturbed_files(folder, len(labels))
        every_p |= found_p
        if "c" in kinds and (not found_p or (folder / "labels.npy").exists()):  # -P has no labels
            every_c |= corrupted_files(folder, images.labels)
    wanted_c = [name for name in names or corruptions.NAMES if "c" in kinds and name in corruptions.NAMES]
    wanted_p = [name for name in names or perturbations.STANDARD if "p" in kinds and name in perturbations.NAMES]
    corrupted = {name: make for name, make in every_c.items() if name in wanted_c}
    perturbed = {name: make for name, make in every_p.items() if name in wanted_p}
    if not corrupted and not perturbed:
        where = ", ".join(map(str, files)) if files else "what was asked for"
        raise LcaError(f"{where} holds no corruption and no sequence to measure; look at --kind and --only")
    for what, wanted, every in (("corruptions", wanted_c, [*every_c]), ("sequences", wanted_p, [*every_p])):
        missing = [name for name in wanted if name not in every]
        if every and missing:
            progress.warning(f"missing {what}: {', '.join(missing)}; every mean is over the others")
    planned([*corrupted, *map(along, perturbed)])
    frames = sum(make(torch.arange(1)).shape[1] for make in perturbed.values())
    with progress.task("robustness", 1 + len(corrupted) * len(severities) + frames) as advance:
        scores = measure(
            answer, whole, labels, corrupted, perturbed, generated=not files, severities=severities, advance=advance
        )
    return dict(zip(asked, scores, strict=True))
