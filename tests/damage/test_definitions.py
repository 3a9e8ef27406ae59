"""The corruptions against their definitions: facts measured on the published code, and independent calculations."""

import colorsys
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from lca.damage import blur, digital, filters, noise, spatter, weather
from lca.damage.corruptions import corrupt
from lca.damage.draws import Draws
from lca.damage.frost_textures import FROSTS, frost_textures
from lca.damage.sampling import bilinear, fold
from lca.damage.sizes import levels, tier_of, unit
from photographs import change, flat, photographs


def draws(count=1, seed=0):
    return Draws.of(seed, "test", 1, range(count), "cpu")


# pixels and sizes


def test_levels_survive_and_truncation_costs_half_a_level():
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(levels(unit(every)), every)
    values = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float((levels(values).double() - 255 * values).mean()) == pytest.approx(-0.5, abs=0.01)
    assert levels(torch.tensor([-3.0, 7.0], dtype=torch.float64)).tolist() == [0, 255]


def test_other_sizes_take_the_nearest_constants():
    sides = {17: 32, 45: 32, 46: 64, 119: 64, 120: 224, 258: 224, 259: 299, 1000: 299}
    for side, tier in sides.items():
        assert tier_of(torch.zeros(1, 3, side + 9, side)) == (tier, side / tier)


@pytest.mark.parametrize(("border", "mode"), [("nearest", "edge"), ("mirror", "reflect"), ("symmetric", "symmetric")])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_borders_are_numpys(border, mode, length):
    padded = np.pad(np.arange(length), 20, mode=mode)
    assert fold(torch.arange(-20, length + 20), length, border).tolist() == padded.tolist()


@pytest.mark.parametrize(("border", "mode"), [("nearest", "nearest"), ("mirror", "mirror"), ("symmetric", "reflect")])
def test_gaussian_and_bilinear_are_scipys(border, mode):
    image = photographs(20, 31, 1).double()
    for sigma, cut in ((0.05, 4.0), (0.25, 4.0), (1.0, 4.0), (6.4, 3.0)):
        ours = filters.gaussian_blur(image, sigma, cut, border)[0, 0]
        assert np.allclose(ours, ndimage.gaussian_filter(image[0, 0].numpy(), sigma, mode=mode, truncate=cut))
    y = torch.rand(1, 20, 31, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 60 - 20
    x = y.flip(1) + 3
    expected = ndimage.map_coordinates(image[0, 0].numpy(), [y[0].numpy(), x[0].numpy()], order=1, mode=mode)
    assert np.allclose(bilinear(image, y, x, border)[0, 0], expected)


# noise


@pytest.mark.parametrize("severity", [1, 5])
def test_gaussian_noise_has_its_spread(severity):
    grey = flat(128, 64, 64, 30)
    noisy = noise.gaussian_noise(grey, severity, draws(30)).double() / 255
    assert float(noisy.std()) == pytest.approx(noise.GAUSSIAN[64][severity - 1], rel=0.01)
    assert float(noisy.mean()) == pytest.approx((128 - 0.5) / 255, abs=0.001)


def test_speckle_noise_grows_with_the_level():
    spreads = [float(noise.add_speckle(flat(value, count=30), 0.1, draws(30)).double().std()) for value in (50, 100)]
    assert spreads == pytest.approx([5, 10], rel=0.02)


@pytest.mark.parametrize("rate", [500, 50, 3])
def test_shot_noise_is_poisson(rate):
    for value in (0, 1, 40, 128, 255):
        counts = noise.add_shot(flat(value, count=20), rate, draws(20)).double()
        possible = stats.poisson(rate * value / 255)
        weights = possible.pmf(np.arange(rate + 1))
        weights[-1] += possible.sf(rate)
        shown = np.floor(np.arange(rate + 1) / rate * 255 + 1e-6)
        mean = float(weights @ shown)
        spread = math.sqrt(float(weights @ (shown - mean) ** 2))
        assert float(counts.mean()) == pytest.approx(mean, abs=5 * spread / math.sqrt(counts.numel()) + 1e-9)
        assert float(counts.std()) == pytest.approx(spread, rel=0.03, abs=1e-9)


def test_shot_noise_darkens_bright_images_more_and_more():
    white = flat(255, count=20)
    means = [float(noise.shot_noise(white, severity, draws(20)).double().mean()) for severity in (1, 2, 3, 4, 5)]
    assert means == sorted(means, reverse=True)


def test_impulse_noise_takes_channels_by_themselves():
    grey = flat(128, count=60)
    noisy = noise.impulse_noise(grey, 5, draws(60))
    assert set(noisy.unique().tolist()) == {0, 128, 255}
    assert float((noisy == 0).double().mean()) == pytest.approx(0.035, abs=0.002)
    assert float((noisy == 255).double().mean()) == pytest.approx(0.035, abs=0.002)
    whole = ((noisy != 128).all(1)).double().mean()
    assert float(whole) < 0.002


# blur


def test_defocus_kernels_have_the_measured_values():
    measured = [(0.84497, 0.03713, 0.00163), (0.61935, 0.08382, 0.01134), (0.44521, 0.11101, 0.02768)]
    for constants, values in zip(blur.DEFOCUS[32], measured, strict=False):
        kernel = blur.disk(*constants)
        assert kernel.shape == (3, 3)
        assert [float(kernel[1, 1]), float(kernel[0, 1]), float(kernel[2, 2])] == pytest.approx(values, abs=6e-6)
    plus = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.float64) / 5
    assert torch.allclose(blur.disk(1, 0.2)[1:4, 1:4], plus, atol=1e-5)
    assert torch.allclose(blur.disk(1.5, 0.1), torch.full((3, 3), 1 / 9, dtype=torch.float64))


