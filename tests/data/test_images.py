import pytest
import torch

from lca.data.images import ClosedError, ImageSet, Packed, Pixels, packed


def test_images_of_any_size_share_a_canvas():
    images = [torch.full((3, 2, 5), 7, dtype=torch.uint8), torch.full((3, 4, 1), 9, dtype=torch.uint8)]
    pixels = Pixels.of(images)
    assert pixels.canvas.shape == (2, 3, 4, 5)
    assert pixels.canvas.dtype == torch.uint8
    assert pixels.sizes.tolist() == [[2, 5], [4, 1]]
    for image, canvas, (height, width) in zip(images, pixels.canvas, pixels.sizes.tolist(), strict=True):
        assert torch.equal(canvas[:, :height, :width], image)
        assert canvas.sum() == image.sum()
    assert pixels.batch(torch.tensor([1])).sizes.tolist() == [[4, 1]]


def some_images(sizes):
    draws = torch.Generator().manual_seed(0)
    return [torch.randint(256, (3, *size), generator=draws, dtype=torch.uint8) for size in sizes]


def in_a_row(images):
    return packed(torch.cat([each.flatten() for each in images]), torch.tensor([each.shape[1:] for each in images]))


def test_images_in_a_row_get_a_canvas_by_the_batch():
    images = some_images([(2, 5), (4, 1), (3, 3), (4, 5)])
    row = in_a_row(images)
    assert isinstance(row, Packed)
    assert len(row) == 4
    batch = row.batch(torch.tensor([2, 0]))
    assert batch.canvas.shape == (2, 3, 3, 5)
    assert batch.sizes.tolist() == [[3, 3], [2, 5]]
    assert torch.equal(batch.image(0), images[2])
    assert torch.equal(batch.canvas, Pixels.of([images[2], images[0]]).canvas)
    for number, image in enumerate(images):
        assert torch.equal(row.image(number), image)
        assert row.image(number).untyped_storage().data_ptr() == row.row.untyped_storage().data_ptr(), "no copy"


def test_images_of_one_size_in_a_row_are_a_batch_as_they_lie():
    images = some_images([(2, 5)] * 3)
    values = torch.cat([each.flatten() for each in images])
    whole = packed(values, torch.tensor([[2, 5]] * 3))
    assert isinstance(whole, Pixels)
    assert whole.canvas.data_ptr() == values.data_ptr()
    assert torch.equal(whole.canvas, torch.stack(images))
    batch = whole.batch(torch.tensor([2, 0, 2]))
    assert torch.equal(batch.canvas, torch.stack([images[2], images[0], images[2]]))
    assert batch.sizes.tolist() == [[2, 5]] * 3


def test_a_set_reads_only_the_batch_that_is_asked_for(monkeypatch):
    images = some_images([(2, 5), (4, 1), (3, 3), (4, 5)])
    everything = ImageSet(in_a_row(images), torch.tensor([0, 1, 0, 1]), ("a", "b"))
    second = everything.of_classes(["b"])
    read, plain = [], Packed.image
    monkeypatch.setattr(Packed, "image", lambda self, number: read.append(number) or plain(self, number))
    assert torch.equal(second.batch(torch.tensor([1])).canvas[0], images[3])
    assert read == [3]
    assert second.pixels.canvas.shape == (2, 3, 4, 5)
    assert second.sizes.tolist() == [[4, 1], [4, 5]]


def test_a_fingerprint_does_not_depend_on_how_images_lie():
    images, labels = some_images([(2, 5), (4, 1), (3, 3)]), torch.tensor([0, 1, 0])
    row = ImageSet(in_a_row(images), labels, ("a", "b"))
    canvas = ImageSet(Pixels.of(images), labels, ("a", "b"))
    again = ImageSet(in_a_row(images[::-1]), labels.flip(0), ("a", "b")).subset(torch.tensor([2, 1, 0]))
    assert row.fingerprint() == canvas.fingerprint() == again.fingerprint()
    images[1][0, 0, 0] += 1
    assert row.fingerprint() != ImageSet(Pixels.of(images), labels, ("a", "b")).fingerprint()
    assert row.fingerprint() != row.subset(torch.tensor([1, 0, 2])).fingerprint()


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
