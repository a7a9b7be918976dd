"""The buttons a player holds, as a text key and a sentence."""

from collections.abc import Collection

STILL = "stand"

_CLAUSES = {
    "forward": "moves forward",
    "backward": "moves backward",
    "strafe_left": "steps to the left",
    "strafe_right": "steps to the right",
    "turn_left": "turns left",
    "turn_right": "turns right",
    "attack": "attacks",
}


def text_key(actions: Collection[str]) -> str:
    """The actions in a fixed order, joined by `+`; `stand` for none."""
    return "+".join(name for name in _CLAUSES if name in actions) or STILL


def prompt(key: str) -> str:
    """The sentence of a text key."""
    if key == STILL:
        return "The player stands still."
    clauses = [_CLAUSES[name] for name in key.split("+")]
    listed = ", ".join(clauses[:-1]) + " and " + clauses[-1] if clauses[1:] else clauses[0]
    return f"The player {listed}."
