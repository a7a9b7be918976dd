"""What is no proof of damage removes nothing, and what a state names is no path to elsewhere."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.records import digest_json
from gc25d.train.states.files import StoredState, open_state
from gc25d.train.states.folder import newest_state, prune_states, removable_states
from gc25d.train.states.fragments import Fragment
from gc25d.train.states.reader import load_state, read_whole
from gc25d.train.states.writer import StateWriter

BINDING = "b"
PART = "shard-00000-of-00001-part-000.safetensors"
RECORD = "shard-00000-of-00001.json"


def save(root: Path, step: int, *, end: bool = False, binding: str = BINDING) -> Path:
    writer = StateWriter(root)
    share = [Fragment("s/a:weight", (3,), 0, torch.full((3,), float(step)))]
    writer.save(step, share, binding=binding, checkpoint=end)
    writer.wait()
    return root / f"step-{step:07d}"


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def failing(code: int, *paths: Path) -> Callable[..., Any]:
    """`Path.open` and `Path.stat` that cannot read these files."""
    real = {name: getattr(Path, name) for name in ("open", "stat")}

    def method(name: str) -> Callable[..., Any]:
        def call(self: Path, *arguments: Any, **options: Any) -> Any:
            if self in paths:
                raise OSError(code, os.strerror(code), str(self))
            return real[name](self, *arguments, **options)

        return call

    return method


def reseal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and give it a right digest."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps({**content, "sha256": digest_json(content)}))


def rewrite_record(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record and have the manifest vouch for it."""
    path = folder / RECORD
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    listed = {"size": path.stat().st_size, "sha256": digest_file(path)}
    reseal(folder, lambda manifest: manifest["records"].update({RECORD: listed}))


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("file", ["manifest.json", RECORD])
def test_an_error_of_reading_removes_no_state(
    tmp_path: Path, code: int, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    unread = failing(code, *(tmp_path / f"step-000000{step}" / file for step in (1, 2)))
    monkeypatch.setattr(Path, "open", unread("open"))
    assert removable_states(tmp_path, 2, BINDING) == []
    for step in (3, 4, 5):
        save(tmp_path, step)
    assert names(tmp_path) == [f"step-000000{step}" for step in (1, 2, 4, 5)]
    monkeypatch.undo()
    prune_states(tmp_path, 5, BINDING)
    assert names(tmp_path) == ["step-0000004", "step-0000005"]


def test_a_part_that_cannot_be_looked_at_is_not_a_broken_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = save(tmp_path, 1) / PART
    monkeypatch.setattr(Path, "stat", failing(errno.ESTALE, part)("stat"))
    for step in (2, 3, 4):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-0000001", "step-0000003", "step-0000004"]


def test_a_state_that_cannot_be_read_stops_the_start_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    for file in (newest / "manifest.json", newest / PART):
        monkeypatch.setattr(Path, "open", failing(errno.EIO, file)("open"))
        with pytest.raises(UserError, match=rf"{file}: cannot be read \(Input/output error\)"):
            newest_state([tmp_path], 2, BINDING)
        monkeypatch.undo()


def test_a_root_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)

    def denied(self: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))  # as pathlib does without permission
    with pytest.raises(UserError, match=f"{tmp_path}: which cannot be listed"):
        newest_state([tmp_path], 1, BINDING)
    prune_states(tmp_path, 1, BINDING)
    assert "no older state is removed" in caplog.text


def test_states_of_another_format_or_binding_or_without_a_manifest_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reseal(save(tmp_path, 1), lambda manifest: manifest.update(format=3, shards=[]))
    save(tmp_path, 2, binding="another")
    (save(tmp_path, 3) / "manifest.json").write_text("{")
    for step in (4, 5, 6):
        save(tmp_path, step)
    assert names(tmp_path) == [f"step-000000{step}" for step in (1, 2, 3, 5, 6)]
    assert removable_states(tmp_path, 6, BINDING) == [tmp_path / "step-0000005"]
    with pytest.raises(UserError, match=r"step-0000001/manifest.json: is of format 3.* reads form"):
        newest_state([tmp_path], 1, BINDING)
    # Nor when a state of this run takes their place.
    for step in (1, 3):
        save(tmp_path, step)
    assert {"step-0000001.other-1", "step-0000003.other-1"} < set(names(tmp_path))
    assert "step-0000003 is not known to be this run's: moved" in caplog.text


def test_a_state_of_this_run_that_was_read_and_is_broken_goes(tmp_path: Path) -> None:
    for step in (1, 2):
        (save(tmp_path, step) / PART).unlink()
    save(tmp_path, 3)
    assert names(tmp_path) == ["step-0000003"]


def test_a_state_half_removed_looks_like_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save(tmp_path, step)

    def killed(folder: Path) -> None:
        (folder / "manifest.json").unlink()
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr("gc25d.train.states.folder.remove_state", killed)
    save(tmp_path, 3)
    assert names(tmp_path) == [".step-0000001.removed.tmp", "step-0000002", "step-0000003"]
    assert "could not be removed" in caplog.text
    monkeypatch.undo()
    StateWriter(tmp_path)
    assert names(tmp_path) == ["step-0000002", "step-0000003"]


