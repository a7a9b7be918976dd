import hashlib

import numpy as np
import pytest
from PIL import Image

from gc25d.errors import UserError
from gc25d.geometry.camera import look, perspective, project, rotator_axes
from gc25d.geometry.resample import (
    fit_crop,
    resample_cameras,
    resample_frames,
    resample_stencil,
)


@pytest.mark.parametrize(
    ("source", "target", "box"),
    [
        ((240, 320), (96, 160), (0, 24, 320, 216)),  # cropped above and below
        ((100, 300), (50, 100), (50, 0, 250, 100)),  # cropped at the sides
        ((10, 10), (32, 96), (0, 10 / 3, 10, 20 / 3)),  # inside a pixel, enlarged
    ],
)
def test_largest_centred_box(source, target, box):
    np.testing.assert_allclose(fit_crop(source, target).box, box)


def test_a_box_never_leaves_the_picture():
    """224·(225/224) is above 225 in floating point."""
    for source in ((225, 400), (400, 225)):
        crop = fit_crop(source, (224, 224))
        assert (crop.height, crop.width) == (225, 225)
        assert min(crop.left, crop.top) == 0
        assert resample_frames(np.full((1, *source, 3), 9, np.uint8), crop).max() == 9


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        # by hand: 320 / 160 = 2, 96 · 2 = 192 rows are used, 240 − 192 = 48 are not
        (
            (240, 320),
            (96, 160),
            "320x240 → 160x96: 24 rows are cropped above and as many below, the rest is scaled by "
            "0.5",
        ),
        (
            (100, 300),
            (50, 100),
            "300x100 → 100x50: 50 columns are cropped on the left and as many on the right, the "
            "rest is scaled by 0.5",
        ),
        ((48, 80), (96, 160), "80x48 → 160x96: nothing is cropped, the rest is scaled by 2"),
        ((96, 160), (96, 160), "160x96 → 160x96: as captured"),
    ],
)
def test_what_becomes_of_a_picture_in_words(source, target, said):
    crop = fit_crop(source, target)
    assert crop.summary == said
    assert crop.scale == float(said.rpartition(" ")[2] if "by" in said else 1)


def test_identity_returns_the_same_pixels():
    frames = np.random.default_rng(0).integers(0, 255, (2, 32, 64, 3), np.uint8)
    crop = fit_crop((32, 64), (32, 64))
    np.testing.assert_array_equal(resample_frames(frames, crop), frames)
    np.testing.assert_array_equal(resample_stencil(frames[..., 0], crop), frames[..., 0])


def textured(height, width):
    """Blocks and noise: edges, flats and fine detail."""
    random = np.random.default_rng(7)
    blocks = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3)).repeat(8, 0).repeat(8, 1)
    noise = random.integers(-20, 21, (height, width, 3))
    return np.clip(blocks[:height, :width] + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((180, 320), (120, 208)),  # 4 pixels cut off on the left, of which the filter reaches 3
        ((60, 104), (120, 208)),  # enlarged
        ((128, 96), (32, 32)),  # cut above and below
        ((720, 1280), (480, 832)),
    ],
)
def test_whole_boxes_are_scaled_as_pillow_scales_them(source, target):
    """To one level, in 1 of 50 values at most: weights of 16 bits against 32."""
    crop, picture = fit_crop(source, target), textured(*source)
    size = target[1], target[0]
    ideal = Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC, box=crop.box)
    off = np.abs(resample_frames(picture[None], crop)[0].astype(int) - np.asarray(ideal))
    assert off.max() <= 1
    assert (off > 0).mean() < 0.02


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((60, 80), (48, 112)),  # starts inside a pixel
        ((180, 320), (96, 160)),  # 10 pixels beside the box, 15 are the next whole ones
    ],
)
def test_other_boxes_are_left_to_pillow(source, target):
    crop, picture = fit_crop(source, target), textured(*source)
    size = target[1], target[0]
    ideal = Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC, box=crop.box)
    np.testing.assert_array_equal(resample_frames(picture[None], crop)[0], np.asarray(ideal))


def test_scaled_frames_repeat_on_every_machine():
    """The kernel for each kind of processor has the same integer arithmetic."""
    crop = fit_crop((180, 320), (120, 208))
    digest = hashlib.sha256(resample_frames(textured(180, 320)[None], crop)).hexdigest()
    assert digest == "9c16a637290a13a3fb24c7c38151d82ac8065e99978b57c4f74e2504a1dd8a52"


def test_stencil_takes_the_pixel_under_the_centre():
    stencil = np.arange(6, dtype=np.uint8).reshape(1, 1, 6)
    halved = resample_stencil(np.repeat(stencil, 2, axis=1), fit_crop((2, 6), (1, 3)))
    assert halved.tolist() == [[[1, 3, 5]]]
    doubled = resample_stencil(stencil[:, :, :2], fit_crop((1, 2), (2, 4)))
    assert doubled.tolist() == [[[0, 0, 1, 1]] * 2]


def test_flat_and_ramp_survive_shrinking():
    ramp = np.broadcast_to(
        np.arange(0, 240, 2, dtype=np.uint8)[None, None, :, None], (1, 60, 120, 3)
    )
    small = resample_frames(np.ascontiguousarray(ramp), fit_crop((60, 120), (15, 30)))
    # target pixel j covers source pixels 4j … 4j+3, mean value 2·(4j + 1.5)
    np.testing.assert_allclose(small[0, 7, 2:-2, 0], 8 * np.arange(30)[2:-2] + 3, atol=1)


@pytest.mark.parametrize("target", [(96, 160), (64, 96), (160, 160), (480, 832)])
def test_frame_stencil_and_camera_agree_to_under_a_source_pixel(target):
    source = (240, 320)
    camera = look(np.zeros(3), rotator_axes(0, 0, 0)) @ perspective(90, 320 / 240, 10)
    point = np.array([400.0, 90, -60])
    (u, v), _ = project(point, camera, 320, 240)
    stencil = np.zeros((1, *source), np.uint8)
    stencil[0, int(v) - 4 : int(v) + 5, int(u) - 4 : int(u) + 5] = 8
    square = np.array([int(u) + 0.5, int(v) + 0.5])  # its centre
    frames = np.repeat(stencil[..., None] * np.uint8(30), 3, axis=-1)
    crop = fit_crop(source, target)
    height, width = target

    (tu, tv), _ = project(point, resample_cameras(camera, crop), width, height)
    expected = np.array([tu, tv]) + (square - [u, v]) * [width / crop.width, height / crop.height]
    pixel = max(height / crop.height, width / crop.width)  # a source pixel in target pixels
    for picture in (resample_frames(frames, crop)[0, ..., 0], resample_stencil(stencil, crop)[0]):
        weight = picture / picture.sum()
        rows, columns = np.indices(picture.shape) + 0.5
        found = [(columns * weight).sum(), (rows * weight).sum()]
        assert np.abs(np.subtract(found, expected)).max() < max(pixel, 0.5)


def test_another_source_size_is_named():
    with pytest.raises(UserError, match=r"picture of 8 by 9 .* expected 10 by 10"):
        resample_stencil(np.zeros((1, 8, 9), np.uint8), fit_crop((10, 10), (5, 5)))
