"""Whole corruptions against direct code: one image, NumPy and SciPy, step by step as published, with our draws."""

import math

import numpy as np
import pytest
from scipy import ndimage

from lca.damage import blur, digital, filters, noise, perturbations, weather
from lca.damage.corruptions import corrupt
from lca.damage.draws import Draws
from photographs import photographs

SEVERITIES = (1, 2, 3, 4, 5)
SIZES = (32, 224)


def draws(name, severity):
    """The numbers that image 0 of seed 0 gets."""
    return Draws.of(0, f"corruption {name}", severity, [0], "cpu")


def floor(x):
    """Clip and truncate, as the published driver casts."""
    return np.floor(np.clip(x * 255, 0, 255) + 1e-6)


def smooth(x, sigma, cut=4.0, mode="nearest"):
    return np.stack([ndimage.gaussian_filter(channel, sigma, mode=mode, truncate=cut) for channel in x])


def motion(layers, radius, sigma, degrees):
    """ImageMagick's motion blur of (channels, h, w) in levels, pixel by pixel along the taps."""
    length = 2 * math.ceil(radius) + 1
    along = length * math.sin(math.pi * degrees / 180), length * math.cos(math.pi * degrees / 180)
    taps = np.arange(length)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    height, width = layers.shape[1:]
    rows, columns = np.mgrid[:height, :width]
    total = np.zeros(layers.shape)
    for tap, weight in zip(taps, weights / weights.sum(), strict=True):
        down, right = (math.ceil(tap * each / np.hypot(*along) - 0.5) for each in along)
        total += weight * layers[:, (rows + down).clip(0, height - 1), (columns + right).clip(0, width - 1)]
    return np.floor(total + 0.002)


def zoomed(x, factor):
    """SciPy's linear zoom of the centre, cut to size."""
    side = x.shape[-1]
    crop = math.ceil(side / factor)
    top = (side - crop) // 2
    large = np.stack(
        [ndimage.zoom(c[top : top + crop, top : top + crop], round(crop * factor) / crop, order=1) for c in x]
    )
    trim = (large.shape[-1] - side) // 2
    return large[:, trim : trim + side, trim : trim + side]


def gaussian_noise(x, severity, random):
    return floor(x + noise.GAUSSIAN[x.shape[-1]][severity - 1] * random.normal(*x.shape)[0].numpy())


def speckle_noise(x, severity, random):
    return floor(x + x * noise.SPECKLE[x.shape[-1]][severity - 1] * random.normal(*x.shape)[0].numpy())


def impulse_noise(x, severity, random):
    share, place = noise.IMPULSE[x.shape[-1]][severity - 1], random.uniform(*x.shape)[0].numpy()
    return floor(np.where(place < share / 2, 0, np.where(place < share, 1, x)))


def gaussian_blur(x, severity, random):
    return floor(smooth(x, blur.GAUSSIAN[x.shape[-1]][severity - 1]))


def glass_blur(x, severity, random):
    sigma, reach, passes = blur.GLASS[x.shape[-1]][severity - 1]
    seen, side = floor(smooth(x, sigma)), x.shape[-1]
    for _ in range(passes):
        right, down = (random.integers(-reach, reach, side - 2 * reach, side - 2 * reach)[0].numpy() for _ in range(2))
        for row in range(side - reach, reach, -1):
            for column in range(side - reach, reach, -1):
                place = row - reach - 1, column - reach - 1
                seen[:, row, column] = seen[:, row + down[place], column + right[place]]
    return floor(smooth(seen / 255, sigma))


def motion_blur(x, severity, random):
    return motion(x * 255, *blur.MOTION[x.shape[-1]][severity - 1], float(random.uniform(low=-45, high=45)))


def zoom_blur(x, severity, random):
    last, step = {
        32: ((1.06, 0.01), (1.11, 0.01), (1.15, 0.01), (1.20, 0.01), (1.25, 0.01)),
        224: ((1.11, 0.01), (1.15, 0.01), (1.20, 0.02), (1.24, 0.02), (1.30, 0.03)),
    }[x.shape[-1]][severity - 1]
    factors = np.arange(1, last + step / 2, step)
    return floor((x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1))


def snow(x, severity, random):
    mean, spread, zoom, threshold, radius, sigma, weight = weather.SNOW[x.shape[-1]][severity - 1]
    layer = flakes(mean + spread * random.normal(1, *x.shape[1:])[0].numpy(), zoom, threshold)
    return snowed(x, layer, radius, sigma, float(random.uniform(low=-135, high=-45)), weight)


def flakes(field, zoom, threshold):
    layer = zoomed(field, zoom)
    layer[layer < threshold] = 0
    return floor(layer)


def snowed(x, layer, radius, sigma, degrees, weight):
    layer = motion(layer, radius, sigma, degrees) / 255
    grey = (0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2])[None]
    return floor(weight * x + (1 - weight) * np.maximum(x, grey * 1.5 + 0.5) + layer + np.rot90(layer, 2, (1, 2)))


