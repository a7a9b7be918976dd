"""Writing states: whole or absent, with training going on, by several processes, on a full disk."""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gc25d.errors import UserError
from gc25d.train.states import storage
from gc25d.train.states import writer as state_writer
from gc25d.train.states.folder import newest_state, removable_states
from gc25d.train.states.format import parts_of
from gc25d.train.states.fragments import Fragment
from gc25d.train.states.host_copies import HostCopies
from gc25d.train.states.reader import load_state, read_whole
from gc25d.train.states.writer import StateWriter

BINDING = "b"


def whole(name: str, tensor: Tensor) -> Fragment:
    return Fragment(name, tuple(tensor.shape), 0, tensor.view(-1))


def piece(name: str, tensor: Tensor, start: int, stop: int) -> Fragment:
    return Fragment(name, tuple(tensor.shape), start, tensor.view(-1)[start:stop])


def save(root: Path, step: int, *fragments: Fragment, checkpoint: bool = False) -> Path:
    writer = StateWriter(root)
    writer.save(step, fragments, binding=BINDING, checkpoint=checkpoint)
    writer.wait()
    return root / f"step-{step:07d}"


def tensors() -> tuple[Tensor, Tensor]:
    return torch.arange(6.0).view(2, 3), torch.tensor(7.0)


def test_parts_are_plain_safetensors_that_the_library_reads(tmp_path: Path) -> None:
    matrix, scalar = tensors()
    folder = save(tmp_path, 3, whole("s/a:weight", matrix), whole("s/a:step", scalar))
    (part,) = folder.glob("*.safetensors")
    assert part.name == "shard-00000-of-00001-part-000.safetensors"
    read = load_file(part)
    assert {name: value.tolist() for name, value in read.items()} == {
        "s/a:weight": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "s/a:step": [7.0],
    }
    record = json.loads((folder / "shard-00000-of-00001.json").read_text())
    content = part.read_bytes()
    digest = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert record["files"] == {part.name: digest}


def test_a_state_is_what_was_there_at_the_save_and_not_later(tmp_path: Path) -> None:
    matrix, _ = tensors()
    writer = StateWriter(tmp_path)
    writer.save(1, [whole("s/a:weight", matrix)], binding=BINDING, checkpoint=False)
    matrix.fill_(-1.0)
    # The second save reuses the first one's memory.
    writer.save(2, [whole("s/a:weight", matrix)], binding=BINDING, checkpoint=True)
    matrix.fill_(-2.0)
    writer.wait()
    found = {step: newest_state([tmp_path], step, BINDING) for step in (1, 2)}
    assert all(found.values())
    values = {step: read_whole(state, "weight")["s/a"] for step, state in found.items() if state}
    assert values[1].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert values[2].tolist() == [[-1.0] * 3] * 2
    assert found[2] is not None
    assert found[2].checkpoint


def test_large_shares_are_split_into_parts_in_order() -> None:
    sizes = (3, 3, 9, 1, 1)
    fragments = [whole(f"s/{i}:weight", torch.zeros(n)) for i, n in enumerate(sizes)]
    parts = parts_of(fragments, 1, 4, part_bytes=6 * 4)
    held = [[f.name for f in part.fragments] for part in parts]
    # 3 + 3 fill a part, 9 is larger than one, the two last share one.
    assert held == [["s/0:weight", "s/1:weight"], ["s/2:weight"], ["s/3:weight", "s/4:weight"]]
    assert [part.file for part in parts] == [
        f"shard-00001-of-00004-part-{i:03d}.safetensors" for i in range(3)
    ]


def test_little_memory_makes_saving_slower_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # 8 values of 4 bytes a part: 0.8 of 200 bytes on two processes hold two such copies.
    monkeypatch.setattr("gc25d.train.states.host_copies.available_memory", lambda: 200)
    large = torch.arange(40.0)
    fragments = [piece("s/a:weight", large, start, start + 8) for start in range(0, 40, 8)]
    parts = parts_of(fragments, 0, 1, part_bytes=32)
    assert HostCopies(parts, torch.device("cpu"), processes=2).count == 2
    assert "training waits for the disk at every save" in caplog.text
    writer = StateWriter(tmp_path, processes_per_host=2, part_bytes=32)
    writer.save(1, fragments, binding=BINDING, checkpoint=False)
    large.zero_()
    writer.wait()
    state = newest_state([tmp_path], 1, BINDING)
    assert state is not None
    assert read_whole(state, "weight")["s/a"].tolist() == list(range(40))