def test_defocus_disks_have_the_measured_sizes_and_sums():
    for radius, pixels in ((1, 5), (1.5, 9), (2.5, 21), (3, 29), (4, 49), (6, 113), (8, 197), (10, 317)):
        assert int((blur.disk(radius, 0.01) > 1e-9).sum()) == pixels
    assert float(blur.disk(8, 0.5).sum()) == pytest.approx(1.0130, abs=5e-5)
    assert float(blur.disk(10, 0.5).sum()) == pytest.approx(1.0108, abs=5e-5)


@pytest.mark.parametrize("size", [(32, 32), (224, 224)])
def test_defocus_is_a_correlation_with_mirrored_borders(size):
    image = photographs(*size, 1)
    blurred = blur.defocus_blur(image, 5, draws())
    kernel = blur.disk(*blur.DEFOCUS[size[0]][4]).numpy()
    expected = ndimage.correlate(image[0, 1].double().numpy(), kernel, mode="mirror")
    assert np.array_equal(blurred[0, 1], np.floor(expected.clip(0, 255) + 1e-6))


def glass_pass(image, down, right, reach):
    """One pass, pixel by pixel, as published."""
    image = image.copy()
    height, width = image.shape[1:]
    for y in range(height - reach, reach, -1):
        for x in range(width - reach, reach, -1):
            dy, dx = down[y - reach - 1, x - reach - 1], right[y - reach - 1, x - reach - 1]
            image[:, y, x] = image[:, y + dy, x + dx]
    return image


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
def test_glass_blur_is_the_sequential_loop(reach):
    images = torch.randint(0, 256, (3, 3, 20, 27), dtype=torch.uint8, generator=torch.Generator().manual_seed(reach))
    random = draws(3)
    right, down = (random.integers(-reach, reach, 20 - 2 * reach, 27 - 2 * reach) for _ in range(2))
    moved = blur.displace(images, down, right, reach)
    for number in range(3):
        expected = glass_pass(images[number].numpy(), down[number].numpy(), right[number].numpy(), reach)
        assert np.array_equal(moved[number], expected)


def test_glass_blur_by_one_pixel_is_a_parallel_gather():
    images = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    random = draws()
    right, down = (random.integers(-1, 1, 30, 30)[0] for _ in range(2))
    moved = blur.displace(images, down[None], right[None], 1)
    rows, columns = torch.meshgrid(torch.arange(2, 32), torch.arange(2, 32), indexing="ij")
    assert torch.equal(moved[0][:, 2:, 2:], images[0][:, rows + down, columns + right])
    assert torch.equal(moved[..., :2, :], images[..., :2, :])
    assert torch.equal(moved[..., :2], images[..., :2])