def fog(x, severity, random):
    amount, decay = weather.FOG[x.shape[-1]][severity - 1]
    side = 1 << (x.shape[-1] - 1).bit_length()
    field, given = np.zeros((side, side)), random.uniform(side, side, low=-1, high=1)[0].numpy()
    step, amplitude = side, 100.0
    while step >= 2:
        half = step // 2
        rows, columns = np.mgrid[half:side:step, half:side:step]
        corners = sum(field[(rows + a) % side, (columns + b) % side] for a in (-half, half) for b in (-half, half))
        field[rows, columns] = corners / 4 + amplitude**2 * given[rows, columns]
        for top, left in ((0, half), (half, 0)):
            rows, columns = np.mgrid[top:side:step, left:side:step]
            near = sum(
                field[(rows + a) % side, (columns + b) % side]
                for a, b in ((half, 0), (-half, 0), (0, half), (0, -half))
            )
            field[rows, columns] = near / 4 + amplitude**2 * given[rows, columns]
        step, amplitude = half, amplitude / decay
    field = (field - field.min()) / (field.max() - field.min())
    return floor((x + amount * field[: x.shape[1], : x.shape[2]]) * x.max() / (x.max() + amount))


def contrast(x, severity, random):
    mean = x.mean((1, 2), keepdims=True)
    return floor((x - mean) * digital.CONTRAST[x.shape[-1]][severity - 1] + mean)


def elastic_transform(x, severity, random):
    side, unit = x.shape[-1], {32: 32, 224: 244}[x.shape[-1]]
    amplitude, smoothness, shift = (unit * each for each in digital.ELASTIC[side][severity - 1])
    centre, reach = np.array([side // 2, side // 2]), side // 3
    corners = np.array([centre + reach, [centre[0] + reach, centre[1] - reach], centre - reach])
    moved = corners + random.uniform(3, 2, low=-shift, high=shift)[0].numpy()
    back = np.linalg.solve(np.c_[moved, np.ones(3)], corners)
    y, columns = np.mgrid[:side, :side].astype(float)
    there = np.stack([columns, y, np.ones_like(y)], -1) @ back
    warped = [ndimage.map_coordinates(c, [there[..., 1], there[..., 0]], order=1, mode="mirror") for c in x]
    if amplitude:
        fields = random.uniform(2, side, side, low=-1, high=1)[0].numpy()
        right, down = amplitude * smooth(fields, smoothness, 3, "reflect")
        warped = [ndimage.map_coordinates(c, [y + down, columns + right], order=1, mode="reflect") for c in warped]
    return floor(np.stack(warped))


BY_HAND = {
    each.__name__: each
    for each in (
        gaussian_noise,
        speckle_noise,
        impulse_noise,
        gaussian_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        snow,
        fog,
        contrast,
        elastic_transform,
    )
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BY_HAND)
def test_a_corruption_is_the_published_one(name, size):
    image = photographs(size, size, 1)
    for severity in SEVERITIES:
        ours = corrupt(image, name, severity)[0].numpy().astype(int)
        expected = BY_HAND[name](image[0].numpy() / 255, severity, draws(name, severity)).astype(int)
        unlike = ours != expected
        assert np.abs(ours - expected).max() <= 1, severity  # a value that is whole but for rounding
        assert unlike.mean() < 2e-4, severity


@pytest.mark.parametrize("size", SIZES)
def test_every_frame_of_snow_is_the_published_one(size):
    """The sines of the first and the last frame are -1/2: rounding decides where odd taps read."""
    image, (spread, zoom, radius, sigma) = photographs(size, size, 1), perturbations.SNOW[size]
    random = Draws.of(0, "perturbation snow", 1, [0], "cpu")
    layer = flakes(0.05 + spread * random.normal(1, size, size)[0].numpy(), zoom, 0.5)
    frames = perturbations.perturb(image, "snow")[0].numpy().astype(int)
    for frame in (0, 1, 15, 30):
        expected = snowed(image[0].numpy() / 255, layer, radius, sigma, 4 * frame - 150, 0.85).astype(int)
        assert np.abs(frames[frame] - expected).max() <= 1, frame
        assert (frames[frame] != expected).mean() < 2e-4, frame


@pytest.mark.parametrize("radius", [3, 6, 8, 9, 10, 12, 14, 15, 20])
def test_motion_blur_reads_where_imagemagick_does_at_every_whole_angle(radius):
    length, degrees = 2 * radius + 1, [float(each) for each in range(-180, 181)]
    for offsets, function in zip(filters.motion_offsets(length, degrees), (math.sin, math.cos), strict=True):
        for row, angle in zip(offsets.tolist(), (math.pi * each / 180 for each in degrees), strict=True):
            whole = np.hypot(length * math.sin(angle), length * math.cos(angle))
            assert row == [math.ceil(tap * (length * function(angle)) / whole - 0.5) for tap in range(length)]
    plain = [math.ceil(tap * math.sin(math.pi * -30 / 180) - 0.5) for tap in range(length)]
    down = filters.motion_offsets(length, [-30.0])[0][0].tolist()
    assert (down == plain) == (radius in {3, 6, 12, 14})
