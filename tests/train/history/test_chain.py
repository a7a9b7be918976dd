"""Where the chain stands: nothing starts over, and nothing is trained aside, without a word."""

import shutil
from pathlib import Path

import pytest
import torch

from gc25d.errors import UserError
from gc25d.records import write_json
from gc25d.train.history.chain import checkpoints, segment_folder
from gc25d.train.history.events import HISTORY, ended_badly, events, record_event
from gc25d.train.segment_states import find_state
from gc25d.train.states.fragments import Fragment
from gc25d.train.states.writer import StateWriter

BINDING = "b"


def save(run: Path, step: int, *, binding: str = BINDING) -> Path:
    writer = StateWriter(run / "states")
    share = [Fragment("s/a:weight", (1,), 0, torch.tensor([float(step)]))]
    writer.save(step, share, binding=binding, checkpoint=True)
    writer.wait()
    return run / f"states/step-{step:07d}"


def finish(run: Path, step: int) -> None:
    """A checkpoint of the chain and its state, as a finished segment leaves them."""
    save(run, step)
    write_json(run / f"step-{step}/done.json", {"step": step})
    record_event(run, "finish", step=step)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [row.getMessage() for row in caplog.records if row.levelname == "WARNING"]


def test_a_first_start_needs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert segment_folder(tmp_path / "none", 4, BINDING) == tmp_path / "none"
    (tmp_path / "states").mkdir()  # a first attempt killed before its first save
    record_event(tmp_path, "start", step=0)
    assert segment_folder(tmp_path, 4, BINDING) == tmp_path
    assert find_state([tmp_path / "states"], 4, BINDING) is None
    assert warnings(caplog) == []


def test_the_chain_goes_on_and_what_lies_behind_it_goes_aside_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (4, 8):
        finish(tmp_path, step)
    assert segment_folder(tmp_path, 8, BINDING) == tmp_path
    assert segment_folder(tmp_path, 12, BINDING) == tmp_path
    assert warnings(caplog) == []
    assert segment_folder(tmp_path, 3, BINDING) == tmp_path / "aside/step-3"
    told = f"step 3 is behind the chain, which is at 8: trained in {tmp_path}/aside/step-3"
    assert told in caplog.text


def stray(run: Path, kind: str) -> Path:
    """Something called step-9999999 that is no part of the run."""
    state, checkpoint = run / "states/step-9999999", run / "step-9999999"
    if kind == "empty state":
        state.mkdir()
    elif kind == "file":
        state.write_text("")
    elif kind == "copied state":
        shutil.copytree(run / "states/step-0000008", state)
    elif kind == "foreign state":
        return save(run, 9999999, binding="another")
    elif kind == "empty checkpoint":
        checkpoint.mkdir()
        return checkpoint
    else:
        shutil.copytree(run / "step-8", checkpoint)
        return checkpoint
    return state


STRAYS = ("empty state", "file", "copied state", "foreign state")