def test_motion_blur_of_a_dot_is_a_one_sided_line():
    dot = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    dot[0, 0, 10, 10] = 1
    line = filters.motion_blur(dot, 3, 2, torch.tensor([0.0]))[0, 0]
    weights = np.exp(-(np.arange(7) ** 2) / 8)
    assert np.allclose(line[10, 4:11].flip(0), weights / weights.sum())
    assert float(line.sum()) == pytest.approx(1)
    upwards = filters.motion_blur(dot, 3, 2, torch.tensor([-90.0]))[0, 0]
    assert np.allclose(upwards[10:17, 10], weights / weights.sum())
    slanted = filters.motion_blur(dot, 3, 2, torch.tensor([30.0]))[0, 0]
    for tap in range(7):
        y = 10 - math.ceil(tap * math.sin(math.pi / 6) - 0.5)
        x = 10 - math.ceil(tap * math.cos(math.pi / 6) - 0.5)
        assert float(slanted[y, x]) >= weights[tap] / weights.sum() - 1e-12


def test_zoom_factors_are_a_floating_point_range():
    for (count, step), last in zip(blur.ZOOM_SMALL, (1.06, 1.11, 1.15, 1.20, 1.25), strict=True):
        assert blur.zoom_factors(count, step) == np.arange(1, last + step / 2, step).tolist()
    for (count, step), last in zip(blur.ZOOM_LARGE, (1.11, 1.15, 1.20, 1.24, 1.30), strict=True):
        assert blur.zoom_factors(count, step)[-1] == pytest.approx(last)
    assert [count for count, _ in blur.ZOOM_SMALL] == [7, 12, 16, 21, 26]


def test_clipped_zoom_has_the_measured_quirks():
    image = photographs(32, 32, 1).double()
    assert torch.equal(filters.clipped_zoom(image, 1.0), image)
    assert torch.equal(filters.clipped_zoom(image, 1.01), image)
    assert torch.equal(filters.clipped_zoom(image, 1.02), filters.clipped_zoom(image, 1.03))
    crop = image[..., 2:29, 2:29]  # 1.2: 27 pixels become 32
    expected = torch.nn.functional.interpolate(crop, size=(32, 32), mode="bilinear", align_corners=True)
    assert torch.allclose(filters.clipped_zoom(image, 1.2), expected)


def test_zoom_blur_is_the_mean():
    image = photographs(224, 224, 1)
    x = unit(image)
    zooms = [filters.clipped_zoom(x, factor) for factor in blur.zoom_factors(11, 0.03)]
    assert torch.equal(blur.zoom_blur(image, 5, draws()), levels(torch.stack([x, *zooms]).mean(0)))


# weather


def test_snow_only_brightens():
    images = photographs(32, 32).repeat(5, 1, 1, 1)
    for severity in (1, 3, 5):
        snowy = weather.snow(images, severity, draws(20))
        assert bool((snowy.int() >= images.int() - 1).all())  # truncation
        assert float((snowy.double() - images.double()).mean()) > 5


def test_snow_falls_twice_the_second_time_upside_down():
    black = flat(0, count=1)
    flakes = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    flakes[0, 0, 5, 7] = 200
    fallen = weather.snowed(black, flakes, 1, 0.01, torch.tensor([-90.0]), 1.0)
    assert fallen[0, :, 5, 7].tolist() == [200] * 3
    assert fallen[0, :, 26, 24].tolist() == [200] * 3
    assert int(fallen.sum()) == 1200


def test_frost_textures_have_the_measured_colours_and_roughness():
    textures = frost_textures().double()
    for texture, frost in zip(textures, FROSTS, strict=True):
        assert texture.mean((0, 1)).tolist() == pytest.approx(frost.mean, abs=1)
        assert texture.std((0, 1)).tolist() == pytest.approx(frost.std, rel=0.1)
        grey = texture - texture.mean((0, 1))
        grey = grey.mean(-1)
        correlation = [float((grey * grey.roll(lag, 1)).mean() / grey.square().mean()) for lag in (1, 4, 16)]
        assert correlation == pytest.approx([0.8, 0.6, 0.45], abs=0.12)
    red, green, blue = textures[0].flatten(0, 1).T
    pairs = torch.corrcoef(torch.stack([red, green, blue]))
    assert [float(pairs[0, 1]), float(pairs[0, 2]), float(pairs[1, 2])] == pytest.approx([0.82, 0.57, 0.93], abs=0.03)
    overlay = (torch.tensor([1, 2, 1, 1]).double() / 5) @ textures.mean((1, 2))
    assert overlay.tolist() == pytest.approx([146, 167, 179], abs=1)


