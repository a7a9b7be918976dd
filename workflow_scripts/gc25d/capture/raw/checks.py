"""Checks of a run's cameras and skeletons; errors name the file and the frame."""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Float64, UInt8

from gc25d.capture.raw.classes import PARTS
from gc25d.errors import UserError
from gc25d.geometry.camera import camera_fault


def check_cameras(
    world_to_clip: Float64[np.ndarray, "T 4 4"], path: Path, first_frame: int
) -> None:
    """Check that every matrix is a camera as docs/raw-format.md defines it.

    Raises:
        UserError: one holds NaN or an infinity, is singular, negated, mirrored or of another depth.
    """
    bad = ~np.isfinite(world_to_clip).all(axis=(1, 2))
    if bad.any():
        raise UserError(
            f"{path}: the camera of frame {first_frame + int(bad.argmax())} holds NaN or an "
            "infinity: drop the clips that use it, or capture the run again"
        )
    for frame, camera in enumerate(world_to_clip, first_frame):
        if fault := camera_fault(camera):
            raise UserError(
                f"{path}: the camera of frame {frame} {fault}: correct the exporter "
                "(docs/raw-format.md)"
            )


def check_parts(part: UInt8[np.ndarray, " N"], path: Path) -> None:
    """Check that every number is a body part.

    Raises:
        UserError: names it.
    """
    known = np.isin(part, list(PARTS.values()))
    if not known.all():
        raise UserError(
            f"{path}: part {int(part[~known][0])}, expected {min(PARTS.values())}.."
            f"{max(PARTS.values())}: correct the exporter"
        )


def check_capsules(capsules: Float[np.ndarray, "T N 7"], path: Path, first_frame: int) -> None:
    """Check every capsule; one that holds NaN is absent.

    Raises:
        UserError: one has an infinity or a radius below 0.
    """
    infinite = np.isinf(capsules).any(axis=(1, 2))
    if infinite.any():
        raise UserError(
            f"{path}: a capsule of frame {first_frame + int(infinite.argmax())} holds an "
            "infinity, expected cm, or NaN where it is absent: correct the exporter"
        )
    negative = (capsules[..., 6] < 0) & ~np.isnan(capsules).any(axis=2)
    if negative.any():
        frame, capsule = (int(places[0]) for places in negative.nonzero())
        raise UserError(
            f"{path}: capsule {capsule} of frame {first_frame + frame} has radius "
            f"{capsules[frame, capsule, 6]:g}, expected cm of 0 or more, or NaN where it is "
            "absent: correct the exporter"
        )
