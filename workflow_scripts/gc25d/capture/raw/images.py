"""JPEG frames and PNG stencils ↔ arrays, and which unusual pictures are accepted.

Frames: an EXIF orientation is applied, grey becomes R = G = B, CMYK is converted by Pillow (no
colour profile), any other mode is refused. Stencils: 8-bit grey, or 8-bit palette, whose *index* is
the class. The size must be the run's.
"""

import io
import struct
import zlib

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.ExifTags import Base

from gc25d.capture.raw.classes import STENCIL
from gc25d.errors import UserError

JPEG_QUALITY = 95
_FRAME_MODES = ("RGB", "L", "CMYK")
_STENCIL_MODES = ("L", "P")
_HIGHEST = max(STENCIL.values())
_PNG_SIGNATURE = 8  # bytes
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# What Pillow raises on damaged bytes.
_DAMAGED = (
    OSError,
    ValueError,
    SyntaxError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    struct.error,
    zlib.error,
)


def encode_frame(rgb: UInt8[np.ndarray, "H W 3"]) -> bytes:
    """JPEG of quality 95 without chroma subsampling; equal pixels give equal bytes."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def encode_stencil(stencil: UInt8[np.ndarray, "H W"]) -> bytes:
    """8-bit grey PNG."""
    buffer = io.BytesIO()
    Image.fromarray(stencil).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


def open_frame(data: bytes, size: tuple[int, int], where: str) -> Image.Image:
    """A JPEG, decoded, as RGB.

    Args:
        data: the file's bytes.
        size: expected width and height, after the EXIF orientation.
        where: the run and frame, for the error.

    Raises:
        UserError: no JPEG, cut, another size or a mode that is none of RGB, grey and CMYK.
    """
    image = _opened(data, "JPEG", _FRAME_MODES, where)
    if sorted(image.size) != sorted(size):  # before decoding it allocates memory
        raise _wrong_size(image.size, size, where)
    image = _turned(_loaded(image, where), where)
    if image.size != size:
        raise _wrong_size(image.size, size, where)
    return image if image.mode == "RGB" else image.convert("RGB")


def decode_frame(data: bytes, size: tuple[int, int], where: str) -> UInt8[np.ndarray, "H W 3"]:
    """The pixels of `open_frame`."""
    return np.asarray(open_frame(data, size, where))


def decode_stencil(data: bytes, size: tuple[int, int], where: str) -> UInt8[np.ndarray, "H W"]:
    """A stencil PNG's classes.

    Raises:
        UserError: no 8-bit PNG, cut, another size, or a value that is no class.
    """
    with _opened(data, "PNG", _STENCIL_MODES, where) as image:
        if image.size != size:
            raise _wrong_size(image.size, size, where)
        _check_checksums(data, where)
        classes = np.asarray(_loaded(image, where))
    highest = int(classes.max())
    if highest > _HIGHEST:
        raise UserError(
            f"{where}: stencil class {highest}, expected 0..{_HIGHEST}: check the exporter"
        )
    return classes


def _opened(data: bytes, kind: str, modes: tuple[str, ...], where: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=[kind])
    except (*_DAMAGED, Image.DecompressionBombError):
        raise UserError(f"{where}: no readable {kind} picture: capture it again") from None
    if image.mode not in modes:
        raise UserError(
            f"{where}: {kind} picture of mode {image.mode}, expected {' or '.join(modes)}: "
            "convert it"
        )
    return image


def _loaded(image: Image.Image, where: str) -> Image.Image:
    try:
        image.load()
    except _DAMAGED as error:
        raise _damaged(where, error) from None
    return image


def _turned(image: Image.Image, where: str) -> Image.Image:
    """The picture as its EXIF orientation says; Pillow's own way writes all EXIF data anew."""
    try:
        turn = _TURNS.get(image.getexif().get(Base.Orientation, 1))
    except _DAMAGED as error:
        raise _damaged(where, f"its EXIF data: {error}") from None
    return image if turn is None else image.transpose(turn)


def _check_checksums(png: bytes, where: str) -> None:
    """Compare the checksum of every chunk; Pillow does not check those of the pixels."""
    at, kind = _PNG_SIGNATURE, b""
    while kind != b"IEND":
        kind = png[at + 4 : at + 8]
        end = at + 8 + int.from_bytes(png[at : at + 4], "big")
        if end + 4 > len(png):
            raise _damaged(where, "it ends too early")
        if zlib.crc32(png[at + 4 : end]) != int.from_bytes(png[end : end + 4], "big"):
            raise _damaged(where, f"wrong checksum of {kind!r}")
        at = end + 4


def _damaged(where: str, what: object) -> UserError:
    return UserError(f"{where}: picture is cut or damaged ({what}): capture it again")


def _wrong_size(found: tuple[int, int], expected: tuple[int, int], where: str) -> UserError:
    return UserError(
        f"{where}: picture of {found[0]} by {found[1]}, meta.json says {expected[0]} by "
        f"{expected[1]} (width by height): correct one of them"
    )
