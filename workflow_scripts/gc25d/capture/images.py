"""JPEG frames and PNG stencils ↔ arrays, with one stated policy for odd pictures.

Frames: an EXIF orientation is applied, grey becomes R = G = B, CMYK is converted by Pillow (no
colour profile), any other mode is refused. Stencils: 8-bit grey, or 8-bit palette, whose *index* is
the class. The size must be the run's.
"""

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from gc25d.capture.classes import STENCIL
from gc25d.errors import UserError

JPEG_QUALITY = 95
_FRAME_MODES = ("RGB", "L", "CMYK")
_STENCIL_MODES = ("L", "P")
_HIGHEST = max(STENCIL.values())


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
    if sorted(image.size) != sorted(size):  # before decoding: a hostile size costs nothing
        raise _wrong_size(image.size, size, where)
    ImageOps.exif_transpose(_loaded(image, where), in_place=True)
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
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
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
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{where}: picture is cut or damaged ({error}): capture it again") from None
    return image


def _wrong_size(found: tuple[int, int], expected: tuple[int, int], where: str) -> UserError:
    return UserError(
        f"{where}: picture of {found[0]} by {found[1]}, meta.json says {expected[0]} by "
        f"{expected[1]} (width by height): correct one of them"
    )
