import pytest
import torch

from lca.data.images import ClosedError, Pixels


def test_images_of_any_size_share_a_canvas():
    images = [torch.full((3, 2, 5), 7, dtype=torch.uint8), torch.full((3, 4, 1), 9, dtype=torch.uint8)]
    pixels = Pixels.of(images)
    assert pixels.canvas.shape == (2, 3, 4, 5)
    assert pixels.canvas.dtype == torch.uint8
    assert pixels.sizes.tolist() == [[2, 5], [4, 1]]
    for image, canvas, (height, width) in zip(images, pixels.canvas, pixels.sizes.tolist(), strict=True):
        assert torch.equal(canvas[:, :height, :width], image)
        assert canvas.sum() == image.sum()
    assert pixels[torch.tensor([1])].sizes.tolist() == [[4, 1]]


def test_no_images():
    assert len(Pixels.of([])) == 0
    assert Pixels.of([]).sizes.shape == (0, 2)


def test_a_subset(make_images):
    images = make_images(("a", "b"), 3)
    part = images.subset(torch.tensor([4, 0]))
    assert part.labels.tolist() == [1, 0]
    assert torch.equal(part.pixels.canvas, images.pixels.canvas[[4, 0]])
    assert part.classes == ("a", "b")


def test_the_images_of_chosen_classes_come_class_by_class(make_images):
    images = make_images(("a", "b", "c"), [2, 3, 1])
    shuffled = images.subset(torch.tensor([5, 3, 0, 2, 1, 4]))
    chosen = shuffled.of_classes(["c", "a"])
    assert chosen.classes == ("c", "a")
    assert chosen.labels.tolist() == [0, 1, 1]
    assert torch.equal(chosen.pixels.canvas, images.pixels.canvas[[5, 0, 1]])


def test_nothing_can_be_read_after_close(make_images):
    images = make_images(("a",), 2)
    images.close()
    for read in (lambda: images.pixels, lambda: images.labels, lambda: len(images), lambda: images.of_classes(["a"])):
        with pytest.raises(ClosedError, match="task that is over"):
            read()
    with pytest.raises(ClosedError):
        images.subset(torch.tensor([0]))