def linked(folder: Path, elsewhere: Path) -> Path:
    """Move a state to another disk and link it back."""
    elsewhere.mkdir(exist_ok=True)
    target = folder.rename(elsewhere / folder.name)
    folder.symlink_to(target)
    return target


def test_a_state_that_is_a_link_counts_and_pruning_takes_the_link_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "states"
    target = linked(save(root, 1, end=True), tmp_path / "other")
    state = newest_state([root], 1, BINDING)
    assert state is not None
    assert read_whole(state, "weight")["s/a"].tolist() == [1.0] * 3
    assert removable_states(root, 1, BINDING) == []
    for step in (2, 3):
        save(root, step)
    assert removable_states(root, 3, BINDING) == [root / "step-0000002"]  # a link frees no space
    save(root, 4, end=True)
    assert names(root) == ["step-0000003", "step-0000004"]
    assert f"a link to {target} went" in caplog.text
    assert names(target) == sorted([PART, RECORD, "manifest.json"])


def test_a_link_is_replaced_by_the_state_of_its_step(tmp_path: Path) -> None:
    root = tmp_path / "states"
    target = linked(save(root, 1), tmp_path / "other")
    save(root, 1)
    assert names(root) == ["step-0000001"]
    assert not (root / "step-0000001").is_symlink()
    assert target.exists()
    (root / "step-0000002").symlink_to(tmp_path / "nowhere")  # dangling since the start
    save(root, 2)
    assert names(root) == ["step-0000001", "step-0000002", "step-0000002.other-1"]


@pytest.mark.parametrize("what", ["root", "state", "manifest", "part"])
def test_a_link_to_nowhere_is_refused_by_name(tmp_path: Path, what: str) -> None:
    root = tmp_path / "states"
    folder = save(root, 1)
    save(root, 2)
    path = {"root": root, "state": folder, "manifest": folder / "manifest.json"}.get(
        what, folder / PART
    )
    linked(path, tmp_path / "other")
    (tmp_path / "other").rename(tmp_path / "unmounted")
    with pytest.raises(UserError, match=rf"{path}: .*is a link to {tmp_path / 'other'}"):
        newest_state([root], 1, BINDING)
    if what != "root":
        for step in (3, 4):
            save(root, step)
        assert "step-0000001" in names(root)  # no proof that it is broken


OUTSIDE = ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "part.safetensors"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_of_parts_are_plain_names_of_parts(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1)
    (tmp_path / "secret.safetensors").write_bytes((folder / PART).read_bytes())

    def rename(record: dict[str, Any]) -> None:
        record["files"] = {name: record["files"][PART]}
        record["fragments"][0]["file"] = name

    rewrite_record(folder, rename)
    refused(open_state(folder), f"{RECORD}: names '{name}', expected a file like {PART}")
    assert newest_or_error(tmp_path) == "none of the 1 states up to step 1 is whole"


@pytest.mark.parametrize(
    "change",
    [
        {"file": "shard-00000-of-00001-part-001.safetensors"},
        {"stop": 4},
        {"start": 3, "stop": 2},
        {"shape": [2]},
    ],
)
def test_places_that_a_record_does_not_have_are_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = save(tmp_path, 1)
    rewrite_record(folder, lambda record: record["fragments"][0].update(change))
    refused(open_state(folder), f"{RECORD}: s/a:weight: values")


@pytest.mark.parametrize("content", [[], {}, {"files": [], "fragments": []}, {"files": {}}])
def test_a_record_that_is_none_is_refused(tmp_path: Path, content: Any) -> None:
    folder = save(tmp_path, 1)
    (folder / RECORD).write_text(json.dumps(content))
    listed = {"size": len(json.dumps(content)), "sha256": digest_file(folder / RECORD)}
    reseal(folder, lambda manifest: manifest["records"].update({RECORD: listed}))
    refused(open_state(folder), f"{RECORD}: ")


@pytest.mark.parametrize("name", ["../x.json", "/etc/passwd", "shard-00001-of-00001.json"])
def test_names_of_records_are_those_of_its_processes(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1)

    def rename(manifest: dict[str, Any]) -> None:
        manifest["records"] = {name: manifest["records"][RECORD]}

    reseal(folder, rename)
    with pytest.raises(UserError, match=rf"lists \['{name}'\], expected the records of 1 process"):
        open_state(folder)
    # Never removed: it does not prove to be this run's.
    for step in (2, 3, 4):
        save(tmp_path, step)
    assert "step-0000001" in names(tmp_path)


def test_a_part_that_lacks_what_its_record_lists_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    rewrite_record(folder, lambda record: record["fragments"][0].update(name="s/b:weight"))
    with pytest.raises(UserError, match=f"{folder / PART}: .*s/b:weight.*its record lists it"):
        load_state(open_state(folder), [Fragment("s/b:weight", (3,), 0, torch.zeros(3))])


def refused(state: StoredState, said: str) -> None:
    with pytest.raises(UserError) as raised:
        read_whole(state, "weight")
    assert said in str(raised.value)


def newest_or_error(root: Path) -> str:
    try:
        return str(newest_state([root], 1, BINDING))
    except UserError as error:
        return str(error).partition(": ")[2].partition(":")[0]
