"""The scripted player: from what it sees and a seeded generator to the buttons it holds.

It decides once for each latent frame, so that one text key describes all its video frames.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

HEADINGS = tuple(range(-180, 180, 15))
"""Directions in which the player knows its room: degrees to the left of where it faces."""

MAX_TURN = 4.0  # degrees a tic
_FAR = 500.0  # map units: all room beyond this counts the same
_NEAR_WALL = 72.0  # map units: stop walking
_TURN_COST = 1.2  # map units of room that a degree of turning must gain
_HIDDEN = 45.0  # degrees: what lies this close ahead and is not seen is behind a wall
_ALIGNED = 6.0  # degrees: shoot, and stop turning
_CLOSE = 160.0  # map units: stop walking towards a monster
_STUCK = 3.0  # map units a latent frame


@dataclass(frozen=True)
class Thing:
    """Something to walk to or to shoot at, map units."""

    x: float
    y: float
    hostile: bool
    seen: bool


@dataclass(frozen=True)
class PlayerView:
    """What the player knows when it decides."""

    x: float
    y: float
    angle: float
    armed: bool
    things: Sequence[Thing]
    room: Sequence[float]
    """Distance to the wall along each of `HEADINGS`, map units."""


@dataclass(frozen=True)
class HeldButtons:
    """Buttons held during a latent frame."""

    names: frozenset[str]
    """Of `prompts`: forward, backward, strafe_left, …"""
    turn: float = 0.0
    """Degrees a tic, positive to the left."""


class Player:
    """A player with moods: it hunts, circles, roams and looks around."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._mood = "roam"
        self._left = 0  # latent frames until the mood changes
        self._side = 1
        self._last: tuple[float, float] | None = None
        self._walked = False

    def decide(self, view: PlayerView, tics: int) -> HeldButtons:
        """The buttons of a latent frame that lasts `tics` game tics."""
        if self._stuck(view):
            self._mood, self._left = "roam", int(self._generator.integers(2, 5))
        elif self._left == 0:
            self._change_mood(any(thing.hostile for thing in view.things))
        self._left -= 1
        buttons = self._act(view, tics)
        self._last = view.x, view.y
        self._walked = bool(buttons.names & {"forward", "backward"})
        return buttons

    def _stuck(self, view: PlayerView) -> bool:
        if self._last is None or not self._walked:
            return False
        return math.dist(self._last, (view.x, view.y)) < _STUCK

    def _change_mood(self, enemies: bool) -> None:
        moods = ("hunt", "circle", "roam", "look") if enemies else ("visit", "roam", "look")
        chances = (0.5, 0.25, 0.15, 0.1) if enemies else (0.5, 0.35, 0.15)
        self._mood = moods[int(self._generator.choice(len(moods), p=chances))]
        self._left = int(self._generator.integers(2, 6))
        self._side = int(self._generator.choice((-1, 1)))

    def _act(self, view: PlayerView, tics: int) -> HeldButtons:
        if self._mood == "look":
            return _buttons(set(), self._side * MAX_TURN * 0.75)
        target = _nearest(view, hostile=self._mood in ("hunt", "circle"))
        if self._mood == "roam" or target is None or _hidden(view, target):
            return self._roam(view, tics)
        return self._approach(view, target, tics)

    def _roam(self, view: PlayerView, tics: int) -> HeldButtons:
        """Walk towards open space; the heading drifts at random."""
        scores = [
            min(room, _FAR) - _TURN_COST * abs(heading)
            for heading, room in zip(HEADINGS, view.room, strict=True)
        ]
        heading = HEADINGS[int(np.argmax(scores))]
        drift = float(self._generator.uniform(-1.0, 1.0))
        clear = view.room[HEADINGS.index(0)] > _NEAR_WALL
        return _buttons({"forward"} if clear else set(), _clamp(heading / tics + drift, MAX_TURN))

    def _approach(self, view: PlayerView, target: Thing, tics: int) -> HeldButtons:
        off, distance = _bearing(view, target)
        turn = _clamp(off / tics, MAX_TURN) if abs(off) > _ALIGNED / 2 else 0.0
        names = set()
        if target.hostile and view.armed and abs(off) < max(_ALIGNED, MAX_TURN * tics / 2):
            names.add("attack")
        if self._mood == "circle":
            names.add("strafe_left" if self._side > 0 else "strafe_right")
        elif not target.hostile or distance > _CLOSE:
            names.add("forward")
        elif distance < _CLOSE / 2:
            names.add("backward")
        return _buttons(names, turn)


def _buttons(names: set[str], turn: float) -> HeldButtons:
    """Add the name of a turn that a viewer would notice."""
    if abs(turn) >= 0.5:
        names = names | {"turn_left" if turn > 0 else "turn_right"}
    return HeldButtons(frozenset(names), turn)


def _nearest(view: PlayerView, *, hostile: bool) -> Thing | None:
    """The nearest of a kind; one that is seen before one that is not."""

    def rank(thing: Thing) -> tuple[bool, float]:
        return not thing.seen, _bearing(view, thing)[1]

    return min((thing for thing in view.things if thing.hostile == hostile), key=rank, default=None)


def _hidden(view: PlayerView, thing: Thing) -> bool:
    return not thing.seen and abs(_bearing(view, thing)[0]) < _HIDDEN


def _bearing(view: PlayerView, thing: Thing) -> tuple[float, float]:
    """Degrees to turn left to face the thing (−180..180), and its distance."""
    dx, dy = thing.x - view.x, thing.y - view.y
    off = math.degrees(math.atan2(dy, dx)) - view.angle
    return (off + 180) % 360 - 180, math.hypot(dx, dy)


def _clamp(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
