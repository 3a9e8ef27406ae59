"""Telling OOD images from known images: by hand, with ties, and against scikit-learn."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from lca.evaluation.detection import accepted_ood, auroc, detection, refused_known

scores = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=50).map(torch.tensor)


def test_the_area_by_hand():
    """OOD images 2, 3 against known 1, 2, 4: of six pairs three are won, one is equal."""
    known, ood = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0, 2.0])
    assert auroc(known, ood) == pytest.approx(100 * 3.5 / 6)
    assert auroc(ood, known) == pytest.approx(100 * 2.5 / 6)
    assert auroc(known, known + 10) == 100
    assert auroc(known + 10, known) == 0
    assert auroc(torch.ones(5), torch.ones(3)) == 50


def test_both_false_positive_rates_by_hand():
    """95 % of twenty known images (0 to 19) are accepted up to 18; of the OOD images 17, 18, 18.5, 40 two lie there.
    95 % of four OOD images are all four, from 17 on; there lie three of the known images."""
    known, ood = torch.arange(20.0), torch.tensor([18.5, 40.0, 17.0, 18.0])
    assert accepted_ood(known, ood) == 50
    assert refused_known(known, ood) == pytest.approx(100 * 3 / 20)
    assert detection(known, ood) == {
        "auroc": auroc(known, ood),
        "fpr95_known_positive": 50,
        "fpr95_ood_positive": 15,
    }


def test_equal_scores_are_all_accepted_or_all_refused():
    assert accepted_ood(torch.ones(20), torch.ones(3)) == 100
    assert refused_known(torch.ones(20), torch.ones(3)) == 100


@given(known=scores, ood=scores)
def test_scikit_learn_agrees_also_with_ties(known, ood):
    truth, score = [0] * len(known) + [1] * len(ood), torch.cat([known, ood]).numpy()
    assert auroc(known, ood) == pytest.approx(100 * roc_auc_score(truth, score))
    false, true, _ = roc_curve(truth, score, drop_intermediate=False)
    assert refused_known(known, ood) == pytest.approx(100 * false[(true >= 0.95).argmax()])
    false, true, _ = roc_curve([1 - each for each in truth], -score, drop_intermediate=False)
    assert accepted_ood(known, ood) == pytest.approx(100 * false[(true >= 0.95).argmax()])


@pytest.mark.parametrize("ask", [auroc, accepted_ood, refused_known])
def test_it_needs_images_of_both_kinds(ask):
    for known, ood in ((torch.ones(2), torch.ones(0)), (torch.ones(0), torch.ones(2))):
        with pytest.raises(ValueError, match="without images of both kinds"):
            ask(known, ood)


@pytest.mark.parametrize("ask", [auroc, accepted_ood, refused_known])
def test_scores_that_are_no_numbers_are_refused(ask):
    some, none = torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.nan])
    for known, ood in ((some, none), (none, some)):
        with pytest.raises(ValueError, match="NaN"):
            ask(known, ood)
    assert auroc(torch.tensor([1.0, torch.inf]), torch.tensor([torch.inf])) == 75
