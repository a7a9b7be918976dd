"""Names of the classes in a raw run: the engine's stencil and the parts of a skeleton."""

STENCIL: dict[str, int] = {
    "sky": 0,
    "ground": 1,
    "path": 2,
    "water": 3,
    "foliage": 4,
    "structure": 5,
    "prop": 6,
    "player": 7,
    "boss": 8,
}
"""Class of a stencil pixel. `sky` is the void too: nothing was drawn."""

BODY = ("head", "torso", "arms", "legs", "hands_feet", "weapon")
"""Parts of a character, in the order of their ids."""

FIRST_PART: dict[str, int] = {"player": 10, "boss": 16}
"""Id of a character's first part (its head); the others follow in the order of `BODY`."""

PARTS: dict[str, int] = {
    f"{who}_{part}": first + place
    for who, first in FIRST_PART.items()
    for place, part in enumerate(BODY)
}
"""Id of a capsule: `player_head` 10 … `player_weapon` 15, `boss_head` 16 … `boss_weapon` 21."""
