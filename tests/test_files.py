"""Files and folders: whole or not at all, on disk before they have their name."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gc25d import files, records
from gc25d.capture.raw.arrays import write_arrays
from gc25d.capture.raw.tars import write_series
from gc25d.errors import UserError
from gc25d.evaluate.panels import write_mp4, write_png
from gc25d.tensors import write_tensors


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "a.b"
    code = (
        "import os, pathlib, sys\n"
        "from gc25d.files import atomic_path\n"
        "with atomic_path(pathlib.Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    for target in (path, other):
        assert subprocess.run([sys.executable, "-c", code, str(target)]).returncode == -9
    (left,) = tmp_path.glob(".a.b.*.tmp")
    assert len(list(tmp_path.iterdir())) == 2
    files.write_text(path, "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"a", left.name}  # another target's stays


def test_a_temporary_of_a_living_writer_stays_and_of_another_host_for_a_day(tmp_path: Path) -> None:
    path = tmp_path / "a"
    fresh, old = (tmp_path / f".a.00000000-1-{name}.tmp" for name in ("fresh", "old"))
    for foreign, hours in ((fresh, 23), (old, 25)):
        foreign.write_text("")
        written = time.time() - hours * 3600
        os.utime(foreign, (written, written))
    with files.atomic_path(path) as mine:
        mine.write_text("first")
        files.write_text(path, "second")
        assert mine.exists()
    assert path.read_text() == "first"
    assert {p.name for p in tmp_path.iterdir()} == {"a", fresh.name}


def test_a_folder_may_move_as_soon_as_its_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first process does with a state, once it sees the last record."""
    folder, moved, rename = tmp_path / "building", tmp_path / "state", Path.replace

    def replace(self: Path, target: Path) -> None:
        rename(self, target)
        rename(folder, moved)

    folder.mkdir()
    monkeypatch.setattr(Path, "replace", replace)
    files.write_text(folder / "record", "whole")
    assert [path.name for path in moved.iterdir()] == ["record"]


@pytest.mark.parametrize("kind", ["json", "text", "rows", "tensors"])
def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, disk_events: list[Any], kind: str
) -> None:
    path = tmp_path.resolve() / "a"
    write: dict[str, Callable[[], None]] = {
        "json": lambda: records.write_json(path, {"a": 1}),
        "text": lambda: files.write_text(path, "a" * 100_000),
        "rows": lambda: records.write_jsonl(path, [{"a": i} for i in range(3)]),
        "tensors": lambda: write_tensors(path, {"a": torch.ones(3)}, {"b": "c", "a": "d"}),
    }
    write[kind]()
    synced, renamed, named = disk_events
    assert [event.kind for event in disk_events] == ["fsync", "rename", "fsync"]
    assert synced.path == renamed.path != path
    assert renamed.to == path
    assert named.path == path.parent
    assert synced.content == renamed.content == path.read_bytes()


def write_arrays_of_one(path: Path) -> None:
    write_arrays(path, a=np.zeros(3))


def write_one_tensor(path: Path) -> None:
    write_tensors(path, {"a": torch.ones(3)}, {"k": "v"})


def write_one_picture(path: Path) -> None:
    write_png(path, np.zeros((4, 4, 3), np.uint8))


def write_one_video(path: Path) -> None:
    write_mp4(path, np.zeros((1, 16, 16, 3), np.uint8), 10)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
@pytest.mark.parametrize(
    "write",
    [
        lambda path: records.write_json(path, {}),
        lambda path: records.write_jsons({path: {}}),
        lambda path: write_series(path, ".jpg", [b"x"]),
        write_arrays_of_one,
        write_one_tensor,
        write_one_picture,
        write_one_video,
    ],
    ids=["json", "jsons", "tar", "npz", "safetensors", "png", "mp4"],
)
def test_the_umask_decides_who_may_read(
    tmp_path: Path, write: Callable[[Path], None], mask: int, mode: int
) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "a")
        write(tmp_path / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path: Path) -> None:
    disk, place = tmp_path / "disk", tmp_path / "place"
    disk.mkdir()
    place.mkdir()
    (disk / "real.json").write_text("{}")
    (disk / "link.json").symlink_to("real.json")
    (place / "a.json").symlink_to(disk / "link.json")  # a link to a link
    records.write_json(place / "a.json", {"new": 1})
    assert (place / "a.json").readlink() == disk / "link.json"
    assert (disk / "link.json").is_symlink()
    assert (disk / "real.json").read_text() == '{\n  "new": 1\n}\n'
    assert {path.name for path in disk.iterdir()} == {"link.json", "real.json"}
    assert [path.name for path in place.iterdir()] == ["a.json"]


def test_a_link_to_a_file_that_is_not_there_yet_makes_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to("disk/new")
    files.write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "disk/new").read_text() == "x"


@pytest.mark.parametrize("target", ["not-mounted/a", "a"])
def test_a_link_that_leads_nowhere_is_refused_by_name(tmp_path: Path, target: str) -> None:
    (tmp_path / "a").symlink_to(target)
    with pytest.raises(UserError, match=r"/a: a link to .*, which leads nowhere: mount"):
        files.write_text(tmp_path / "a", "x")
    assert names(tmp_path) == ["a"]


def test_the_next_writer_of_a_folder_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    code = (
        "import os, pathlib, sys\n"
        "from gc25d.files import atomic_folder\n"
        "with atomic_folder(pathlib.Path(sys.argv[1])) as building:\n"
        "    (building / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)]).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a.")
    for text in ("first", "second"):
        with files.atomic_folder(folder) as building:
            (building / text).write_text(text)
            assert not (folder / text).exists()
        assert [p.name for p in tmp_path.rglob("*")] == ["a", text]
