import io
import zlib

import numpy as np
import pytest
from PIL import Image

from gc25d.capture.raw.images import decode_frame, decode_stencil, encode_frame, encode_stencil
from gc25d.errors import UserError

SIZE = (16, 8)  # width, height
HALVES = np.zeros((8, 16, 3), np.uint8)
HALVES[:, :8] = (200, 40, 40)  # left red, right blue
HALVES[:, 8:] = (40, 40, 200)

QUARTERS = np.zeros((16, 32, 3), np.uint8)
QUARTERS[:8, :16] = (200, 40, 40)
QUARTERS[:8, 16:] = (40, 40, 200)
QUARTERS[8:, :16] = (40, 200, 40)


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
    [
        (1, QUARTERS),
        (2, QUARTERS[:, ::-1]),
        (3, QUARTERS[::-1, ::-1]),
        (4, QUARTERS[::-1]),
        (5, QUARTERS.transpose(1, 0, 2)),
        (6, np.rot90(QUARTERS, -1)),
        (7, QUARTERS[::-1, ::-1].transpose(1, 0, 2)),
        (8, np.rot90(QUARTERS, 1)),
        (9, QUARTERS),  # no orientation that EXIF knows
    ],
)
def test_exif_orientation_is_applied(orientation, expected):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(QUARTERS), quality=95, subsampling=0, exif=exif)
    height, width = expected.shape[:2]
    close(decode_frame(data, (width, height), ""), expected)


def test_exif_data_that_nothing_needs_may_be_damaged():
    """Turning with Pillow writes all of it anew, and ends in a TypeError or struct.error."""
    exif = Image.Exif()
    exif[0x0112], exif[0x0100] = 3, 16  # orientation, width
    data = encoded(Image.fromarray(HALVES), quality=95, subsampling=0, exif=exif)
    entry = bytes([1, 0, 4, 0])  # tag 0x0100, of type 4: a number
    big_endian = b"Exif\0\0MM" in data
    entry = bytes([1, 0, 0, 4]) if big_endian else bytes([0, 1, 4, 0])
    assert data.count(entry) == 1
    as_text = entry.replace(bytes([4]), bytes([2]))
    close(decode_frame(data.replace(entry, as_text), SIZE, "run"), HALVES[::-1, ::-1])


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


def png_chunks(*chunks):
    """A PNG of (kind, data) with right checksums."""
    body = b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def grey_header(width, height):
    return b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])


def rows(classes):
    return zlib.compress(b"".join(b"\0" + row.tobytes() for row in classes))


def test_a_stencil_whose_pixels_were_changed_is_refused():
    """Whole and of other classes, but the checksum is that of the pixels before."""
    ground, path = (np.full((8, 16), value, np.uint8) for value in (1, 2))
    header, end = grey_header(*SIZE), (b"IEND", b"")
    right = png_chunks(header, (b"IDAT", rows(ground)), end)
    np.testing.assert_array_equal(decode_stencil(right, SIZE, ""), ground)
    assert len(rows(ground)) == len(rows(path))
    changed = right.replace(rows(ground), rows(path))
    with pytest.raises(
        UserError, match=r"here: picture is cut or damaged .wrong checksum of b'IDAT"
    ):
        decode_stencil(changed, SIZE, "here")


@pytest.mark.parametrize("cut", [1, 4, 12, 13])
def test_a_stencil_without_its_end_is_refused(cut):
    with pytest.raises(UserError, match="here: picture is cut or damaged"):
        decode_stencil(encode_stencil(np.ones((8, 16), np.uint8))[:-cut], SIZE, "here")


def test_pictures_that_claim_any_size_are_not_unpacked():
    small = encode_frame(HALVES)
    at = small.index(b"\xff\xc0")  # the frame header: length, bits, height, width
    for side in (20_000, 65_000):
        big = small[: at + 5] + side.to_bytes(2, "big") * 2 + small[at + 9 :]
        with pytest.raises(UserError, match=f"picture of {side} by|no readable JPEG"):
            decode_frame(big, SIZE, "here")
        data = png_chunks(grey_header(side, side), (b"IDAT", rows(np.zeros((8, 16)))))
        with pytest.raises(UserError, match=f"picture of {side} by|no readable PNG"):
            decode_stencil(data, SIZE, "here")


def test_text_inside_a_stencil_is_not_unpacked_without_bound():
    zeros = b"note\0\0" + zlib.compress(bytes(80 << 20))
    stencil = (b"IDAT", rows(np.ones((8, 16), np.uint8)))
    for place in (1, 2):
        chunks = [grey_header(*SIZE), stencil, (b"IEND", b"")]
        chunks.insert(place, (b"zTXt", zeros))
        with pytest.raises(UserError, match=r"here: .*(no readable|Decompressed data too large)"):
            decode_stencil(png_chunks(*chunks), SIZE, "here")
