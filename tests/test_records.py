"""Small files: whole or not at all, strict, digested, locked."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gc25d import records
from gc25d.errors import UserError
from gc25d.tensors import write_tensors


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    records.write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(path, {"new": float("nan")})

    def write_half(target: Path) -> None:
        with records.atomic_path(target) as temporary:
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
        "from gc25d.records import atomic_path\n"
        "with atomic_path(pathlib.Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    for target in (path, other):
        assert subprocess.run([sys.executable, "-c", code, str(target)]).returncode == -9
    (left,) = tmp_path.glob(".a.b.*.tmp")
    assert len(list(tmp_path.iterdir())) == 2
    records.write_text(path, "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"a", left.name}  # another target's stays


def test_a_temporary_of_a_living_writer_stays_and_of_another_host_for_a_day(tmp_path: Path) -> None:
    path = tmp_path / "a"
    fresh, old = (tmp_path / f".a.00000000-1-{name}.tmp" for name in ("fresh", "old"))
    for foreign, hours in ((fresh, 23), (old, 25)):
        foreign.write_text("")
        written = time.time() - hours * 3600
        os.utime(foreign, (written, written))
    with records.atomic_path(path) as mine:
        mine.write_text("first")
        records.write_text(path, "second")
        assert mine.exists()
    assert path.read_text() == "first"
    assert {p.name for p in tmp_path.iterdir()} == {"a", fresh.name}


@pytest.mark.parametrize("kind", ["json", "text", "rows", "tensors"])
def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, disk_events: list[Any], kind: str
) -> None:
    path = tmp_path.resolve() / "a"
    write: dict[str, Callable[[], None]] = {
        "json": lambda: records.write_json(path, {"a": 1}),
        "text": lambda: records.write_text(path, "a" * 100_000),
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


def test_written_files_are_readable_by_all(tmp_path: Path) -> None:
    records.write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": Infinity}', '{"a": 1', ""])
def test_json_that_is_not_strict_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UserError, match=r"bad\.json"):
        records.read_json(tmp_path / "bad.json")


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
    assert records.digest_bytes(b"abc") == known
    assert records.digest_file(tmp_path / "abc") == known
    assert records.digest_json({"b": 1, "a": 2}) == records.digest_json({"a": 2, "b": 1})


def test_jsonl_names_the_line_that_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.write_jsonl(path, [{"a": 1}, {"a": 2}])
    records.append_jsonl(path, {"a": 3})
    assert [row["a"] for row in records.read_jsonl(path)] == [1, 2, 3]
    path.write_text('{"a": 1}\n{"a"\n')
    with pytest.raises(UserError, match="line 2"):
        list(records.read_jsonl(path))


def test_a_lock_is_held_across_processes_and_dies_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time, pathlib\n"
        "from gc25d.records import locked\n"
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
            records.locked(path, wait_s=0.1, held="somebody trains here"),
        ):
            pass
        holder.kill()
    with records.locked(path, wait_s=5, held="x"):
        pass


def test_the_next_writer_of_a_folder_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    code = (
        "import os, pathlib, sys\n"
        "from gc25d.records import atomic_folder\n"
        "with atomic_folder(pathlib.Path(sys.argv[1])) as building:\n"
        "    (building / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)]).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a.")
    for text in ("first", "second"):
        with records.atomic_folder(folder) as building:
            (building / text).write_text(text)
            assert not (folder / text).exists()
        assert [p.name for p in tmp_path.rglob("*")] == ["a", text]
