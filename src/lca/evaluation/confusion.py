"""What is taken for what."""

import torch
from torch import Tensor


def confusion_matrix(predictions: Tensor, labels: Tensor, classes: int) -> Tensor:
    """C_ij = number of images of class i that were called j: (classes, classes), int64."""
    places = labels.long() * classes + predictions.long()
    return torch.bincount(places, minlength=classes * classes).reshape(classes, classes)


def most_confused(matrix: Tensor, count: int = 10) -> list[tuple[int, int, int]]:
    """(truth, answer, times) of the largest C_ij with i ≠ j, at most `count` and none that is zero; equal ones in the
    order of the classes."""
    wrong = matrix.clone().fill_diagonal_(0).flatten()
    order = torch.argsort(wrong, descending=True, stable=True)[:count]
    classes = len(matrix)
    found = zip(order.tolist(), wrong[order].tolist(), strict=True)
    return [(place // classes, place % classes, times) for place, times in found if times]