def test_frost_is_a_weighted_sum_with_the_published_frequencies():
    black = flat(0, count=400)
    frosty = weather.frost(black, 5, draws(400)).double()
    teal = frosty.mean((2, 3))
    share = ((teal[:, 0] / teal[:, 2]) < 0.65).double().mean()  # the first texture has little red
    white = (frosty.mean((1, 2, 3)) > 0.45 * 180).double().mean()
    assert float(share) == pytest.approx(0.2, abs=0.06)
    assert float(white) == pytest.approx(0.4, abs=0.08)
    assert torch.equal(weather.frost(flat(255), 1, draws()), flat(255))


def test_small_images_see_frost_coarsely():
    assert weather._coarse(4, 0.2, torch.device("cpu")).tolist() == [2, 7, 12, 17]
    assert weather._coarse(4, 1.0, torch.device("cpu")).tolist() == [0, 1, 2, 3]


def plasma(side, decay, noise_of):
    """Diamond-square on a torus, point by point."""
    points = np.zeros((side, side))
    step, amplitude = side, 1.0
    while step >= 2:
        half = step // 2
        for y in range(half, side, step):
            for x in range(half, side, step):
                corners = [points[(y + a) % side, (x + b) % side] for a in (-half, half) for b in (-half, half)]
                points[y, x] = np.mean(corners) + amplitude * noise_of[y, x]
        for top, left in ((0, half), (half, 0)):
            for y in range(top, side, step):
                for x in range(left, side, step):
                    near = [
                        points[(y + a) % side, (x + b) % side]
                        for a, b in ((-half, 0), (half, 0), (0, -half), (0, half))
                    ]
                    points[y, x] = np.mean(near) + amplitude * noise_of[y, x]
        step, amplitude = half, amplitude / decay**2
    points -= points.min()
    return points / points.max()


def test_the_plasma_is_diamond_square_on_a_torus():
    ours = weather.plasma_fractal(13, 1.7, draws(2))
    assert ours.shape == (2, 16, 16)
    field = draws(2).uniform(16, 16, low=-1, high=1).numpy()
    for number in range(2):
        assert np.allclose(ours[number], plasma(16, 1.7, field[number]))


def test_plasma_spans_0_to_1_and_is_rougher_with_less_decay():
    roughness = []
    for decay in (3, 2, 1.4):
        field = weather.plasma_fractal(64, decay, draws(40))
        assert float(field.amin()) == 0
        assert torch.equal(field.amax((1, 2)), torch.ones(40, dtype=torch.float64))
        assert float(field.mean()) == pytest.approx(0.5, abs=0.05)
        roughness.append(float(field.diff(dim=2).abs().mean()))
    assert roughness == sorted(roughness)


def test_fog_keeps_the_range_and_black():
    images = photographs(32, 32)
    foggy = weather.fog(images, 5, draws(4))
    assert bool((foggy.amax((1, 2, 3)) <= images.amax((1, 2, 3))).all())
    white = weather.fog(flat(255), 3, draws()).double() / 255
    field = weather.plasma_fractal(32, 2.5, draws())
    assert torch.allclose(white[0, 0], (1 + 0.75 * field[0]) / 1.75, atol=1 / 254)


# digital


def test_brightness_and_saturation_are_those_of_hsv():
    image = photographs(32, 32, 1)
    pixels = (image[0].permute(1, 2, 0).reshape(-1, 3).numpy() / 255).tolist()
    for severity in (1, 3, 5):
        add = digital.BRIGHTNESS[32][severity - 1]
        factor, offset = digital.SATURATE[32][severity - 1]
        for result, change_of in (
            (digital.brightness(image, severity, draws()), lambda h, s, v, c=add: (h, s, min(v + c, 1))),
            (
                digital.saturate(image, severity, draws()),
                lambda h, s, v, a=factor, b=offset: (h, min(max(s * a + b, 0), 1), v),
            ),
        ):
            expected = [colorsys.hsv_to_rgb(*change_of(*colorsys.rgb_to_hsv(*pixel))) for pixel in pixels]
            expected = np.floor(np.array(expected) * 255 + 1e-6)
            assert np.array_equal(result[0].permute(1, 2, 0).reshape(-1, 3).numpy(), expected)


def test_saturate_reddens_grey_at_4_and_5_only():
    grey = flat(100)
    for severity in (1, 2, 3):
        assert torch.equal(digital.saturate(grey, severity, draws()), grey)
    assert digital.saturate(grey, 4, draws())[0, :, 0, 0].tolist() == [100, 90, 90]
    assert digital.saturate(grey, 5, draws())[0, :, 0, 0].tolist() == [100, 80, 80]


