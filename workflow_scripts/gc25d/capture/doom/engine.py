"""ViZDoom behind a small interface: start an episode, hold buttons, look."""

import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import vizdoom
from jaxtyping import UInt8

from gc25d.capture.doom.player import HeldButtons, Thing
from gc25d.capture.doom.stencil import OWN_WEAPON
from gc25d.capture.doom.wad import MapPlan, read_plan
from gc25d.capture.doom.world import Pose
from gc25d.errors import UserError
from gc25d.settings.tree import SCENES

ENGINE = f"ViZDoom {vizdoom.__version__}"

_SCENARIOS = Path(vizdoom.scenarios_path)
_FIRST_TIC = 14  # by then the player has raised the weapon
_BUTTONS = {
    "forward": "MOVE_FORWARD",
    "backward": "MOVE_BACKWARD",
    "strafe_left": "MOVE_LEFT",
    "strafe_right": "MOVE_RIGHT",
    "attack": "ATTACK",
}
_VARIABLES = (
    "CAMERA_POSITION_X",
    "CAMERA_POSITION_Y",
    "CAMERA_POSITION_Z",
    "CAMERA_ANGLE",
    "CAMERA_FOV",
)
_ITEMS = {"Health", "Armor", "Ammo", "Weapon", "Powerup", "Key"}


@dataclass(frozen=True)
class Actor:
    """A monster that is seen, in map units and degrees (from east to north)."""

    identity: int
    name: str
    x: float
    y: float
    z: float
    angle: float


@dataclass(frozen=True)
class Observation:
    """One frame and what the game knows about it."""

    rgb: UInt8[np.ndarray, "H W 3"]
    labels: UInt8[np.ndarray, "H W"]
    objects: dict[int, str]
    """Category of the object behind each label value."""
    pose: Pose
    monsters: tuple[Actor, ...]
    """The living ones in the picture."""
    things: tuple[Thing, ...]
    """Living monsters and items anywhere in the map."""
    heights: tuple[tuple[float, float], ...]
    """Floor and ceiling of each sector, map units."""
    floor: float
    """Floor under the player, map units."""

    @property
    def armed(self) -> bool:
        """Whether the player's own weapon is in the picture."""
        return OWN_WEAPON in self.objects


class Game:
    """A running game."""

    def __init__(self, game: Any) -> None:
        self._game = game

    @property
    def plan(self) -> MapPlan:
        """The map that is played."""
        return read_plan(Path(self._game.get_doom_scenario_path()), self._game.get_doom_map())

    def start_episode(self, seed: int) -> None:
        """Start an episode; the player cannot die and never runs out of ammunition."""
        self._game.set_seed(seed)
        self._game.new_episode()
        self._game.send_game_command("god")

    def step(self, buttons: HeldButtons, tics: int) -> Observation | None:
        """Hold buttons for some tics; None when the episode ended."""
        pressed = [name in buttons.names for name in _BUTTONS]
        self._game.make_action([*pressed, -buttons.turn], tics)
        state = None if self._game.is_episode_finished() else self._game.get_state()
        return None if state is None else _observed(state)


@contextmanager
def open_game(scene: str, width: int, height: int) -> Iterator[Game]:
    """Run a scenario without window or sound; nothing is left in the working directory.

    Raises:
        UserError: an unknown scene, or a size that ViZDoom cannot render.
    """
    resolution = _resolution(width, height)
    known = SCENES["vizdoom"]
    if scene not in known:
        raise UserError(f"capture.scenes: {scene!r} is none of {', '.join(known)}: correct it")
    with tempfile.TemporaryDirectory() as scratch:
        game = vizdoom.DoomGame()
        game.load_config(str(_SCENARIOS / f"{scene}.cfg"))
        game.set_doom_config_path(str(Path(scratch) / "vizdoom.ini"))
        _configure(game, resolution)
        with chdir(scratch):  # the engine makes a folder where it starts
            game.init()
        try:
            yield Game(game)
        finally:
            game.close()


def _resolution(width: int, height: int) -> Any:
    name = f"RES_{width}X{height}"
    if not hasattr(vizdoom.ScreenResolution, name):
        sizes = [
            tuple(int(side) for side in known[4:].split("X"))
            for known in dir(vizdoom.ScreenResolution)
            if known.startswith("RES_")
        ]
        listed = ", ".join(f"{w}x{h}" for w, h in sorted(sizes))
        raise UserError(
            f"capture.width and height are {width}x{height}, which ViZDoom does not render: use "
            f"one of {listed}"
        )
    return getattr(vizdoom.ScreenResolution, name)


def _configure(game: Any, resolution: Any) -> None:
    game.set_screen_resolution(resolution)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_labels_buffer_enabled(True)
    game.set_objects_info_enabled(True)
    game.set_sectors_info_enabled(True)
    game.set_render_hud(False)
    game.set_render_crosshair(False)
    game.set_render_messages(False)
    game.set_render_screen_flashes(False)
    game.set_render_particles(False)
    game.set_render_effects_sprites(False)  # blood and smoke would cover the whole picture
    buttons = [*_BUTTONS.values(), "TURN_LEFT_RIGHT_DELTA"]
    game.set_available_buttons([getattr(vizdoom.Button, name) for name in buttons])
    game.set_available_game_variables([getattr(vizdoom.GameVariable, name) for name in _VARIABLES])
    game.set_episode_start_time(_FIRST_TIC)
    game.set_episode_timeout(0)
    game.add_game_args("+sv_cheats 1 +sv_infiniteammo 1")


def _observed(state: Any) -> Observation:
    x, y, z, angle, fov = (float(value) for value in state.game_variables)
    heights = tuple((sector.floor_height, sector.ceiling_height) for sector in state.sectors)
    player = next(thing for thing in state.objects if thing.category == "Self")
    seen = {label.object_id for label in state.labels}
    return Observation(
        rgb=state.screen_buffer.copy(),
        labels=state.labels_buffer.copy(),
        objects={label.value: label.object_category for label in state.labels},
        pose=Pose(x, y, z, angle, fov),
        monsters=tuple(
            Actor(
                label.object_id,
                label.object_name,
                label.object_position_x,
                label.object_position_y,
                label.object_position_z,
                label.object_angle,
            )
            for label in state.labels
            if label.object_category == "Monster"
        ),
        things=tuple(
            Thing(
                thing.position_x,
                thing.position_y,
                hostile=thing.category == "Monster",
                seen=thing.id in seen,
            )
            for thing in state.objects
            if thing.category == "Monster" or thing.category in _ITEMS
        ),
        heights=heights,
        floor=heights[player.sector_id][0],
    )
