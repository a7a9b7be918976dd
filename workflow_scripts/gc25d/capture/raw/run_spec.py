"""What a capture plug-in is asked to record as one raw run."""

from dataclasses import dataclass

TICS_PER_SECOND = 35


@dataclass(frozen=True)
class RunSpec:
    """What to record."""

    scene: str
    run: int
    """Number of the run in its scene."""
    seed: int
    frames: int
    """Frames of a clip, 4n + 1."""
    clips: int
    width: int
    height: int
    tics_per_frame: int

    @property
    def fps(self) -> float:
        """Frames a second."""
        return TICS_PER_SECOND / self.tics_per_frame
