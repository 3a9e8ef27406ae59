"""Metrics against matrices computed by hand and against scikit-learn."""

import random

import pytest
import torch
from sklearn.metrics import accuracy_score, recall_score

from lca.evaluation.accuracy import AccuracyRecord, correct_by_class, intransigence, running_means
from lca.results.metrics import metrics_of_counts, summary

# Tasks of 1, 3 and 2 classes; after each task the correct answers per class.
RECORD = AccuracyRecord(
    correct=[[4], [1, 10, 5, 0], [2, 5, 5, 10, 3, 6]],
    total=[4, 10, 20, 10, 3, 12],
    task_sizes=[1, 3, 2],
)


def test_the_matrix_by_hand():
    assert RECORD.matrix() == [
        [100.0],
        [25.0, pytest.approx(100 * 15 / 40)],
        [50.0, pytest.approx(100 * 20 / 40), pytest.approx(100 * 9 / 15)],
    ]


def test_both_averages_by_hand():
    assert RECORD.task_mean() == [100.0, pytest.approx((25 + 37.5) / 2), pytest.approx((50 + 50 + 60) / 3)]
    assert RECORD.sample_weighted() == [100.0, pytest.approx(100 * 16 / 44), pytest.approx(100 * 31 / 59)]


def test_metrics_by_hand():
    metrics = metrics_of_counts(RECORD)
    assert metrics["average_accuracy"]["task_mean"] == pytest.approx((100 + 31.25 + 160 / 3) / 3)
    assert metrics["average_accuracy"]["sample_weighted"] == pytest.approx((100 + 1600 / 44 + 3100 / 59) / 3)
    assert metrics["last_accuracy"] == {
        "task_mean": pytest.approx(160 / 3),
        "sample_weighted": pytest.approx(3100 / 59),
    }
    # task 1: best 100, last 50; task 2: best 50 (its last), so no drop
    assert metrics["forgetting"] == pytest.approx((50 + 0) / 2)
    assert metrics["learning_accuracy"] == pytest.approx((100 + 37.5 + 60) / 3)
    # task 1: 50 - 100; task 2: 50 - 37.5
    assert metrics["backward_transfer"] == pytest.approx((-50 + 12.5) / 2)
    assert metrics["oldest_and_newest"] == {"oldest": 50.0, "newest": 60.0}
    assert metrics["matrix"] == RECORD.matrix()
    assert metrics["after_each_task"]["task_mean"] == RECORD.task_mean()
    assert metrics["after_each_task"]["sample_weighted"] == RECORD.sample_weighted()


def test_forgetting_counts_from_the_best_not_from_the_first():
    record = AccuracyRecord([[2], [8, 5], [4, 1, 9]], [10, 10, 10], [1, 1, 1])
    assert record.forgetting() == pytest.approx(((80 - 40) + (50 - 10)) / 2)


def test_a_single_task_forgets_nothing():
    record = AccuracyRecord([[3, 4]], [5, 5], [2])
    assert record.forgetting() is None
    assert record.backward_transfer() is None
    assert record.learning_accuracy() == 70
    assert not {"forgetting", "backward transfer"} & set(summary(record))
    assert metrics_of_counts(record)["average_accuracy"] == {"task_mean": 70.0, "sample_weighted": 70.0}


def test_the_summary_names_the_same_numbers():
    metrics = metrics_of_counts(RECORD)
    assert summary(RECORD) == {
        "average accuracy": metrics["average_accuracy"]["sample_weighted"],
        "average accuracy, task mean": metrics["average_accuracy"]["task_mean"],
        "last accuracy": metrics["last_accuracy"]["sample_weighted"],
        "last accuracy, task mean": metrics["last_accuracy"]["task_mean"],
        "oldest": 50.0,
        "newest": 60.0,
        "learning accuracy": metrics["learning_accuracy"],
        "forgetting": metrics["forgetting"],
        "backward transfer": metrics["backward_transfer"],
    }


