"""Each fault of a whole run through the real steps: named, the rest built, refused by strict.

The policies are those of docs/dataset.md.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gc25d.records import read_json, write_json

BAD = "maze__run-000"
Change = Callable[[Any], None]  # of the fixture's `RawFolder`


def renumbered(run) -> None:
    for name in ("frames.tar", "stencil.tar"):
        moved = [(f"{int(n[:6]) + 5:06d}{n[6:]}", data) for n, data in run.members(name)]
        run.write_members(name, moved)


def in_parts_with_a_gap(run) -> None:
    content = run.members("frames.tar")
    (run.path / "frames.tar").unlink()
    run.write_members("frames-000.tar", content[:6])
    run.write_members("frames-002.tar", content[6:])


def duplicate_number(run) -> None:
    content = run.members("frames.tar")
    run.write_members("frames.tar", [*content, ("again/000003.jpg", content[3][1])])


def no_width(run) -> None:
    path = run.path / "meta.json"
    write_json(path, {**read_json(path), "width": 0})


def fewer(name: str) -> Change:
    return lambda run: run.write_members(name, run.members(name)[:-1])


def cut(name: str, to: float) -> Change:
    def change(run) -> None:
        data = (run.path / name).read_bytes()
        (run.path / name).write_bytes(data[: int(len(data) * to)])

    return change


def flip(name: str) -> Change:
    """Damage bytes in the middle of a file."""

    def change(run) -> None:
        data = bytearray((run.path / name).read_bytes())
        middle = len(data) // 2
        data[middle : middle + 40] = bytes(byte ^ 0xFF for byte in data[middle : middle + 40])
        (run.path / name).write_bytes(data)

    return change


def missing(name: str) -> Change:
    return lambda run: (run.path / name).unlink()


def pickled(run) -> None:
    np.savez(run.path / "cameras.npz", world_to_clip=np.array([{}], dtype=object))


# A fault of the whole run, and what its reason says.
RUN_FAULTS: dict[str, tuple[Change, str]] = {
    "frame number twice": (duplicate_number, "occurs twice"),
    "numbers from 5": (renumbered, "starts at number 5"),
    "part missing": (in_parts_with_a_gap, "frames-001.tar is missing"),
    "frames without stencil": (fewer("stencil.tar"), "stencil.tar 11"),
    "fewer frames": (fewer("frames.tar"), "frames.tar 11"),
    "fewer cameras": (lambda run: run.change_cameras(lambda c: c[:-1]), "cameras.npz 11"),
    "cut tar": (cut("frames.tar", 0.5), "frames.tar"),
    "empty tar": (cut("frames.tar", 0), "frames.tar"),
    "tar of nothing": (lambda run: run.write_members("frames.tar", []), "holds no picture"),
    "cut npz": (cut("cameras.npz", 0.5), "cameras.npz"),
    "empty npz": (cut("skeletons.npz", 0), "skeletons.npz"),
    "damaged npz": (flip("cameras.npz"), "cameras.npz"),
    "pickled npz": (pickled, "cameras.npz"),
    "no stencil": (missing("stencil.tar"), "no stencil.tar"),
    "no skeletons": (missing("skeletons.npz"), "skeletons.npz: not found"),
    "no clips file": (missing("clips_5.json"), "clips_5.json: not found"),
    "no clips": (lambda run: run.change_clips(lambda clips: []), "lists no clip"),
    "clip before the start": (
        lambda run: run.change_clips(lambda c: [{**c[0], "start": -1}]), "clips.0.start",
    ),
    "too few text keys": (
        lambda run: run.change_clips(lambda c: [{**c[0], "text_keys": ["go"]}]), "1 text keys",
    ),
    "meta of zero size": (no_width, "meta.json: width"),
    "meta cut": (cut("meta.json", 0.5), "meta.json"),
}  # fmt: skip


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_a_faulty_run_is_left_out_by_name(captures, fault):
    change, said = RUN_FAULTS[fault]
    root = captures.build(change)
    failed = read_json(root / "READY")["failed_runs"]
    assert list(failed) == [BAD]
    assert said in failed[BAD]
    assert captures.usable() == captures.others(f"{BAD}__000000", f"{BAD}__000005")
    refused = captures.rejoin_strictly()
    assert refused.startswith("1 faults")
    assert f"{BAD}: {failed[BAD]}" in refused
