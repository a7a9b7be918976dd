"""One raw run of a synthetic world with exact ground truth: planned, ray-cast, written.

The plan says where everything is in every frame. Casting rays into a frame gives parts, depth and
ground points without any of the code that they are used to check.
"""

import hashlib
import math
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8

from gc25d.capture.doom.prompts import prompt, text_key
from gc25d.capture.raw.classes import BODY, FIRST_PART
from gc25d.capture.raw.format import (
    ClipTable,
    RawClip,
    RunMeta,
    Skeletons,
    latent_cells,
)
from gc25d.capture.raw.run_spec import RunSpec
from gc25d.capture.raw.write import write_run
from gc25d.capture.synthetic.bodies import COLORS, body, body_parts
from gc25d.capture.synthetic.camera import Camera, Film
from gc25d.capture.synthetic.caster import Cast, cast
from gc25d.capture.synthetic.motion import Moment, act
from gc25d.capture.synthetic.rigs import Rig, follow
from gc25d.capture.synthetic.scene import Color, Scene, Solid, build_scene
from gc25d.capture.synthetic.shading import shade
from gc25d.capture.synthetic.shapes import Capsule
from gc25d.errors import UserError
from gc25d.settings.tree import SCENES

ENGINE = "gc25d ray caster 1"

_SCALES = {"player": 1.0, "boss": 1.4}


@dataclass(frozen=True)
class _Recipe:
    rig: Rig
    ground_z: float


_RECIPES = {
    "synthetic_perspective": _Recipe(
        Rig("perspective", 75.0, -18.0, 470.0, turns=True, near=10.0, far=math.inf), 0.0
    ),
    "synthetic_orthographic": _Recipe(
        Rig("orthographic", 1150.0, -38.0, 4000.0, turns=False, near=10.0, far=12000.0), 150.0
    ),
}


@dataclass(frozen=True)
class RunPlan:
    """Everything about a run but its pictures."""

    scene: Scene
    cameras: tuple[Camera, ...]
    capsules: Float32[np.ndarray, "F N 7"]
    part: UInt8[np.ndarray, " N"]
    text_keys: tuple[tuple[str, ...], ...]
    """Of each clip, one for each latent frame."""

    def solids(self, frame: int) -> tuple[Solid, ...]:
        """What stands and walks in a frame: the scene's solids, then the characters' capsules."""
        limbs = (
            Solid(Capsule(row[:3], row[3:6], float(row[6])), int(part), _color(int(part)))
            for row, part in zip(self.capsules[frame].astype(np.float64), self.part, strict=True)
        )
        return *self.scene.solids, *limbs


def capture_run(run_dir: Path, spec: RunSpec) -> None:
    """Make and write one run. Equal specs give equal bytes.

    Raises:
        UserError: the scene is unknown.
    """
    plan = plan_run(spec)
    pictures = [render(plan, spec, frame) for frame in range(len(plan.cameras))]
    write_run(
        run_dir,
        frames=(rgb for rgb, _ in pictures),
        stencil=(seen.stencil for _, seen in pictures),
        cameras=np.stack([c.world_to_clip(spec.width, spec.height) for c in plan.cameras]),
        skeletons=Skeletons(plan.capsules, plan.part),
        meta=RunMeta(
            fps=spec.fps,
            width=spec.width,
            height=spec.height,
            ground_z=(plan.scene.floor.z,),
            units="cm",
            projection=plan.cameras[0].projection,
            source="synthetic",
            engine=ENGINE,
        ),
        tables=[_clip_table(plan, spec)],
    )


def plan_run(spec: RunSpec) -> RunPlan:
    """Place the scene, move the characters, follow them with the camera.

    Raises:
        UserError: the scene is unknown.
    """
    recipe = _RECIPES.get(spec.scene)
    if recipe is None:
        known = ", ".join(SCENES["synthetic"])
        raise UserError(f"capture.scenes: {spec.scene!r} is none of {known}: correct it")
    generator = _generator(spec)
    scene = build_scene(generator, recipe.ground_z)
    heading = float(generator.uniform(0, 360))
    cells = latent_cells(spec.frames)
    lengths = [1, *[4] * (cells - 1)] * spec.clips
    played = list(act(scene, generator, lengths, spec.fps))
    moments = list(chain.from_iterable(moments for _, moments in played))
    stances = [moment.player for moment in moments]
    keys = [text_key(move.names) for move, _ in played]
    return RunPlan(
        scene=scene,
        cameras=tuple(follow(recipe.rig, stances, recipe.ground_z, heading, spec.fps)),
        capsules=np.stack([_bodies(moment, recipe.ground_z) for moment in moments]),
        part=np.concatenate([body_parts(who) for who in _SCALES]),
        text_keys=tuple(tuple(keys[first : first + cells]) for first in range(0, len(keys), cells)),
    )


def render(plan: RunPlan, spec: RunSpec, frame: int) -> tuple[UInt8[np.ndarray, "H W 3"], Cast]:
    """One frame's colours and what its pixels show."""
    film = Film(plan.cameras[frame], spec.width, spec.height)
    solids = plan.solids(frame)
    seen = cast(film, plan.scene.floor, solids)
    return shade(film, plan.scene.floor, solids, seen, frame / spec.fps), seen


def _generator(spec: RunSpec) -> np.random.Generator:
    scene = int.from_bytes(hashlib.sha256(spec.scene.encode()).digest()[:4], "big")
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence([spec.seed, scene, spec.run]))
    )


def _bodies(moment: Moment, ground_z: float) -> Float32[np.ndarray, "22 7"]:
    stances = {"player": moment.player, "boss": moment.boss}
    return np.concatenate([body(stances[who], ground_z, size) for who, size in _SCALES.items()])


def _color(part: int) -> Color:
    who = max(FIRST_PART, key=lambda name: (FIRST_PART[name] <= part, FIRST_PART[name]))
    return COLORS[who][BODY[part - FIRST_PART[who]]]


def _clip_table(plan: RunPlan, spec: RunSpec) -> ClipTable:
    prompts = {key: prompt(key) for key in sorted(set(chain.from_iterable(plan.text_keys)))}
    clips = [RawClip(spec.frames * number, keys) for number, keys in enumerate(plan.text_keys)]
    return ClipTable(spec.frames, prompts, tuple(clips))
