"""Advice by hand."""

from dataclasses import replace

from lca.evaluation.answers import Answer, Evaluation
from lca.history import Change, Lesson, OldClasses
from lca.report.advice import (
    OF_A_KIND,
    advice,
    hurt_by_lessons,
    look_alikes,
    more_photos,
    to_check,
    unlike_the_learnt,
)


def answered(truth, label, probability=0.6, nearest=None, unknown=False, times=1):
    return [Answer(truth, label, probability, unknown, None, nearest)] * times


def texts(found):
    return [each.text for each in found]


def test_sure_and_nearer_photos_are_to_be_checked():
    answers = [
        *answered("cat", "cat", 0.9, "cat"),
        *answered("cat", "dog", 0.85, "dog"),
        *answered("cat", "dog", 0.99, "dog"),
        *answered("cat", "dog", 0.95, "cat"),  # nearer to its own class
        *answered("cat", "dog", 0.79, "dog"),  # not sure
        *answered("dog", "cat", 0.9, None),  # no statistics: the probability has to do
        *answered("dog", "dog", 0.9, None),
        *answered("elk", "dog", 0.99, "dog"),  # of a class it does not know
    ]
    found = list(to_check(answers))
    assert texts(found) == [
        "These 2 photos of cat are nearer to dog: check them.",
        "This photo of dog is nearer to cat: check it.",
    ]
    assert [each.photos for each in found] == [[2, 1], [5]]


def test_classes_that_look_alike():
    answers = answered("rose", "rose", times=8) + answered("rose", "tulip", times=1)
    answers += answered("tulip", "tulip", times=9) + answered("tulip", "rose", times=1) + answered("iris", "rose")
    evaluation = Evaluation(answers, ("iris", "rose", "tulip"))
    (found,) = texts(look_alikes(evaluation))
    assert found.startswith("rose and tulip look alike: 2 of their 19 photos are taken for the other.")
    more = Evaluation(answers + answered("tulip", "tulip", times=2), evaluation.classes)
    assert not list(look_alikes(more)), "2 of 21 are less than a tenth"


def test_more_photos_of_what_does_worse():
    answers = answered("a", "a", times=2) + answered("a", "b", times=2)
    answers += answered("b", "b", times=30) + answered("c", "c", times=9) + answered("c", "b", times=21)
    answers += answered("d", "d", times=9) + answered("d", "b", times=1)
    evaluation = Evaluation(answers, tuple("abcd"))
    found = texts(more_photos(evaluation, {"a": 4, "b": 4, "c": 50, "d": 4}))
    assert found == [
        "5 more photos of c: 9 of 30 are named rightly, and it was learnt from 50.",
        "5 more photos of a: 2 of 4 are named rightly, and it was learnt from 4.",
    ]
    assert len(list(more_photos(evaluation, dict.fromkeys("abcd", 10)))) == 1, "chance explains a's two of four"


def test_photos_unlike_the_learnt():
    answers = answered("a", "a", unknown=True, times=2) + answered("a", "a", times=8)
    answers += answered("b", "b", unknown=True) + answered("x", "a", unknown=True, times=5)
    (found,) = unlike_the_learnt(Evaluation(answers, ("a", "b")))
    assert found.text.startswith("2 of 10 photos of a are called unknown")
    assert found.photos == [0, 1]
    assert not list(unlike_the_learnt(Evaluation(answers + answered("a", "a"), ("a", "b"))))


def test_what_a_lesson_hurt_until_it_is_taught_again():
    first = Lesson("learn", None, {"a": 9, "b": 9}, ["a", "b"])
    changed = {"a": Change(98.0, 71.4, "c"), "b": Change(50.0, 90.0, None)}
    second = Lesson("learn", None, {"c": 9}, ["c"], old_classes=OldClasses(74.0, 80.7, 200, changed))
    assert texts(hurt_by_lessons([first, second], {"a": 9, "b": 9, "c": 9})) == [
        "Lesson 2 hurt a (from 98 to 71 % by the estimate): teach it again together with c."
    ]
    again = Lesson("learn", None, {"a": 9, "c": 9}, [])
    assert not texts(hurt_by_lessons([first, second, again], {"a": 18, "b": 9, "c": 18}))
    assert not texts(hurt_by_lessons([first, second], {"b": 9, "c": 9})), "a was forgotten"
    assert not texts(hurt_by_lessons([first, replace(second, old_classes=None)], {"a": 9}))


def test_nothing_stands_out_where_all_is_right():
    evaluation = Evaluation(answered("a", "a", 0.99, "a", times=5) + answered("b", "b", times=5), ("a", "b"))
    assert advice(evaluation, {"a": 3, "b": 3}, []) == []


def test_of_every_kind_there_are_a_few():
    names = "abcdef"
    answers = [each for name in names for each in answered(name, name, times=2)]
    answers += [each for name in names[1:] for each in answered(name, "a", 0.9, "a")]
    evaluation = Evaluation(answers, tuple(names))
    found = texts(advice(evaluation, dict.fromkeys(names, 3), []))
    assert len(list(to_check(answers))) == 5
    assert sum("nearer to" in text for text in found) == OF_A_KIND == 4
    assert found[0] == "This photo of b is nearer to a: check it."
