"""Real photographs at any size, and drawn ones."""

from functools import cache

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images


@cache
def photographs(height, width, count=4):
    """Different parts of two photographs, (count, 3, height, width)."""
    images = []
    for number in range(count):
        whole = load_sample_images().images[number % 2]
        top, left = 37 * number % 120, 53 * number % 240
        part = Image.fromarray(whole[top : top + 300, left : left + 300 * width // height])
        images.append(np.asarray(part.resize((width, height), Image.Resampling.BILINEAR)))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def flat(value, height=32, width=32, count=1):
    return torch.full((count, 3, height, width), value, dtype=torch.uint8)


def change(damaged, images):
    """Mean absolute difference, in levels."""
    return float((damaged.double() - images.double()).abs().mean())
