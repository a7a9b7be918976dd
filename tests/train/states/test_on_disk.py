"""The order in which a state reaches the disk: a power cut costs that state and no other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gc25d.train.states.fragments import Fragment
from gc25d.train.states.writer import StateWriter

Events = list[Any]
BINDING = "b"
RECORDS = ("shard-00000-of-00002.json", "shard-00001-of-00002.json")


def save(root: Path, step: int) -> None:
    """Two processes, each with three parts of two values."""
    values = torch.arange(12.0)
    writers = [StateWriter(root, rank, 2, part_bytes=8) for rank in (0, 1)]
    for rank, writer in enumerate(writers):
        share = [
            Fragment("s/a:weight", (12,), start, values[start : start + 2])
            for start in range(6 * rank, 6 * rank + 6, 2)
        ]
        writer.save(step, share, binding=BINDING, checkpoint=False)
    for writer in writers:
        writer.wait()


def places(events: Events, wanted: Callable[[Any], bool]) -> list[int]:
    return [number for number, event in enumerate(events) if wanted(event)]


def renamed_to(events: Events, path: Path) -> int:
    """Where the file or folder got this name; that happens once."""
    (place,) = places(events, lambda e: e.kind == "rename" and e.to == path)
    return place


def synced(events: Events, path: Path) -> list[int]:
    return places(events, lambda e: e.kind == "fsync" and e.path == path)


@pytest.fixture
def saved(tmp_path: Path, disk_events: Events) -> tuple[Events, Path, Path]:
    """The third state of a run: two older ones lie there, one of which goes."""
    root = tmp_path.resolve()
    for step in (1, 2):
        save(root, step)
    disk_events.clear()
    save(root, 3)
    return list(disk_events), root / ".step-0000003.tmp", root / "step-0000003"


def test_parts_are_on_disk_before_the_record_that_lists_them(
    saved: tuple[Events, Path, Path],
) -> None:
    events, building, folder = saved
    for name in RECORDS:
        listed = renamed_to(events, building / name)
        parts = sorted(folder.glob(f"{name.removesuffix('.json')}-part-*.safetensors"))
        assert len(parts) == 3
        for part in parts:
            first, *_ = synced(events, building / part.name)
            assert first < listed
            assert events[first].content == part.read_bytes()  # all of it, no buffer left


@pytest.mark.parametrize("name", [*RECORDS, "manifest.json"])
def test_small_files_are_on_disk_before_they_get_their_name(
    saved: tuple[Events, Path, Path], name: str
) -> None:
    events, building, folder = saved
    named = renamed_to(events, building / name)
    temporary = events[named].path
    assert temporary.parent == building
    (last,) = synced(events[:named], temporary)
    assert events[last].content == events[named].content == (folder / name).read_bytes()


def test_the_manifest_comes_after_all_records_and_the_name_after_the_manifest(
    saved: tuple[Events, Path, Path],
) -> None:
    events, building, folder = saved
    records = [renamed_to(events, building / name) for name in RECORDS]
    manifest = renamed_to(events, building / "manifest.json")
    named = renamed_to(events, folder)
    assert max(records) < manifest < named
    assert events[named].path == building
    # The names inside are on disk before the folder has its own: those of parts and records before
    # the manifest, the manifest's after it.
    entries = synced(events, building)
    assert any(max(records) < place < manifest for place in entries)
    assert any(manifest < place < named for place in entries)


def test_an_older_state_goes_after_the_new_ones_name_is_on_disk(
    saved: tuple[Events, Path, Path],
) -> None:
    events, _, folder = saved
    named = renamed_to(events, folder)
    on_disk = [place for place in synced(events, folder.parent) if place > named]
    (removed,) = places(events, lambda e: e.kind == "remove")
    assert events[removed].path == folder.parent / ".step-0000001.removed.tmp"
    assert named < on_disk[0] < removed


def test_a_state_that_is_replaced_goes_last(tmp_path: Path, disk_events: Events) -> None:
    root = tmp_path.resolve()
    save(root, 3)
    disk_events.clear()
    save(root, 3)
    named = renamed_to(disk_events, root / "step-0000003")
    on_disk = next(place for place in synced(disk_events, root) if place > named)
    (removed,) = places(disk_events, lambda e: e.kind == "remove")
    assert on_disk < removed
    assert disk_events[removed].path == root / ".step-0000003.replaced.tmp"