def test_tables_by_task_and_class_by_hand():
    assert RECORD.by_task() == [(2, 4), (20, 40), (9, 15)]
    assert RECORD.by_class() == [[100.0], [25.0, 100.0, 25.0, 0.0], [50.0, 50.0, 25.0, 100.0, 100.0, 50.0]]
    assert AccuracyRecord([[2, 0]], [4, 0], [2]).by_class() == [[50.0, None]], "a class without test images"


def test_a_task_without_test_images_has_no_accuracy():
    record = AccuracyRecord([[2], [1, 0], [1, 0, 3]], [2, 0, 4], [1, 1, 1])
    with pytest.raises(ValueError, match="task without test images"):
        metrics_of_counts(record)


def test_intransigence_by_hand():
    joint = AccuracyRecord([[3], [4, 10, 15, 5], [4, 10, 15, 5, 3, 12]], RECORD.total, RECORD.task_sizes)
    # a*_jj: 75, 75, 100; a_jj: 100, 37.5, 60
    assert intransigence(RECORD, joint) == pytest.approx((-25 + 37.5 + 40) / 3)
    assert intransigence(joint, RECORD) == pytest.approx(-(-25 + 37.5 + 40) / 3)
    assert intransigence(RECORD, RECORD) == 0


def test_intransigence_needs_the_same_tasks_and_images():
    for other in (
        AccuracyRecord(RECORD.correct, [5, *RECORD.total[1:]], RECORD.task_sizes),
        AccuracyRecord(RECORD.correct, RECORD.total, [1, 2, 3]),
    ):
        with pytest.raises(ValueError, match="different tasks or test images"):
            intransigence(RECORD, other)


def test_tasks_of_equal_images_have_equal_averages():
    record = AccuracyRecord([[3, 4], [1, 2, 5, 0]], [5, 5, 5, 5], [2, 2])
    assert record.task_mean() == pytest.approx(record.sample_weighted())


@pytest.mark.parametrize("seed", range(5))
def test_scikit_learn_agrees(seed):
    draw = random.Random(seed)
    sizes = [draw.randint(1, 4) for _ in range(4)]
    classes = sum(sizes)
    labels = torch.tensor([label for label in range(classes) for _ in range(draw.randint(1, 9))])
    ends = [sum(sizes[: number + 1]) for number in range(4)]
    correct, weighted, recalls = [], [], []
    for end in ends:
        seen = labels[labels < end]
        guesses = torch.where(torch.rand(len(seen), generator=torch.Generator().manual_seed(seed)) < 0.6, seen, 0)
        correct.append(correct_by_class(guesses == seen, seen, end))
        weighted.append(100 * accuracy_score(seen, guesses))
        recalls.append(recall_score(seen, guesses, average=None, labels=range(end)))
    total = torch.bincount(labels, minlength=classes).tolist()
    record = AccuracyRecord(correct, total, sizes)
    assert record.sample_weighted() == pytest.approx(weighted)
    for row, recall, end in zip(record.correct, recalls, ends, strict=True):
        assert [count / size for count, size in zip(row, total[:end], strict=True)] == pytest.approx(list(recall))
    assert metrics_of_counts(record)["average_accuracy"]["sample_weighted"] == pytest.approx(sum(weighted) / 4)


def test_correct_answers_by_class():
    labels = torch.tensor([0, 0, 1, 1, 1, 3])
    guesses = torch.tensor([0, 1, 1, 1, 0, 3])
    assert correct_by_class(guesses == labels, labels, 5) == [1, 2, 0, 1, 0]
    assert correct_by_class(labels[:0] > 0, labels[:0], 3) == [0, 0, 0]


def test_running_means_end_at_the_average_accuracy():
    record = AccuracyRecord([[8, 8], [6, 6, 7, 7]], [10, 10, 10, 10], [2, 2])
    curve = record.sample_weighted()
    assert running_means(curve) == [80.0, 72.5]
    assert running_means(curve)[-1] == metrics_of_counts(record)["average_accuracy"]["sample_weighted"]