def test_processes_meet_in_files(tmp_path: Path) -> None:
    values = torch.arange(10.0)
    writers = [StateWriter(tmp_path, rank, 2) for rank in (0, 1)]
    shares = [piece("s/a:weight", values, 0, 4), piece("s/a:weight", values, 4, 10)]
    # The second process is first: it waits for the folder.
    writers[1].save(5, shares[1:], binding=BINDING, checkpoint=False)
    assert not list(tmp_path.iterdir())
    writers[0].save(5, shares[:1], binding=BINDING, checkpoint=False)
    for writer in writers:
        writer.wait()
    state = newest_state([tmp_path], 5, BINDING)
    assert state is not None
    assert list(state.records) == ["shard-00000-of-00002.json", "shard-00001-of-00002.json"]
    assert read_whole(state, "weight")["s/a"].tolist() == list(range(10))


def test_a_process_that_never_writes_is_named_and_its_state_is_none(tmp_path: Path) -> None:
    save(tmp_path, 4, whole("s/a:weight", torch.ones(2)))
    writer = StateWriter(tmp_path, 0, 2, peer_wait_s=0.2)
    share = piece("s/a:weight", torch.zeros(2), 0, 1)
    writer.save(5, [share], binding=BINDING, checkpoint=False)
    with pytest.raises(UserError, match=r"shard-00001-of-00002.json was not written by process 1"):
        writer.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000004"]


def test_a_state_that_the_first_process_gives_up_is_told_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.zeros(2)
    writers = [StateWriter(tmp_path, rank, 2) for rank in (0, 1)]

    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no manifest")

    monkeypatch.setattr(state_writer, "manifest", broken)
    for rank, writer in enumerate(writers):
        share = piece("s/a:weight", values, rank, rank + 1)
        writer.save(5, [share], binding=BINDING, checkpoint=False)
    with pytest.raises(UserError, match="was given up by the first process"):
        writers[1].wait()
    with pytest.raises(RuntimeError, match="no manifest"):
        writers[0].wait()
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 4, whole("s/a:weight", torch.ones(2)))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1000)
    large = whole("s/a:weight", torch.zeros(500))
    with pytest.raises(UserError, match=r"needs 2e-06 GB, free are 1e-06 GB. Free space there"):
        StateWriter(tmp_path).save(5, [large], binding=BINDING, checkpoint=False)
    with pytest.raises(UserError, match="two states of this run must fit"):
        StateWriter(tmp_path).prepare([large], 4, BINDING)
    assert sorted(tmp_path.rglob("*")) == before


def test_older_states_go_when_the_disk_is_almost_full_but_never_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, whole("s/a:weight", torch.ones(2)), checkpoint=step == 1)
    # 100 bytes are free, and 100 more for each state that goes.
    monkeypatch.setattr(
        storage, "free_bytes", lambda folder: 100 * (4 - len(list(folder.glob("step-*"))))
    )
    removable = removable_states(tmp_path, 3, BINDING)
    storage.make_room(tmp_path, 160, removable)
    assert [path.name for path in removable if path.exists()] == ["step-0000002"]
    with pytest.raises(UserError, match="needs 4e-07 GB, free are 3e-07 GB"):
        storage.make_room(tmp_path, 400, removable_states(tmp_path, 3, BINDING))
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000003"]


