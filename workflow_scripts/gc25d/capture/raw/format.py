"""One raw run on disk, read: tars, npz and JSON as `docs/raw-format.md` says.

Every fault of a run raises `UserError` with the run's folder and, where one is at fault, the frame.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from jaxtyping import Float32, Float64, UInt8
from PIL import Image
from pydantic import Field, TypeAdapter, ValidationError

from gc25d.capture.raw.arrays import frames_of, read_array
from gc25d.capture.raw.checks import check_cameras, check_capsules, check_parts
from gc25d.capture.raw.images import decode_stencil, open_frame
from gc25d.capture.raw.tars import Series, index_series
from gc25d.errors import UserError
from gc25d.records import read_json

_Read = TypeVar("_Read")
_JPEG, _PNG = (".jpg", ".jpeg"), (".png",)
LONGEST_SIDE = 16384
"""Pixels."""
MOST_PIXELS = 1 << 26
"""Of one picture: twice what 8K has. Above it a picture is a mistake, or meant to fill memory."""


@dataclass(frozen=True)
class RunMeta:
    """What `meta.json` says of a run; other keys are ignored."""

    fps: Annotated[float, Field(gt=0.01, le=1000)]
    """Frames a second."""
    width: Annotated[int, Field(gt=0, le=LONGEST_SIDE)]
    """Pixels."""
    height: Annotated[int, Field(gt=0, le=LONGEST_SIDE)]
    """Pixels; `MOST_PIXELS` in all."""
    ground_z: tuple[float, ...]
    """Heights of the ground, cm; NaN where unknown (null in JSON)."""
    units: Literal["cm"]
    """Unit of every length."""
    projection: Literal["perspective", "orthographic"]
    """Kind of the cameras."""
    source: str
    """What captured the run (`vizdoom`, `synthetic`)."""
    engine: str
    """Engine and version."""


@dataclass(frozen=True)
class RawClip:
    """One clip of a run."""

    start: Annotated[int, Field(ge=0)]
    """First frame."""
    text_keys: tuple[str, ...]
    """Prompt key of each latent frame: the first video frame, then groups of 4 frames."""
    flags: tuple[str, ...] = ()
    """Free remarks of the capture."""


@dataclass(frozen=True)
class ClipTable:
    """The clips of one length in a run."""

    frames: Annotated[int, Field(gt=0)]
    """Frames of every clip, 4n + 1."""
    prompts: dict[str, str]
    """Prompt of a key."""
    clips: tuple[RawClip, ...]

    def prompt(self, key: str) -> str:
        """The prompt of `key`; a key without an entry is its own prompt."""
        return self.prompts.get(key, key)


@dataclass(frozen=True)
class Skeletons:
    """Capsules of the characters: two end points and a radius in cm; NaN means absent."""

    capsules: Float32[np.ndarray, "F N 7"]
    part: UInt8[np.ndarray, " N"]


def read_meta(run_dir: Path) -> RunMeta:
    """Read `meta.json`; null and NaN in `ground_z` are both NaN."""
    path = run_dir / "meta.json"
    content = _read_json(path)
    if isinstance(content, dict) and isinstance(content.get("ground_z"), list):
        heights = [math.nan if z is None else z for z in content["ground_z"]]
        content = {**content, "ground_z": heights}
    meta = _validated(RunMeta, content, path)
    if any(math.isinf(z) for z in meta.ground_z):
        raise UserError(f"{path}: ground_z holds an infinity, expected cm or null: correct it")
    if meta.width * meta.height > MOST_PIXELS:
        raise UserError(
            f"{path}: pictures of {meta.width} by {meta.height}, expected at most {MOST_PIXELS} "
            "pixels: correct it, or capture smaller"
        )
    return meta


def read_clips(run_dir: Path, frames: int) -> ClipTable:
    """Read `clips_<frames>.json`."""
    path = run_dir / f"clips_{frames}.json"
    table = _validated(ClipTable, _read_json(path), path)
    if table.frames != frames:
        raise UserError(f"{path}: holds clips of {table.frames} frames: rename or rebuild it")
    cells = latent_cells(frames)
    for clip in table.clips:
        if len(clip.text_keys) != cells:
            raise UserError(
                f"{path}: the clip at frame {clip.start} has {len(clip.text_keys)} text keys, "
                f"expected {cells}, one for each latent frame: correct it"
            )
    return table


def latent_cells(frames: int) -> int:
    """Latent frames of a clip: the first frame alone, then groups of 4."""
    return (frames - 1) // 4 + 1


def index_frames(run_dir: Path) -> Series:
    """Index of the frames' tars; give it to `read_frames` to read several clips of a run."""
    return index_series(run_dir, "frames", _JPEG)


def index_stencil(run_dir: Path) -> Series:
    """Index of the stencil's tars; give it to `read_stencil` to read several clips of a run."""
    return index_series(run_dir, "stencil", _PNG)


