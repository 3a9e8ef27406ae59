"""The published CIFAR-10/100-C and -P files: NumPy arrays that are read in place, piece by piece.

-C: `labels.npy` (50000,) and a `NAME.npy` (50000, 32, 32, 3) for every corruption, 10,000 images of each severity one
after the other. -P: a `NAME.npy` (10000, frames, 32, 32, 3) for every perturbation, in the order of the test set.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lca.damage import corruptions, perturbations
from lca.errors import LcaError

SEVERITIES = 5


def corrupted_files(folder: Path, labels: Tensor) -> dict[str, Callable[[int], Tensor]]:
    """The images of every corruption by severity, for test images with these labels."""
    count = len(labels)
    stored = _array(folder / "labels.npy")
    if stored.shape != (SEVERITIES * count,) or not np.array_equal(stored[:count], labels.numpy()):
        raise LcaError(
            f"{folder / 'labels.npy'} has {stored.size} labels that do not repeat those of the {count} test images "
            f"{SEVERITIES} times; expected the labels of the same test set, in its order"
        )
    paths = {name: folder / f"{name}.npy" for name in corruptions.NAMES}
    arrays = {name: _images(path, (SEVERITIES * count,)) for name, path in paths.items() if path.exists()}
    return {name: partial(_of_severity, array, count) for name, array in arrays.items()}


def perturbed_files(folder: Path, count: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """The sequences of every perturbation, by the numbers of images."""
    paths = {name: folder / f"{name}.npy" for name in perturbations.NAMES}
    sequences = {name: path for name, path in paths.items() if path.exists() and _array(path).ndim == 5}
    return {name: partial(_of_images, _images(path, (count, None))) for name, path in sequences.items()}


def _of_severity(array: np.ndarray, count: int, severity: int) -> Tensor:
    return _tensor(array[(severity - 1) * count : severity * count])


def _of_images(array: np.ndarray, numbers: Tensor) -> Tensor:
    return _tensor(array[numbers.numpy()])


def _array(path: Path) -> np.ndarray:
    try:
        found: np.ndarray = np.lib.format.open_memmap(path, mode="r")  # of `load`'s formats the only one expected
    except FileNotFoundError:
        raise LcaError(f"there is no {path}; expected the unpacked archive of the published files") from None
    except Exception as error:  # for a damaged header NumPy raises whatever its parser does
        raise LcaError(f"{path} cannot be read as a NumPy array ({error}); unpack the archive again") from error
    return found


def _images(path: Path, start: tuple[int | None, ...]) -> np.ndarray:
    array = _array(path)
    fits = array.ndim == len(start) + 3 and array.shape[-1] == 3 and array.dtype == np.uint8
    if not fits or any(want not in (None, got) for want, got in zip(start, array.shape, strict=False)):
        wanted = ", ".join("frames" if each is None else str(each) for each in start)
        raise LcaError(f"{path} holds {array.dtype} {array.shape}; expected uint8 ({wanted}, height, width, 3)")
    return array


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array)).movedim(-1, -3)
