"""Where features lie: against the definitions, and against statistics that are fitted anew without an image."""

import pytest
import torch

from lca.statistics.gaussians import CovarianceOptions, GaussianMemory
from lca.statistics.surroundings import left_out_surroundings, surroundings, typical_surroundings

WIDTH = 6
BACKGROUND = 4 * torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(77))


def drawn(counts=(7, 4, 9), seed=0, apart=3.0):
    random = torch.Generator().manual_seed(seed)
    return [
        apart * torch.randn(WIDTH, generator=random) + torch.randn(count, WIDTH, generator=random) for count in counts
    ]


def memory_of(classes, **options):
    memory = GaussianMemory(CovarianceOptions(**options))
    for label, rows in enumerate(classes):
        if len(rows):
            memory.observe(label, rows)
    return memory


def by_hand(memory, features):
    """d (n, classes), e (n,) and b (n,) with the covariance written out."""
    factors = [memory.rows_of(label).double() for label in sorted(memory.classes)]
    scatter = sum((rows.T @ rows for rows in factors), torch.zeros(WIDTH, WIDTH, dtype=torch.float64))
    covariance = scatter / sum(gaussian.count - 1 for gaussian in memory.classes.values())
    shrunk = 0.5 * covariance + (0.5 * covariance.trace() / WIDTH + 1e-4) * torch.eye(WIDTH)
    inverse, means = torch.linalg.inv(shrunk), memory.means().double()

    def squared(points):
        apart = features.double()[:, None] - points.double()
        return torch.einsum("nkd,de,nke->nk", apart, inverse, apart)

    return squared(means), squared(means.mean(0, keepdim=True))[:, 0], squared(BACKGROUND).amin(1)


def test_distances_are_those_of_the_definition():
    memory, features = memory_of(drawn()), 5 * torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(1))
    found = surroundings(memory, features, BACKGROUND)
    for one, other in zip((found.classes, found.centre, found.background), by_hand(memory, features), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("apart", [3.0, 0.3])
def test_an_image_is_left_out_of_covariance_class_mean_and_middle(apart):
    """As statistics that never saw it say."""
    classes = drawn(apart=apart)
    memory, labels = memory_of(classes), torch.arange(3).repeat_interleave(torch.tensor([7, 4, 9]))
    found = left_out_surroundings(memory, torch.cat(classes), labels, BACKGROUND)
    number = 0
    for rows in classes:
        for place in range(len(rows)):
            rest = [torch.cat([own[:place], own[place + 1 :]]) if own is rows else own for own in classes]
            d, e, b = by_hand(memory_of(rest), rows[place : place + 1])
            assert found.classes[number].tolist() == pytest.approx(d[0].tolist(), rel=1e-4)
            assert float(found.centre[number]) == pytest.approx(float(e), rel=1e-4)
            assert float(found.background[number]) == pytest.approx(float(b), rel=1e-4)
            number += 1


def test_an_only_image_has_nothing_to_be_measured_with():
    classes = drawn((1, 8))
    labels = torch.tensor([0, *[1] * 8])
    found = left_out_surroundings(memory_of(classes), torch.cat(classes), labels, BACKGROUND)
    assert found.centre.isnan().tolist() == [True, *[False] * 8]


@pytest.mark.parametrize("counts", [(60, 60, 60), (12, 30, 7)])
def test_what_is_typical_is_about_the_mean_over_the_images(counts):
    """Of the images that were learnt, each left out, from the stored Gaussians alone."""
    classes = drawn(counts)
    memory = memory_of(classes)
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    found, each = (
        typical_surroundings(memory, BACKGROUND[:1]),
        left_out_surroundings(memory, torch.cat(classes), labels, BACKGROUND[:1]),
    )
    rough = 0.03 if counts[0] == 60 else 0.12
    for label in range(3):
        assert float(found.centre[label]) == pytest.approx(float(each.centre[labels == label].mean()), rel=rough)
        assert float(found.background[label]) == pytest.approx(
            float(each.background[labels == label].mean()), rel=rough
        )
    torch.testing.assert_close(found.classes[:, 0].float(), memory.typical_distances())
    assert typical_surroundings(memory_of(drawn((1, 8))), BACKGROUND).classes[0].isnan()


def test_a_typical_image_is_told_by_the_nearest_mean_of_the_background():
    memory = memory_of(drawn())
    found, each = (
        typical_surroundings(memory, BACKGROUND),
        [typical_surroundings(memory, row[None]) for row in BACKGROUND],
    )
    torch.testing.assert_close(found.background, torch.stack([one.background for one in each]).amin(0))
