"""Random numbers for a batch of images, where an image's numbers do not depend on the batch it comes in.

A counter-based generator: number j of an image is a hash of (the image's key + j). All images and numbers are computed
at once, on any device, and the bits are the same on every device.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lca.randomness import derive_seed

GOLDEN = 0x9E3779B97F4A7C15
MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""SplitMix64 (Steele, Lea and Flood, 2014): shift, multiply, three times."""


class Draws:
    """The random numbers of a batch: each call gives fresh ones, of shape (n, *shape), in float64 or int64."""

    def __init__(self, keys: Tensor) -> None:
        self._keys = keys
        self._drawn = 0

    @classmethod
    def of(cls, seed: int, purpose: str, level: int, numbers: Sequence[int], device: torch.device | str) -> "Draws":
        """The numbers that belong to (seed, purpose, level) and to the images so numbered."""
        keys = [derive_seed(seed, purpose, level, number) for number in numbers]
        return cls(torch.tensor(keys, dtype=torch.int64).to(device))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform in [low, high)."""
        return low + (high - low) * (_shift(self._words(shape), 11).double() * 2.0**-53)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, by Box and Muller: √(−2 ln u) cos(2πv) with u and v from the halves of one word."""
        words = self._words(shape)
        u = (_shift(words, 32).double() + 0.5) * 2.0**-32
        v = (words & 0xFFFFFFFF).double() * 2.0**-32
        return u.log_().mul_(-2).sqrt_().mul_(v.mul_(2 * math.pi).cos_())

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers low .. high − 1."""
        return low + (self.uniform(*shape) * (high - low)).floor().long()

    def _words(self, shape: tuple[int, ...]) -> Tensor:
        count = math.prod(shape)
        counters = torch.arange(self._drawn + 1, self._drawn + count + 1, device=self._keys.device)
        self._drawn += count
        words = self._keys[:, None] + counters * _signed(GOLDEN)
        for shift, factor in MIXERS:
            words ^= _shift(words, shift)
            words *= _signed(factor)
        return words.view(len(self._keys), *shape)


def _shift(words: Tensor, bits: int) -> Tensor:
    """Shift to the right, filling with zeros (torch's shift copies the sign)."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The same 64 bits as a signed number, which is what torch has."""
    return word - (1 << 64) if word >> 63 else word