def test_brightness_of_black_and_white():
    assert torch.equal(digital.brightness(flat(0), 2, draws()), flat(25))
    assert torch.equal(digital.brightness(flat(255), 2, draws()), flat(255))
    assert torch.equal(digital.brightened(photographs(32, 32), 0.0), photographs(32, 32))


def test_contrast_keeps_the_mean_of_each_channel():
    images = photographs(32, 32)
    flatter = digital.contrast(images, 5, draws(4)).double()
    assert torch.allclose(flatter.mean((2, 3)), images.double().mean((2, 3)) - 0.5, atol=0.1)
    assert torch.allclose(flatter.std((2, 3)), 0.15 * images.double().std((2, 3)), rtol=0.03, atol=0.1)


def test_elastic_map_brings_corners_back():
    shifts = draws(5).uniform(3, 2, low=-3, high=3)
    back = digital.corner_map(32, 40, shifts)
    corners = torch.tensor([[30, 26], [30, 6], [10, 6]], dtype=torch.float64)  # centre (20, 16), side 10
    moved = torch.cat([corners + shifts, torch.ones(5, 3, 1, dtype=torch.float64)], dim=2)
    assert torch.allclose(moved @ back, corners.expand(5, -1, -1))
    assert torch.allclose(digital.corner_map(32, 40, shifts * 0)[0, :2], torch.eye(2, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize(("severity", "spread"), [(2, 0.06), (3, 0.23), (4, 0.44), (5, 0.58)])
def test_elastic_shifts_have_the_measured_spread(severity, spread):
    amplitude, smoothness, _ = digital.ELASTIC[32][severity - 1]
    fields = draws(200).uniform(2, 32, 32, low=-1, high=1)
    shifts = filters.gaussian_blur(fields, smoothness * 32, 3.0, "symmetric") * amplitude * 32
    assert float(shifts.std()) == pytest.approx(spread, abs=0.012)


def test_elastic_transform_moves_a_ramp_smoothly():
    ramp = (torch.arange(64) * 3).to(torch.uint8).expand(1, 3, 64, 64).contiguous()
    for severity in (1, 2):  # affine and nearly affine
        bent = digital.elastic_transform(ramp, severity, draws()).double()
        inner = bent[..., 20:44, 20:44]
        assert float(inner.diff(dim=3).mean()) == pytest.approx(3, abs=1)
        assert float(inner.diff(dim=3).std()) < 0.8


@pytest.mark.parametrize("size", [(32, 32), (224, 224), (47, 64)])
def test_pixelate_is_pillows_box_filter(size):
    image = photographs(*size, 1)
    tier = tier_of(image)[0]
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    for severity in (1, 2, 3, 4, 5):
        share = digital.PIXELATE[tier][severity - 1]
        small = pillow.resize((int(size[1] * share), int(size[0] * share)), Image.Resampling.BOX)
        expected = np.asarray(small.resize((size[1], size[0]), Image.Resampling.BOX))
        assert np.array_equal(digital.pixelate(image, severity, draws())[0].permute(1, 2, 0), expected)


@pytest.mark.parametrize("size", [(224, 224), (33, 47), (1, 5)])
def test_jpeg_is_pillows(size):
    images = photographs(224, 224, 3)[..., : size[0], : size[1]]
    for severity in (1, 5):
        compressed = digital.jpeg_compression(images, severity, draws(3))
        for image, ours in zip(images, compressed, strict=True):
            file = io.BytesIO()
            quality = digital.JPEG[tier_of(images)[0]][severity - 1]
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=quality)
            assert np.array_equal(ours.permute(1, 2, 0), np.asarray(Image.open(file)))


# spatter


def test_chamfer_distance_is_the_shortest_way():
    edges = torch.zeros(1, 1, 30, 30, dtype=torch.bool)
    edges[0, 0, 4, 6] = True
    distance = spatter.chamfer_distance(edges)[0, 0]
    for y in range(30):
        for x in range(30):
            long, short = max(abs(y - 4), abs(x - 6)), min(abs(y - 4), abs(x - 6))
            by_sides = (long - 2 * short) + 2.1969 * short
            by_corners = 1.4 * (2 * short - long) + 2.1969 * (long - short)
            expected = min(by_sides if long >= 2 * short else by_corners, 20)
            assert float(distance[y, x]) == pytest.approx(expected, abs=1e-4)
    assert torch.equal(spatter.chamfer_distance(edges & False), torch.full((1, 1, 30, 30), 20.0, dtype=torch.float64))


def test_rims_are_thin_and_closed():
    rows, columns = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
    disk = (((rows - 20) ** 2 + (columns - 20) ** 2 < 100) * 200).to(torch.uint8)[None, None]
    rim = spatter.rims(disk)[0, 0]
    distance = ((rows - 20) ** 2 + (columns - 20) ** 2).sqrt()
    assert bool(((distance[rim] > 8) & (distance[rim] < 12)).all())
    assert 50 < int(rim.sum()) < 80
    faint = spatter.rims(disk // 20)
    assert not bool(faint.any())
    inside = ndimage.label(~rim.numpy())[1]  # four-connected
    assert inside == 2


def test_weak_rims_count_where_they_touch_strong_ones():
    fading = torch.zeros(1, 1, 9, 40, dtype=torch.uint8)
    fading[0, 0, 4:] = torch.linspace(60, 5, 40).to(torch.uint8)  # a horizontal edge of 240 down to 20
    rim = spatter.rims(fading)[0, 0].any(0)
    steps = 4 * fading[0, 0, 8]
    assert bool(rim[5:30][steps[5:30] > 60].all())
    assert not bool(rim[steps < 40].any())


def test_equalised_levels():
    layer = torch.tensor([[3, 3, 3, 3, 5, 5, 9, 9]], dtype=torch.uint8).view(1, 1, 2, 4)
    assert spatter.equalised(layer).flatten().tolist() == [0, 0, 0, 0, 128, 128, 255, 255]
    assert spatter.equalised(flat(7)[:, :1]).unique().tolist() == [7]


def test_water_brightens_mud_darkens_and_no_drops_change_nothing():
    images = photographs(32, 32)
    for severity in (1, 2, 3):
        assert bool((corrupt(images, "spatter", severity) >= images).all())
    muddy = corrupt(flat(200), "spatter", 5)
    touched = muddy[0, 0] != 200
    assert 0 < float(touched.double().mean()) < 0.3
    assert bool((muddy[0, 0][touched] < 100).all())
    assert torch.equal(spatter.watered(images, torch.zeros(4, 1, 32, 32, dtype=torch.float64), 0.5), images)


def test_thick_water_stays_thick():
    """Only at severity 3; published eight bits would wrap there, 1.02 of the largest level to 4 of 255."""
    images = flat(100, count=1000)
    for severity, share in ((1, 0.0), (2, 0.0), (3, 0.2)):
        mean, spread, sigma, threshold, *_ = spatter.SPATTER[32][severity - 1]
        thick = spatter.drop_layer(images, (mean, spread), sigma, threshold, draws(1000)) > 1
        assert float(thick.flatten(1).any(1).double().mean()) == pytest.approx(share, abs=0.04 if share else 0)
    drops = torch.zeros(2, 1, 32, 32, dtype=torch.float64)
    drops[:, :, 8:24, 8:24] = torch.tensor([1.0, 1.02])[:, None, None, None]
    full, above = spatter.watered(images[:2], drops, 0.5)
    assert full.amax() > 150
    assert torch.equal(full, above)


# statistics of the published code on 200 CIFAR images, of which ours differ: shares and orders only


@pytest.mark.parametrize(
    ("name", "shares", "tolerance"),
    [
        ("impulse_noise", (0.010, 0.020, 0.030, 0.049, 0.069), 0.1),
        ("spatter", (0.025, 0.063, 0.180, 0.040, 0.069), 0.15),
    ],
)
def test_share_of_changed_values(name, shares, tolerance):
    images = photographs(32, 32).clamp(20, 200).repeat(40, 1, 1, 1)
    for severity, share in enumerate(shares, 1):
        changed = (corrupt(images, name, severity) != images).double().mean()
        assert float(changed) == pytest.approx(share, rel=tolerance)


def test_elastic_falls_with_severity_at_32_pixels():
    images = photographs(32, 32).repeat(15, 1, 1, 1)
    changes = [change(corrupt(images, "elastic_transform", severity), images) for severity in (1, 3, 5)]
    assert changes == sorted(changes, reverse=True)
