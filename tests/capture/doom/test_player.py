import numpy as np
import pytest

from gc25d.capture.doom.player import HEADINGS, MAX_TURN, Player, PlayerView, Thing
from gc25d.capture.doom.prompts import prompt, text_key
from gc25d.capture.raw.bodies import BODY_PARTS, boss_body, held_weapon

OPEN = (1000.0,) * len(HEADINGS)


def play(view, cells=60, seed=0):
    player = Player(np.random.default_rng(seed))
    return [player.decide(view, 8) for _ in range(cells)]


def test_turns_have_names_and_limits():
    enemy = Thing(0.0, 100, hostile=True, seen=True)  # to the left
    for action in play(PlayerView(0, 0, 0, True, [enemy], OPEN)):
        assert abs(action.turn) <= MAX_TURN
        assert ("turn_left" in action.names) == (action.turn >= 0.5)
        assert ("turn_right" in action.names) == (action.turn <= -0.5)


def test_shoots_only_with_a_weapon_at_an_enemy_ahead():
    enemy, item = Thing(300.0, 0, True, True), Thing(300.0, 0, False, True)
    assert any("attack" in a.names for a in play(PlayerView(0, 0, 0, True, [enemy], OPEN)))
    for view in (
        PlayerView(0, 0, 0, False, [enemy], OPEN),
        PlayerView(0, 0, 180, True, [enemy], OPEN),
        PlayerView(0, 0, 0, True, [item], OPEN),
    ):
        assert not any("attack" in action.names for action in play(view))


def test_does_not_walk_into_a_wall_when_roaming():
    room = tuple(20.0 if abs(heading) < 60 else 400.0 for heading in HEADINGS)
    for action in play(PlayerView(0, 0, 0, True, [], room)):
        assert "forward" not in action.names


def test_leaves_a_place_where_it_is_stuck():
    wall = tuple(300.0 if heading == 90 else 100.0 for heading in HEADINGS)
    item = Thing(500.0, 0, hostile=False, seen=True)  # straight ahead, out of reach
    actions = play(PlayerView(0, 0, 0, True, [item], wall), cells=20)
    assert sum("turn_left" in action.names for action in actions) >= 5


def test_decisions_are_a_function_of_the_seed():
    view = PlayerView(0, 0, 0, True, [Thing(200.0, 50, True, True)], OPEN)
    assert play(view, seed=3) == play(view, seed=3)
    assert play(view, seed=3) != play(view, seed=4)


@pytest.mark.parametrize(
    ("actions", "key", "sentence"),
    [
        ((), "stand", "The player stands still."),
        (("turn_left",), "turn_left", "The player turns left."),
        (("attack", "forward"), "forward+attack", "The player moves forward and attacks."),
        (
            {"attack", "strafe_right", "turn_right"},
            "strafe_right+turn_right+attack",
            "The player steps to the right, turns right and attacks.",
        ),
    ],
)
def test_prompts(actions, key, sentence):
    assert text_key(actions) == key
    assert prompt(key) == sentence


def test_body_fits_its_cylinder_and_faces_its_heading():
    feet = np.array([1000.0, -500, 30])
    body = boss_body(feet, 90, 200, 60)  # looks along +Y
    assert set(BODY_PARTS) == set(range(16, 22))
    ends = body[:, :6].reshape(-1, 2, 3) - feet
    low, high = ends[..., 2] - body[:, 6:], ends[..., 2] + body[:, 6:]
    assert low.min() > -5
    assert high.max() <= 200
    assert np.abs(ends[..., 0]).max() + 20 <= 60  # across
    weapon = ends[BODY_PARTS.index(21)]
    assert weapon[1, 1] > weapon[0, 1] > 0  # forward
    heads, legs = (ends[np.array(BODY_PARTS) == part, :, 2] for part in (16, 19))
    assert heads.min() > legs.max()


def test_weapon_is_held_before_the_eye():
    weapon = held_weapon(np.array([10.0, 20, 100]), 180)
    assert weapon[0] < 10
    assert weapon[3] < weapon[0]
    assert weapon[2] < 100
