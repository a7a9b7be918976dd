"""A data set of three small runs, and the arguments that evaluate on it."""

import argparse

import numpy as np

from gc25d.capture.raw.format import ClipTable, RawClip, RunMeta, Skeletons
from gc25d.capture.raw.write import write_run
from gc25d.geometry.camera import look, perspective, rotator_axes
from gc25d.records import write_json
from gc25d.settings.steps import step_json, step_settings
from gc25d.settings.tree import Settings

GEOMETRY = {"frames": 5, "height": 32, "width": 64}
RUNS = ("hall__run-0", "hall__run-1", "yard__run-0")
FIRST = "hall__run-1__000000"
CAMERA = look(np.array([0.0, 0, 100]), rotator_axes(0, 0, 0)) @ perspective(90, 2.0, 5.0)


def write_raw(folder, seed: int) -> None:
    """A run of 10 frames and two clips: a smooth picture that shifts, half ground, half wall."""
    count, height, width = 10, GEOMETRY["height"], GEOMETRY["width"]
    t, y, x = np.mgrid[:count, :height, :width]
    waves = [127 + 90 * np.sin((x + 2 * t) / 9 + c + seed) * np.cos(y / 11) for c in range(3)]
    stencil = np.where(np.arange(height)[:, None] < 16, 5, 1) * np.ones((1, width), int)
    write_run(
        folder,
        frames=list(np.stack(waves, axis=-1).astype(np.uint8)),
        stencil=[stencil.astype(np.uint8)] * count,
        cameras=np.tile(CAMERA, (count, 1, 1)),
        skeletons=Skeletons(np.zeros((count, 0, 7), np.float32), np.zeros(0, np.uint8)),
        meta=RunMeta(10.0, width, height, (0.0,), "cm", "perspective", "test", "none"),
        tables=[
            ClipTable(
                5, {"go": "Walks on."}, (RawClip(0, ("go", "go")), RawClip(5, ("go", "stop")))
            )
        ],
    )


def settings_of(evaluation: dict) -> Settings:
    return Settings.model_validate(
        {
            "geometry": GEOMETRY,
            "prep": {"val_runs": RUNS[1:], "text": {"length": 24, "dim": 16}},
            "train": {"global_batch": 1, "cpu_threads": 1},
            "evaluation": {"steps": 3, "n": 3, **evaluation},
        }
    )


def arguments(root, out, **evaluation) -> argparse.Namespace:
    step = step_settings(settings_of(evaluation), RUNS)["eval"]
    write_json(out / "settings.json", step_json(step))
    return argparse.Namespace(
        settings=out / "settings.json",
        weights=root / "step-7.safetensors",
        data=root / "data",
        reads=[],
        raw_root=root / "raw",
        out=out / "metrics.json",
        clips=out / "clips",
        sheet=out / "sheet.png",
        scores=out / "scores.png",
    )