def read_frames(
    run_dir: Path, start: int, count: int, *, index: Series | None = None
) -> UInt8[np.ndarray, "T H W 3"]:
    """Frames start … start + count − 1 as RGB; no other frame is read."""
    meta = read_meta(run_dir)
    series = index or index_frames(run_dir)
    pictures = frame_pictures(series, (meta.width, meta.height), start, count)
    return np.stack([np.asarray(picture) for picture in pictures])


def frame_pictures(
    series: Series, size: tuple[int, int], start: int, count: int
) -> Iterator[Image.Image]:
    """RGB pictures of frames start … start + count − 1, whose size (width, height) is checked."""
    for frame in range(start, start + count):
        yield open_frame(series.read(frame), size, f"{series.run_dir}: frame {frame}")


def read_stencil(
    run_dir: Path, start: int, count: int, *, index: Series | None = None
) -> UInt8[np.ndarray, "T H W"]:
    """Stencil classes (0..8) of frames start … start + count − 1."""
    meta = read_meta(run_dir)
    series = index or index_stencil(run_dir)
    return np.stack(list(stencil_pictures(series, (meta.width, meta.height), start, count)))


def stencil_pictures(
    series: Series, size: tuple[int, int], start: int, count: int
) -> Iterator[UInt8[np.ndarray, "H W"]]:
    """Classes of frames start … start + count − 1, whose size (width, height) is checked."""
    for frame in range(start, start + count):
        where = f"{series.run_dir}: stencil frame {frame}"
        yield decode_stencil(series.read(frame), size, where)


@dataclass(frozen=True)
class CameraFile:
    """`cameras.npz`, unchecked; `of` checks the frames that it returns."""

    path: Path
    world_to_clip: Float64[np.ndarray, "F 4 4"]

    @classmethod
    def open(cls, run_dir: Path) -> Self:
        """Read the file of a run."""
        path = run_dir / "cameras.npz"
        return cls(path, read_array(path, "world_to_clip", (None, 4, 4), np.float64))

    def of(self, start: int = 0, count: int | None = None) -> Float64[np.ndarray, "T 4 4"]:
        """Cameras of the `count` frames from `start`, by default all; only those are checked."""
        chosen = frames_of(self.world_to_clip, self.path, start, count)
        check_cameras(chosen, self.path, start)
        return chosen


@dataclass(frozen=True)
class SkeletonFile:
    """`skeletons.npz`, unchecked; `of` checks the frames that it returns."""

    path: Path
    skeletons: Skeletons

    @classmethod
    def open(cls, run_dir: Path) -> Self:
        """Read the file of a run."""
        path = run_dir / "skeletons.npz"
        capsules = read_array(path, "capsules", (None, None, 7), np.float32)
        part = read_array(path, "part", (capsules.shape[1],), np.uint8)
        return cls(path, Skeletons(capsules, part))

    def of(self, start: int = 0, count: int | None = None) -> Skeletons:
        """Skeletons of the `count` frames from `start`, by default all."""
        part = self.skeletons.part
        check_parts(part, self.path)
        chosen = frames_of(self.skeletons.capsules, self.path, start, count)
        check_capsules(chosen, self.path, start)
        return Skeletons(chosen, part)


def read_cameras(
    run_dir: Path, start: int = 0, count: int | None = None
) -> Float64[np.ndarray, "T 4 4"]:
    """Cameras of all frames, or of the `count` frames from `start`; only those are checked."""
    return CameraFile.open(run_dir).of(start, count)


def read_skeletons(run_dir: Path, start: int = 0, count: int | None = None) -> Skeletons:
    """Skeletons of all frames, or of the `count` frames from `start`."""
    return SkeletonFile.open(run_dir).of(start, count)


def frame_count(run_dir: Path) -> int:
    """Frames of the run; see `check_counts` for what is refused."""
    frames, stencil = index_frames(run_dir), index_stencil(run_dir)
    check_counts(frames, stencil, CameraFile.open(run_dir), SkeletonFile.open(run_dir))
    return frames.count


def check_counts(
    frames: Series, stencil: Series, cameras: CameraFile, skeletons: SkeletonFile
) -> None:
    """Compare the numbers of frames in the files of a run.

    Raises:
        UserError: they differ. (A frame missing in the middle is found when it is read.)
    """
    counts = {
        "frames.tar": frames.count,
        "stencil.tar": stencil.count,
        "cameras.npz": len(cameras.world_to_clip),
        "skeletons.npz": len(skeletons.skeletons.capsules),
    }
    if len(set(counts.values())) > 1 or frames.first_number != stencil.first_number:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UserError(
            f"{frames.run_dir}: numbers of frames differ ({listed}; first numbers "
            f"{frames.first_number} and {stencil.first_number}): capture the run again"
        )


def _read_json(path: Path) -> Any:
    """Read JSON in which an engine may have written NaN."""
    if not path.exists():
        raise UserError(f"{path}: not found: capture the run again")
    return read_json(path, finite=False)


def _validated(kind: type[_Read], content: Any, path: Path) -> _Read:
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"]) or "content"
        raise UserError(f"{path}: {field}: {first['msg']}: correct it") from None
