"""Small files: whole or not at all, strict, digested, locked."""

import codecs
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

from gc25d import files, locks, records
from gc25d.capture.raw.arrays import write_arrays
from gc25d.capture.raw.tars import write_series
from gc25d.errors import UserError
from gc25d.evaluate.panels import write_mp4, write_png
from gc25d.tensors import write_tensors


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    records.write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(path, {"new": float("nan")})

    def write_half(target: Path) -> None:
        with files.atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_half(path)
    assert records.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_stream_of_rows_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.write_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_jsonl(path, [{"a": 2}, {"a": float("inf")}])
    assert path.read_text() == '{"a": 1}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


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


def test_several_files_are_written_all_or_none(tmp_path: Path) -> None:
    old, new, directory = (tmp_path / name for name in ("b", "a", "c"))
    old.write_text("old")
    directory.mkdir()
    (directory / "inside").touch()
    for order in ([old, new, directory], [directory, new, old], [new, directory, old]):
        with pytest.raises(OSError, match="directory"):
            records.write_jsons(dict.fromkeys(order, 1))
        assert names(tmp_path) == ["b", "c"]
        assert old.read_text() == "old"
    records.write_jsons({old: 1, new: 2})
    assert (old.read_text(), new.read_text()) == ("1\n", "2\n")


@pytest.mark.parametrize("fails_at", ["a", "b"])
def test_a_file_that_cannot_take_its_place_brings_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """As in a folder whose sticky bit keeps another user's file."""
    (tmp_path / "a").write_text("old a")
    replace = Path.replace

    def refuse(source: Path, target: Path) -> Path:
        if target.name == fails_at and source.read_text() == "1\n":
            raise PermissionError(1, "Operation not permitted", str(target))
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError):
        records.write_jsons({tmp_path / "a": 1, tmp_path / "b": 1})
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old a"


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', '{"a": 1', "", '{"a": 1, "a": 2}']
)
def test_json_that_is_not_strict_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UserError, match=r"bad\.json"):
        records.read_json(tmp_path / "bad.json")


def test_a_byte_order_mark_is_no_part_of_json(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(codecs.BOM_UTF8 + b'{"a": 1}\n{"a": 2}\n')
    assert list(records.read_jsonl(path)) == [{"a": 1}, {"a": 2}]
    path.write_bytes(codecs.BOM_UTF8 + b'{"a": 1}\n')
    assert records.read_json(path) == {"a": 1}
    path.write_bytes(codecs.BOM_UTF8 + b"step,loss\n1,0.5\n")
    assert records.read_csv(path) == [{"step": "1", "loss": "0.5"}]


def test_content_is_compared_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert not records.holds_json(path, {"a": 1})
    records.write_json(path, {"a": 1})
    assert records.holds_json(path, {"a": 1})
    assert not records.holds_json(path, {"a": 2})


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ('{"a": 1}\n{"a"', '{"a": 1}\n'),
        ('{"a": 1}\n{"a"\n', '{"a": 1}\n'),
        ('{"a": 1}\n\0\0\0', '{"a": 1}\n'),
        ('{"a"', ""),
        ('{"a": 1}', '{"a": 1}\n'),
        ('{"a": 1}\n', '{"a": 1}\n'),
        ("", ""),
    ],
)
def test_a_cut_last_line_goes_with_the_next_row(tmp_path: Path, before: str, kept: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(before)
    records.append_jsonl(path, {"a": 2})
    assert path.read_text() == kept + '{"a": 2}\n'
    assert list(records.read_jsonl(path))[-1] == {"a": 2}


def test_digests_are_sha256(tmp_path: Path) -> None:
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180, "abc"
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.digest_bytes(b"abc") == known
    assert files.digest_file(tmp_path / "abc") == known
    assert records.digest_json({"b": 1, "a": 2}) == records.digest_json({"a": 2, "b": 1})


def test_jsonl_names_the_line_that_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.write_jsonl(path, [{"a": 1}, {"a": 2}])
    records.append_jsonl(path, {"a": 3})
    assert [row["a"] for row in records.read_jsonl(path)] == [1, 2, 3]
    for line in (b'{"a"', b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": "\xff"}', b"[1]", b""):
        path.write_bytes(b'{"a": 1}\n' + line + b"\n")
        with pytest.raises(UserError, match="line 2"):
            list(records.read_jsonl(path))
    with pytest.raises(UserError, match=r"none\.jsonl: not found"):
        list(records.read_jsonl(tmp_path / "none.jsonl"))


def test_a_lock_is_held_across_processes_and_dies_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time, pathlib\n"
        "from gc25d.locks import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), wait_s=5, held='x'):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match="somebody trains here"),
            locks.locked(path, wait_s=0.1, held="somebody trains here"),
        ):
            pass
        holder.kill()
    with locks.locked(path, wait_s=5, held="x"):
        pass


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
