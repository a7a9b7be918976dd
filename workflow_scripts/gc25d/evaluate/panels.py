"""Pictures for people: `GT | generated | parts` videos and contact sheets, with labels.

Small frames are enlarged by a whole factor without interpolation, so that pixels stay pixels.
Scores never come from these files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from PIL import Image, ImageDraw, ImageFont

from gc25d.errors import UserError
from gc25d.files import atomic_path
from gc25d.prep.overlay import colourise
from gc25d.shapes import RgbFrames, SemIds

PANEL_HEIGHT = 256
"""Pixels. Frames lower than this are enlarged in the video."""
SHEET_WIDTH = 320
"""Pixels. Width of a frame in the contact sheet, about."""
SHEET_FRAMES = 5
LABEL_HEIGHT = 22
GAP = 4
BACKGROUND = (24, 24, 24)
INK = (235, 235, 235)
CRF = "18"
# x264's macroblock tree reads memory that nothing wrote, in rows whose number of macroblocks is no
# multiple of 8: equal frames would give other bytes from one call to the next.
X264_OPTIONS = {"crf": CRF, "mbtree": "0"}
BT709 = 1
"""ITU-T H.273's number of BT.709, alike for matrix, primaries and transfer."""
LABELS = ("GT", "generated", "parts")


@dataclass(frozen=True)
class ClipPictures:
    """One clip as people see it: three uint8 videos [T, H, W, 3] and the clip's id."""

    clip_id: str
    truth: RgbFrames
    generated: RgbFrames
    parts: RgbFrames

    @property
    def views(self) -> tuple[RgbFrames, RgbFrames, RgbFrames]:
        """In the order of `LABELS`."""
        return self.truth, self.generated, self.parts


def clip_pictures(
    clip_id: str, truth: RgbFrames, generated: RgbFrames, sem_ids: SemIds
) -> ClipPictures:
    """Colour the semantic ids and check that all three have one size.

    Raises:
        ValueError: they differ.
    """
    pictures = ClipPictures(clip_id, truth, generated, colourise(sem_ids))
    shapes = {view.shape for view in pictures.views}
    if len(shapes) != 1:
        raise ValueError(f"clip {clip_id}: views of different shapes {sorted(shapes)}")
    return pictures


def video_frames(pictures: ClipPictures) -> RgbFrames:
    """The video `GT | generated | parts`, uint8 [T, H', W', 3], under a line of labels."""
    factor = _enlargement(pictures.truth.shape[1], PANEL_HEIGHT)
    views = [enlarge(view, factor) for view in pictures.views]
    header = header_strip(LABELS, views[0].shape[2])
    rows = [
        np.concatenate([header, beside([view[t] for view in views])], axis=0)
        for t in range(len(views[0]))
    ]
    return np.stack(rows)