@pytest.mark.parametrize("kind", [*STRAYS, "empty checkpoint", "copied checkpoint"])
def test_a_stray_folder_sends_no_training_aside(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (4, 8):
        finish(tmp_path, step)
    folder = stray(tmp_path, kind)
    assert segment_folder(tmp_path, 12, BINDING) == tmp_path
    state = find_state([tmp_path / "states"], 12, BINDING)
    assert state is not None
    assert state.step == 8
    told = f"{folder} has no whole manifest: it does not count as a state"
    assert (told in caplog.text) == (kind in STRAYS[:3])
    save(tmp_path, 12)
    assert folder.exists()


def test_a_later_state_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    finish(tmp_path, 4)
    write_json(tmp_path / "states/step-0000009/manifest.json", {"format": 3})
    with pytest.raises(UserError, match=r"step-0000009/manifest.json: is of format 3, this"):
        segment_folder(tmp_path, 8, BINDING)


@pytest.mark.parametrize("left", ["nothing", "empty", "foreign", "stray"])
@pytest.mark.parametrize("until", [3, 8, 12])
def test_states_that_are_gone_are_not_a_first_start(tmp_path: Path, left: str, until: int) -> None:
    for step in (4, 8):
        finish(tmp_path, step)
    shutil.rmtree(tmp_path / "states")
    if left != "nothing":
        (tmp_path / "states").mkdir()
    if left == "foreign":
        save(tmp_path, 20, binding="another")
    if left == "stray":
        (tmp_path / "states/step-9999999").mkdir()
    with pytest.raises(UserError) as refused:
        segment_folder(tmp_path, until, BINDING)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/states: holds no state of this run, but {tmp_path}/step-8")
    assert "mount the disk" in said
    assert "gc25d.steps.restart" in said


@pytest.mark.parametrize("trace", ["placed", "stop", "resume", "finish"])
def test_states_are_missed_before_the_first_checkpoint_too(tmp_path: Path, trace: str) -> None:
    if trace == "placed":
        write_json(tmp_path / "placed.json", {"step": 5})
        expected = "placed.json says that one was placed"
    else:
        record_event(tmp_path, trace, step=5)
        expected = "history.jsonl tells of one of step 5"
    with pytest.raises(UserError, match=expected):
        segment_folder(tmp_path, 8, BINDING)


def test_broken_states_are_for_their_own_message(tmp_path: Path) -> None:
    finish(tmp_path, 4)
    (tmp_path / "states/step-0000004/manifest.json").unlink()
    assert segment_folder(tmp_path, 8, BINDING) == tmp_path
    with pytest.raises(UserError, match="none of the 1 states up to step 8 is whole"):
        find_state([tmp_path / "states"], 8, BINDING)


def test_a_checkpoint_asked_again_after_later_ones_were_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (4, 8):
        finish(tmp_path, step)
    shutil.rmtree(tmp_path / "step-8")
    assert segment_folder(tmp_path, 8, BINDING) == tmp_path
    assert f"{tmp_path}/step-8: finished before, and gone" in caplog.text
    shutil.rmtree(tmp_path / "states/step-0000008")
    assert segment_folder(tmp_path, 8, BINDING) == tmp_path
    state = find_state([tmp_path / "states"], 8, BINDING)
    assert state is not None
    assert state.step == 4


def test_steps_that_are_trained_again_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (4, 8):
        finish(tmp_path, step)
    shutil.rmtree(tmp_path / "states/step-0000008")  # an older state was restored
    assert segment_folder(tmp_path, 12, BINDING) == tmp_path
    state = find_state([tmp_path / "states"], 12, BINDING)
    assert state is not None
    assert state.step == 4
    assert "the newest state is of step 4 although train/step-8 was trained" in caplog.text


def test_what_deleted_outputs_leave_is_named_with_the_way_to_a_new_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (4, 8):
        finish(tmp_path, step)
    write_json(tmp_path / "run.json", {})
    for step in (4, 8):
        shutil.rmtree(tmp_path / f"step-{step}")  # as --delete-all-output does
    segment_folder(tmp_path, 4, BINDING)
    said, _ = warnings(caplog)
    assert said.startswith(f"{tmp_path}/step-4, {tmp_path}/step-8: finished before, and gone")
    for name in ("run.json", "states", "history.jsonl"):
        assert f"{tmp_path}/{name}" in said
    assert "gc25d.steps.restart" in said


def test_only_finished_checkpoints_count(tmp_path: Path) -> None:
    for name, content in (("step-2", {"step": 2}), ("step-02", {"step": 2}), ("step-7", {})):
        write_json(tmp_path / name / "done.json", content)
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-9").write_text("")
    assert checkpoints(tmp_path) == [2]
    assert checkpoints(tmp_path / "none") == []


def test_folders_that_are_links_work(tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    (fast / "states").mkdir(parents=True)
    run = tmp_path / "train"
    run.mkdir()
    (run / "states").symlink_to("../fast/states")
    finish(run, 4)
    linked = tmp_path / "linked"
    linked.symlink_to("train")
    assert segment_folder(linked, 8, BINDING) == linked
    save(linked, 8)
    save(linked, 12)
    assert sorted(path.name for path in (fast / "states").iterdir()) == [
        *("step-0000008", "step-0000012")
    ]
    (run / "states").unlink()
    (run / "states").symlink_to("../unmounted")
    with pytest.raises(UserError, match=r"states: is a link to ../unmounted.*cannot be listed"):
        segment_folder(linked, 8, BINDING)


def test_history_is_read_past_lines_that_a_power_cut_left(tmp_path: Path) -> None:
    record_event(tmp_path, "start", step=0)
    path = tmp_path / HISTORY
    path.write_bytes(path.read_bytes() + b'\xff\x00\n[1]\n{"event": "fin')
    assert [event["event"] for event in events(tmp_path)] == ["start"]
    assert ended_badly(tmp_path)
    record_event(tmp_path, "finish", step=4)
    assert path.read_bytes().count(b"fin") == 1
    assert [event["step"] for event in events(tmp_path)] == [0, 4]
    assert not ended_badly(tmp_path)
