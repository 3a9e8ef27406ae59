"""Confusions by hand and against scikit-learn."""

import torch
from sklearn import metrics

from lca.evaluation.confusion import confusion_matrix, most_confused

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
GUESSES = torch.tensor([0, 2, 2, 1, 0, 0, 0, 2])


def test_the_matrix_by_hand():
    assert confusion_matrix(GUESSES, LABELS, 4).tolist() == [[1, 0, 2, 0], [1, 1, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]]


def test_the_matrix_is_that_of_scikit_learn():
    random = torch.Generator().manual_seed(0)
    labels, guesses = (torch.randint(7, (200,), generator=random) for _ in range(2))
    expected = metrics.confusion_matrix(labels, guesses, labels=range(7))
    assert confusion_matrix(guesses.int(), labels, 7).tolist() == expected.tolist()


def test_the_most_confused_by_hand():
    matrix = confusion_matrix(GUESSES, LABELS, 4)
    assert most_confused(matrix) == [(0, 2, 2), (2, 0, 2), (1, 0, 1)], "equal ones in the order of the classes"
    assert most_confused(matrix, 1) == [(0, 2, 2)]
    assert matrix[0, 0] == 1, "the matrix is left as it was"
    assert most_confused(torch.eye(3, dtype=torch.long)) == []