def clip_sheet(pictures: ClipPictures) -> np.ndarray:
    """A few frames of a clip, uint8 [H', W', 3]: a row for each view, a column for each frame."""
    shown = shown_frames(len(pictures.truth))
    factor = max(1, SHEET_WIDTH // pictures.truth.shape[2])
    views = [enlarge(view[shown], factor) for view in pictures.views]
    width = views[0].shape[2]
    rows = [header_strip([f"frame {t}" for t in shown], width)]
    for label, view in zip(LABELS, views, strict=True):
        rows.append(text_strip(label, rows[0].shape[1]))
        rows.append(beside(list(view)))
    title = text_strip(pictures.clip_id, rows[0].shape[1], height=LABEL_HEIGHT + 6)
    return np.concatenate([title, *rows], axis=0)


def stack_sheets(sheets: Sequence[np.ndarray]) -> np.ndarray:
    """Sheets below one another; narrower ones are filled up with background."""
    width = max(sheet.shape[1] for sheet in sheets)
    blanks = [
        np.full((len(sheet), width - sheet.shape[1], 3), BACKGROUND, np.uint8) for sheet in sheets
    ]
    rows = [np.concatenate(pair, axis=1) for pair in zip(sheets, blanks, strict=True)]
    return np.concatenate(rows, axis=0)


def write_mp4(path: Path, frames: RgbFrames, fps: float) -> None:
    """Write an h264 video atomically; equal frames give equal bytes.

    Colours are BT.709 and tagged so: players assume it for large pictures only. The index stands
    first, so that a page shows the video before all of it has come. h264 needs even sides: an odd
    one gets one more row or column of background. The written file is read back and its size and
    number of frames compared.

    Raises:
        UserError: the file read back is another video.
    """
    even = _pad_to_even(frames)
    with atomic_path(path) as temporary:
        _encode(temporary, even, fps)
        found = video_shape(temporary)
        if found != even.shape[:3]:
            raise UserError(
                f"{path}: the written video is {found} (frames, height, width), expected "
                f"{even.shape[:3]}: the installed ffmpeg libraries cannot write it"
            )


def video_shape(path: Path) -> tuple[int, int, int]:
    """Decode a video and count: (frames, height, width); no frames give (0, 0, 0)."""
    if path.stat().st_size == 0:
        return (0, 0, 0)
    with av.open(str(path)) as container:
        sizes = [(frame.height, frame.width) for frame in container.decode(video=0)]
    return (len(sizes), *sizes[0]) if sizes else (0, 0, 0)


def write_png(path: Path, picture: np.ndarray) -> None:
    """Write uint8 [H, W, 3] as PNG, atomically."""
    with atomic_path(path) as temporary:
        Image.fromarray(picture).save(temporary, format="PNG")


def enlarge(frames: np.ndarray, factor: int) -> np.ndarray:
    """Repeat every pixel of [..., H, W, 3] `factor` times along both sides."""
    return frames.repeat(factor, axis=-3).repeat(factor, axis=-2)


def shown_frames(count: int) -> list[int]:
    """Up to `SHEET_FRAMES` frame numbers, evenly from the first to the last."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(SHEET_FRAMES, count))})


def text_strip(text: str, width: int, height: int = LABEL_HEIGHT) -> np.ndarray:
    """One line of text on the background, uint8 [height, width, 3]; cut where it is too long."""
    strip = Image.new("RGB", (width, height), BACKGROUND)
    font = ImageFont.load_default(size=height * 0.65)
    ImageDraw.Draw(strip).text((GAP, height / 2), text, fill=INK, font=font, anchor="lm")
    return np.asarray(strip)


def _encode(path: Path, frames: RgbFrames, fps: float) -> None:
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1  # the bytes depend on the number of threads
        stream.options = X264_OPTIONS
        stream.colorspace = stream.color_primaries = stream.color_trc = BT709
        stream.color_range = ColorRange.MPEG
        for picture in frames:
            container.mux(stream.encode(_to_yuv(picture)))
        container.mux(stream.encode())


def _to_yuv(picture: np.ndarray) -> av.VideoFrame:
    """RGB uint8 [H, W, 3] → yuv420p as the video's tags say: BT.709, 16..235."""
    return av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
        interpolation=Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT,
        threads=1,
    )


def _pad_to_even(frames: RgbFrames) -> RgbFrames:
    _, height, width, _ = frames.shape
    extra = ((0, 0), (0, height % 2), (0, width % 2))
    padded = [np.pad(frames[..., c], extra, constant_values=BACKGROUND[c]) for c in range(3)]
    return np.stack(padded, axis=-1)


def _enlargement(size: int, wanted: int) -> int:
    return max(1, -(-wanted // size))


def header_strip(labels: Sequence[str], width: int) -> np.ndarray:
    """A line with one label above each picture of `width` that `beside` puts there."""
    return beside([text_strip(label, width) for label in labels])


def beside(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures of one height [H, W, 3] from left to right, with gaps."""
    gap = np.full((len(pictures[0]), GAP, 3), BACKGROUND, np.uint8)
    parts = [part for picture in pictures for part in (gap, picture)]
    return np.concatenate(parts[1:], axis=1)
