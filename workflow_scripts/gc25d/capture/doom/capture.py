"""One raw run from ViZDoom: scripted play, seeded by (seed, scene, run), cut into clips."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gc25d.capture.doom import recording
from gc25d.capture.doom.engine import ENGINE, Game, Observation, open_game
from gc25d.capture.doom.floorplan import draw_floorplan, wall_distances
from gc25d.capture.doom.player import HEADINGS, HeldButtons, Player, PlayerView
from gc25d.capture.doom.prompts import prompt, text_key
from gc25d.capture.doom.recording import GameFrame
from gc25d.capture.doom.stencil import classify_flats
from gc25d.capture.doom.wad import MapPlan
from gc25d.capture.raw.format import ClipTable, RawClip, RunMeta, latent_cells
from gc25d.capture.raw.run_spec import RunSpec
from gc25d.capture.raw.write import write_run
from gc25d.errors import UserError

_EPISODES_PER_CLIP = 8
_STILL = HeldButtons(frozenset())


def capture_run(run_dir: Path, spec: RunSpec) -> None:
    """Play and write one run. Equal specs give equal bytes.

    Raises:
        UserError: the scene or size is unknown, or its episodes are too short for a clip.
    """
    with open_game(spec.scene, spec.width, spec.height) as game:
        plan = game.plan
        clips = list(_play(game, plan, spec))
    flats = classify_flats(plan, draw_floorplan(plan))
    frames = [frame for clip, _ in clips for frame in clip]
    keys = sorted({key for _, text in clips for key in text})
    write_run(
        run_dir,
        frames=[frame.seen.rgb for frame in frames],
        stencil=recording.stencils(frames, flats),
        cameras=recording.cameras(frames),
        skeletons=recording.skeletons(frames),
        meta=RunMeta(
            fps=spec.fps,
            width=spec.width,
            height=spec.height,
            ground_z=(recording.ground_height(frames),),
            units="cm",
            projection="perspective",
            source="vizdoom",
            engine=ENGINE,
        ),
        tables=[
            ClipTable(
                spec.frames,
                {key: prompt(key) for key in keys},
                tuple(
                    RawClip(number * spec.frames, text) for number, (_, text) in enumerate(clips)
                ),
            )
        ],
    )


def _play(
    game: Game, plan: MapPlan, spec: RunSpec
) -> Iterator[tuple[list[GameFrame], tuple[str, ...]]]:
    """The clips of a run, each from one episode, with the text key of every latent frame."""
    done, episode = 0, -1
    player, last = Player(np.random.default_rng(0)), None
    while done < spec.clips:
        if last is None:  # the first clip, or the episode is over
            episode += 1
            if episode > _EPISODES_PER_CLIP * spec.clips:
                raise UserError(
                    f"scene {spec.scene}: its episodes end within {spec.frames} frames; choose "
                    "another scene, or fewer frames or tics_per_frame"
                )
            player = Player(_generator(spec, episode))
            last = _start(game, spec, episode)
            continue
        clip = _record(game, plan, player, spec, last)
        if clip is None:
            last = None
            continue
        frames, keys = clip
        yield frames, keys
        done += 1
        last = None if _cleared(last, frames[-1]) else frames[-1]


def _generator(spec: RunSpec, episode: int) -> np.random.Generator:
    scene = int.from_bytes(hashlib.sha256(spec.scene.encode()).digest()[:4], "big")
    entropy = np.random.SeedSequence([spec.seed, scene, spec.run, episode])
    return np.random.Generator(np.random.Philox(entropy))


def _start(game: Game, spec: RunSpec, episode: int) -> GameFrame | None:
    game.start_episode(int(_generator(spec, episode).integers(2**31)))
    seen = game.step(_STILL, spec.tics_per_frame)
    return None if seen is None else GameFrame(episode, seen)


def _record(
    game: Game, plan: MapPlan, player: Player, spec: RunSpec, last: GameFrame
) -> tuple[list[GameFrame], tuple[str, ...]] | None:
    """The frames of one clip after `last`, or None when the episode ends before its last frame.

    Buttons are held through a latent frame: they lead *into* each of its video frames.
    """
    frames: list[GameFrame] = []
    keys = []
    for cell in range(latent_cells(spec.frames)):
        count = 1 if cell == 0 else 4
        buttons = player.decide(_view(plan, last.seen), count * spec.tics_per_frame)
        keys.append(text_key(buttons.names))
        for _ in range(count):
            seen = game.step(buttons, spec.tics_per_frame)
            if seen is None:
                return None
            last = GameFrame(last.episode, seen)
            frames.append(last)
    return frames, tuple(keys)


def _view(plan: MapPlan, seen: Observation) -> PlayerView:
    pose = seen.pose
    room = wall_distances(plan, (pose.x, pose.y), np.array(HEADINGS) + pose.angle)
    return PlayerView(pose.x, pose.y, pose.angle, seen.armed, seen.things, room.tolist())


def _cleared(before: GameFrame, after: GameFrame) -> bool:
    """Whether the last enemy fell."""
    had, has = (any(thing.hostile for thing in frame.seen.things) for frame in (before, after))
    return had and not has
