"""How the two characters move: the player by one move in each latent frame, the boss after it.

Everything follows from the scene and one seeded generator.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gc25d.capture.synthetic.bodies import Stance
from gc25d.capture.synthetic.scene import ROAM, Scene

_WALK, _TURN = 300.0, 80.0  # cm and degrees a second
_STEP = 150.0  # cm of a walk's full cycle
_REACH = 45.0  # half a character's width, cm
_APART = 190.0  # characters keep this far from each other, cm
_BLOWS = 2.0  # a second
_BOSS_SPEED = 260.0
_BOSS_AHEAD = 420.0  # where it wants to be before the player, cm
_WEAVE = 40.0  # degrees to either side of the player's heading
_DETOURS = (0, 40, -40, 80, -80, 130, -130)  # degrees off its way, tried in this order


@dataclass(frozen=True)
class Move:
    """What the player does during a latent frame."""

    names: frozenset[str]
    """Of the buttons held."""
    weight: float
    """How readily it is chosen."""
    forward: float = 0.0
    """Of the walking speed."""
    right: float = 0.0
    """Of the walking speed."""
    turn: float = 0.0
    """Of the turning speed, positive to the right."""


MOVES = (
    Move(frozenset(), 1),
    Move(frozenset({"forward"}), 5, forward=1),
    Move(frozenset({"forward", "turn_left"}), 3, forward=1, turn=-0.6),
    Move(frozenset({"forward", "turn_right"}), 3, forward=1, turn=0.6),
    Move(frozenset({"backward"}), 1, forward=-0.6),
    Move(frozenset({"strafe_left"}), 1.5, right=-0.8),
    Move(frozenset({"strafe_right"}), 1.5, right=0.8),
    Move(frozenset({"turn_left"}), 1.5, turn=-1),
    Move(frozenset({"turn_right"}), 1.5, turn=1),
    Move(frozenset({"attack"}), 1.5),
    Move(frozenset({"forward", "attack"}), 2, forward=1),
)
"""What the player can do in a latent frame."""

_KEEP = 8.0  # how many times as readily the last move is chosen again


@dataclass(frozen=True)
class Moment:
    """Both characters in one frame."""

    player: Stance
    boss: Stance


def act(
    scene: Scene, generator: np.random.Generator, cells: Sequence[int], fps: float
) -> Iterator[tuple[Move, list[Moment]]]:
    """Each latent frame's move, and the video frames that it leads into.

    Args:
        scene: what to keep clear of.
        generator: source of every choice.
        cells: video frames of each latent frame.
        fps: frames a second.
    """
    now = _start(scene, generator)
    move = MOVES[1]
    for frames in cells:
        move = _choose(scene, generator, now, move, frames / fps)
        moments = []
        for _ in range(frames):
            player = _acted(now.player, move, 1 / fps)
            now = Moment(player, _follow(scene, now.boss, player, 1 / fps))
            moments.append(now)
        yield move, moments


def _start(scene: Scene, generator: np.random.Generator) -> Moment:
    yaw = generator.uniform(0, 360)
    player = Stance(0.0, 0.0, yaw)
    headings = yaw + np.arange(0, 360, 10)
    places = [_ahead(player, heading, _BOSS_AHEAD) for heading in headings]
    place = next((at for at in places if scene.clear(*at, _REACH)), places[0])
    return Moment(player, Stance(*place, yaw + 180))


def _choose(
    scene: Scene, generator: np.random.Generator, now: Moment, last: Move, seconds: float
) -> Move:
    """A move that runs into nothing; the last one is kept most often."""
    weights = np.array(
        [
            move.weight
            * (_KEEP if move is last else 1)
            * _open(scene, _acted(now.player, move, seconds), now)
            for move in MOVES
        ]
    )
    return MOVES[generator.choice(len(MOVES), p=weights / weights.sum())]


def _open(scene: Scene, after: Stance, now: Moment) -> bool:
    if (after.x, after.y) == (now.player.x, now.player.y):
        return True
    apart = math.hypot(after.x - now.boss.x, after.y - now.boss.y)
    return apart > _APART and scene.clear(after.x, after.y, _REACH)


def _acted(stance: Stance, move: Move, seconds: float) -> Stance:
    """A character after `move`: it turns, then walks, and its limbs follow."""
    yaw = stance.yaw + move.turn * _TURN * seconds
    forward, right = move.forward * _WALK * seconds, move.right * _WALK * seconds
    x, y = _ahead(stance, yaw, forward)
    x, y = x - right * math.sin(math.radians(yaw)), y + right * math.cos(math.radians(yaw))
    moved = math.copysign(math.hypot(forward, right), forward)
    strike = stance.strike + 2 * math.pi * _BLOWS * seconds if "attack" in move.names else 0.0
    posed = _walked(stance, moved, seconds)
    return dataclasses.replace(posed, x=x, y=y, yaw=yaw, strike=strike)


def _walked(stance: Stance, moved: float, seconds: float) -> Stance:
    """The limbs of a character that moved so many cm; they come to rest when it stops."""
    settle = 1 - math.exp(-8 * seconds)
    return dataclasses.replace(
        stance,
        gait=stance.gait + 2 * math.pi * moved / _STEP,
        swing=stance.swing + settle * (float(moved != 0) - stance.swing),
    )


def _follow(scene: Scene, boss: Stance, player: Stance, seconds: float) -> Stance:
    """The boss walks to a place before the player, around obstacles, and faces the player."""
    goal = _ahead(player, player.yaw + _WEAVE * math.cos(boss.gait / 7), _BOSS_AHEAD)
    far = math.hypot(*goal)
    if far > ROAM:
        goal = goal[0] * ROAM / far, goal[1] * ROAM / far
    step = min(_BOSS_SPEED * seconds, math.dist(goal, (boss.x, boss.y)))
    way = _bearing((boss.x, boss.y), goal)
    for detour in _DETOURS if step > 1 else ():
        x, y = _ahead(boss, way + detour, step)
        if scene.clear(x, y, _REACH) and math.hypot(x - player.x, y - player.y) > _APART:
            break
    else:
        x, y, step = boss.x, boss.y, 0.0
    off = (_bearing((x, y), (player.x, player.y)) - boss.yaw + 180) % 360 - 180
    turn = min(max(off, -2 * _TURN * seconds), 2 * _TURN * seconds)
    near = math.hypot(x - player.x, y - player.y) < 1.8 * _APART
    strike = boss.strike + 2 * math.pi * seconds if near else 0.0
    posed = _walked(boss, step, seconds)
    return dataclasses.replace(posed, x=x, y=y, yaw=boss.yaw + turn, strike=strike)


def _ahead(stance: Stance, heading: float, distance: float) -> tuple[float, float]:
    angle = math.radians(heading)
    return stance.x + distance * math.cos(angle), stance.y + distance * math.sin(angle)


def _bearing(start: tuple[float, float], end: tuple[float, float]) -> float:
    return math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))
