import torch

from lca.damage.draws import GOLDEN, MIXERS, Draws


def splitmix(key, count):
    """The generator in Python's whole numbers."""
    mask = (1 << 64) - 1
    for number in range(1, count + 1):
        word = (key + number * GOLDEN) & mask
        for shift, factor in MIXERS:
            word = ((word ^ (word >> shift)) * factor) & mask
        yield word


def test_the_bits_are_those_of_splitmix64():
    assert [*splitmix(1234567, 2)] == [6457827717110365317, 3203168211198807973]  # published test vector
    keys = torch.tensor([1234567, 2**62 + 5])
    drawn = Draws(keys).uniform(5)
    for key, row in zip(keys.tolist(), drawn.tolist(), strict=True):
        assert row == [(word >> 11) / 2**53 for word in splitmix(key, 5)]


def test_calls_give_fresh_numbers_and_neighbours_are_unrelated():
    draws = Draws.of(0, "test", 1, range(200), "cpu")
    first, second = draws.normal(500), draws.normal(500)
    both = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))
    assert abs(float(both[0, 1])) < 0.01
    assert abs(float(torch.corrcoef(torch.stack([first[:-1].flatten(), first[1:].flatten()]))[0, 1])) < 0.01


def test_moments():
    draws = Draws.of(3, "test", 1, range(100), "cpu")
    normal = draws.normal(2000).flatten()
    assert abs(float(normal.mean())) < 0.01
    assert abs(float(normal.std()) - 1) < 0.01
    assert abs(float(normal.pow(4).mean()) - 3) < 0.1
    uniform = draws.uniform(2000, low=-1, high=1).flatten()
    assert float(uniform.min()) >= -1
    assert float(uniform.max()) < 1
    assert abs(float(uniform.var()) - 1 / 3) < 0.01
    whole = draws.integers(-2, 2, 2000).flatten()
    assert torch.bincount(whole + 2).min() > 48000
    assert set(whole.tolist()) == {-2, -1, 0, 1}