@pytest.mark.parametrize("moment", ["part", "record", "manifest"])
def test_a_disk_that_fills_while_writing_costs_that_state_only(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = save(tmp_path, 4, whole("s/a:weight", torch.ones(2)))

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    function = {"part": "write_part", "record": "write_text", "manifest": "write_json"}[moment]
    monkeypatch.setattr(state_writer, function, full)
    writer = StateWriter(tmp_path)
    writer.save(5, [whole("s/a:weight", torch.zeros(2))], binding=BINDING, checkpoint=False)
    with pytest.raises(UserError, match=f"{tmp_path}: the next state does not fit: needs 8e-09 GB"):
        writer.wait()
    assert list(tmp_path.iterdir()) == [kept]
    monkeypatch.undo()
    # Said once; the next save starts afresh.
    writer.save(6, [whole("s/a:weight", torch.zeros(2))], binding=BINDING, checkpoint=False)
    writer.wait()
    assert newest_state([tmp_path], 9, BINDING).step == 6  # type: ignore[union-attr]


def test_errors_of_the_thread_surface_at_the_next_check_and_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def broken(*arguments: Any) -> None:
        release.wait(10)
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(state_writer, "write_part", broken)
    share = [whole("s/a:weight", torch.zeros(2))]
    writer = StateWriter(tmp_path)
    writer.save(5, share, binding=BINDING, checkpoint=False)
    writer.check()  # not known yet
    release.set()
    with pytest.raises(RuntimeError, match="the disk is gone"):
        writer.save(6, share, binding=BINDING, checkpoint=False)
    writer.save(6, share, binding=BINDING, checkpoint=False)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        until_raised(writer)


def until_raised(writer: StateWriter) -> None:
    for _ in range(1000):
        writer.check()
        threading.Event().wait(0.01)


def test_a_state_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    old = save(tmp_path, 5, whole("s/a:weight", torch.ones(2)))
    (part,) = old.glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:-1])
    save(tmp_path, 5, whole("s/a:weight", torch.zeros(2)))
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000005"]
    state = newest_state([tmp_path], 5, BINDING)
    assert state is not None
    target = torch.ones(2)
    load_state(state, [whole("s/a:weight", target)])
    assert target.tolist() == [0.0, 0.0]


def test_a_state_of_another_binding_is_moved_and_not_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for binding in ("theirs", "others", BINDING, BINDING):
        writer = StateWriter(tmp_path)
        share = [whole("s/a:weight", torch.ones(2))]
        writer.save(5, share, binding=binding, checkpoint=False)
        writer.wait()
    kept = {
        path.name: json.loads((path / "manifest.json").read_text())["binding"]
        for path in tmp_path.iterdir()
    }
    assert kept == {
        "step-0000005": BINDING,
        "step-0000005.other-1": "theirs",
        "step-0000005.other-2": "others",
    }
    assert "moved to step-0000005.other-2" in caplog.text


def test_what_a_killed_save_left_goes_at_the_next_start(tmp_path: Path) -> None:
    folder = save(tmp_path, 4, whole("s/a:weight", torch.ones(2)))
    half: Sequence[Path] = [tmp_path / ".step-0000005.tmp", tmp_path / ".step-0000004.replaced.tmp"]
    for leftover in half:
        shutil.copytree(folder, leftover)
    StateWriter(tmp_path, rank=1, world_size=2)
    assert all(leftover.exists() for leftover in half)
    StateWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000004"]


def test_memory_limits_of_a_control_group_count(tmp_path: Path) -> None:
    def group(limit: str) -> int | None:
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text("700\n")
        (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
        return storage._group_memory(tmp_path)

    assert group("1000") == 1000 - (700 - 150)
    assert group("600") == 50
    assert group("max") is None
    assert storage._group_memory(tmp_path / "none") is None


def test_limits_of_a_job_inside_other_groups_count() -> None:
    root = Path("/c")
    job = "12:pids:/x\n0::/system.slice/slurmstepd.scope/job_7\n"
    assert storage._groups(job, root) == [
        root,
        root / "system.slice",
        root / "system.slice/slurmstepd.scope",
        root / "system.slice/slurmstepd.scope/job_7",
    ]
    for seen in ("0::/\n", "0::/../../other\n", "4:memory:/x\n", ""):
        assert storage._groups(seen, root) == [root]


def test_a_files_blocks_are_taken_before_it_is_written(tmp_path: Path) -> None:
    size = 1 << 20
    with (tmp_path / "part").open("xb") as file:
        storage.reserve(file.fileno(), size)
        status = os.fstat(file.fileno())
    assert 512 * status.st_blocks >= size
    with Path("/dev/null").open("wb") as file:
        storage.reserve(file.fileno(), size)  # cannot reserve: nothing happens
