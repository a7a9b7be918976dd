"""What is wrong with the captures: how a clip is listed, and every fault of a build by name.

docs/dataset.md states the policy for each fault. Pure functions.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from gc25d.capture.raw.format import RawClip
from gc25d.errors import UserError
from gc25d.prep.rows import RunRow

SHOWN = 50
"""Faults that one error lists; the log has all of them."""


def listing_faults(clip: RawClip, listed: Sequence[RawClip], frames: int) -> list[str]:
    """What is odd in how a clip is listed, and costs it nothing.

    Args:
        clip: one of `listed`.
        listed: all clips of the run's table.
        frames: frames of every clip.
    """
    faults = []
    times = sum(other.start == clip.start for other in listed)
    if times > 1:
        faults.append(f"is listed {times} times")
    before = max((other.start for other in listed if other.start < clip.start), default=-frames)
    if clip.start < before + frames:
        shared = f"{clip.start}..{before + frames - 1}"
        faults.append(f"shares frames {shared} with the clip at frame {before}")
    return faults


def check_listing(clip: RawClip, listed: Iterable[RawClip]) -> None:
    """Refuse a clip that is listed twice with different content.

    Raises:
        UserError: nothing says which entry is right.
    """
    if any(other.start == clip.start and other != clip for other in listed):
        raise UserError(
            f"the clip at frame {clip.start} is listed twice with different text keys or flags: "
            "keep one of the entries"
        )


def find_faults(rows: Iterable[RunRow], buried: Collection[str]) -> dict[str, str]:
    """Run or clip → what is wrong with it, sorted; buried clips are left out."""
    faults: dict[str, str] = {}
    for row in rows:
        name, reasons = row["run"], [row["reason"]] if row["drop"] else []
        if "clip_id" in row:
            name = row["clip_id"]
            reasons += row.get("faults", [])
        if reasons and name not in buried:
            faults[name] = "; ".join(reasons)
    return dict(sorted(faults.items()))


def refuse_faults(faults: Mapping[str, str]) -> None:
    """Fail when there is any fault.

    Raises:
        UserError: lists the faults.
    """
    if not faults:
        return
    lines = [f"  {name}: {reason}" for name, reason in list(faults.items())[:SHOWN]]
    if len(faults) > SHOWN:
        lines.append(f"  and {len(faults) - SHOWN} more, see the log")
    raise UserError(
        f"{len(faults)} faults, and prep.strict allows none: mend the captures, bury the clips "
        "(prep.buried), or set prep.strict to false\n" + "\n".join(lines)
    )
