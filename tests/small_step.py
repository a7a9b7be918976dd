"""Training settings of the size that tests use."""

from typing import Any

from gc25d.settings.steps import TrainStep


def small_step(**sections: Any) -> TrainStep:
    """Clips of `small_dataset`, 9 × 64 × 64 with texts of 16 × 8, and these sections."""
    return TrainStep.model_validate(
        {
            "geometry": {"frames": 9, "height": 64, "width": 64},
            "text_length": 16,
            "text_dim": 8,
            "samples": {},
            "model": {},
            "train": {},
            "validation": {},
            **sections,
        }
    )
