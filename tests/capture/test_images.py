import io

import numpy as np
import pytest
from PIL import Image

from gc25d.capture.images import decode_frame, decode_stencil, encode_frame, encode_stencil
from gc25d.errors import UserError

SIZE = (16, 8)  # width, height
HALVES = np.zeros((8, 16, 3), np.uint8)
HALVES[:, :8] = (200, 40, 40)  # left red, right blue
HALVES[:, 8:] = (40, 40, 200)


def encoded(image, kind="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def close(found, expected, within=6):
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= within


def test_rgb_round_trip():
    close(decode_frame(encode_frame(HALVES), SIZE, "run: frame 3"), HALVES)


def test_grey_becomes_three_equal_channels():
    grey = np.tile(np.arange(0, 160, 10, dtype=np.uint8), (8, 1))
    found = decode_frame(encoded(Image.fromarray(grey), quality=95), SIZE, "")
    close(found, np.repeat(grey[..., None], 3, axis=-1))


def test_cmyk_is_converted():
    ink = np.zeros((8, 16, 4), np.uint8)
    ink[..., 0] = 255  # all cyan: no red, full green and blue
    found = decode_frame(encoded(Image.fromarray(ink, "CMYK"), quality=95), SIZE, "")
    close(found, np.broadcast_to(np.array([0, 255, 255], np.uint8), (8, 16, 3)))


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [(3, HALVES[::-1, ::-1]), (2, HALVES[:, ::-1]), (6, np.rot90(HALVES, -1))],
)
def test_exif_orientation_is_applied(orientation, expected):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(HALVES), quality=95, subsampling=0, exif=exif)
    height, width = expected.shape[:2]
    close(decode_frame(data, (width, height), ""), expected)


@pytest.mark.parametrize("cut", [10, 200, 3000])
def test_cut_pictures_name_their_frame(cut):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = encode_frame(noise)
    with pytest.raises(UserError, match=r"run-4: frame 7: .*(cut|readable)"):
        decode_frame(data[:-cut], (64, 64), "run-4: frame 7")


def test_other_files_sizes_and_modes_are_refused():
    where = "run-4: frame 7"
    with pytest.raises(UserError, match="run-4: frame 7: no readable JPEG"):
        decode_frame(encoded(Image.fromarray(HALVES), "PNG"), SIZE, where)
    with pytest.raises(UserError, match=r"picture of 16 by 8, meta\.json says 16 by 9"):
        decode_frame(encode_frame(HALVES), (16, 9), where)
    with pytest.raises(UserError, match="picture of 16 by 8"):
        decode_frame(encode_frame(HALVES), (8, 16), where)
    with pytest.raises(UserError, match="mode RGB, expected L or P"):
        decode_stencil(encoded(Image.fromarray(HALVES), "PNG"), SIZE, where)


def test_stencil_round_trip_and_palette_index():
    classes = np.arange(128, dtype=np.uint8).reshape(8, 16) % 9
    np.testing.assert_array_equal(decode_stencil(encode_stencil(classes), SIZE, ""), classes)
    image = Image.fromarray(classes)
    image.putpalette([255 - n for n in range(256) for _ in range(3)])
    assert image.mode == "P"
    np.testing.assert_array_equal(decode_stencil(encoded(image, "PNG"), SIZE, ""), classes)


def test_stencil_faults_name_their_frame():
    with pytest.raises(UserError, match=r"here: stencil class 9, expected 0\.\.8"):
        decode_stencil(encode_stencil(np.full((8, 16), 9, np.uint8)), SIZE, "here")
    noise = np.random.default_rng(0).integers(0, 9, (64, 64), np.uint8)
    with pytest.raises(UserError, match="here: picture is cut"):
        decode_stencil(encode_stencil(noise)[:-100], (64, 64), "here")
    with pytest.raises(UserError, match="here: picture of 64 by 64"):
        decode_stencil(encode_stencil(noise), (64, 32), "here")
