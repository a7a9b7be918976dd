"""States on disk: which one counts, which are passed over, which go."""

import re
from pathlib import Path

import pytest
import torch

from gc25d.errors import UserError
from gc25d.train.states.files import open_state
from gc25d.train.states.folder import newest_state, newest_step
from gc25d.train.states.fragments import Fragment
from gc25d.train.states.writer import StateWriter

BINDING = "b"


def save(root: Path, step: int, *, end: bool = False, binding: str = BINDING) -> Path:
    values = torch.full((3,), float(step))
    writer = StateWriter(root)
    share = [Fragment("s/a:weight", (3,), 0, values)]
    writer.save(step, share, binding=binding, checkpoint=end)
    writer.wait()
    return root / f"step-{step:07d}"


def steps(root: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in root.iterdir())


def damage(folder: Path, fault: str) -> None:
    (part,) = folder.glob("*.safetensors")
    content = part.read_bytes()
    manifest = folder / "manifest.json"
    if fault == "cut":
        part.write_bytes(content[:-1])
    elif fault == "flipped":
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif fault == "gone":
        part.unlink()
    elif fault == "record":
        (folder / "shard-00000-of-00001.json").write_text("{}")
    elif fault == "cut manifest":
        manifest.write_text(manifest.read_text()[:-5])
    elif fault == "edited manifest":
        manifest.write_text(
            manifest.read_text().replace('"checkpoint": false', '"checkpoint": true')
        )
    else:
        manifest.unlink()


FAULTS = ("cut", "flipped", "gone", "record", "cut manifest", "edited manifest", "no manifest")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_state_is_named_and_passed_over(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 20)
    damage(save(tmp_path, 30), fault)
    state = newest_state([tmp_path], 40, BINDING)
    assert state is not None
    assert state.step == 20
    assert "step-0000030 is damaged" in caplog.text
    assert steps(tmp_path) == [20, 30]


def test_no_state_and_no_whole_state_are_different_things(tmp_path: Path) -> None:
    assert newest_state([tmp_path / "none"], 10, BINDING) is None
    damage(save(tmp_path, 20), "gone")
    assert newest_state([tmp_path], 10, BINDING) is None
    with pytest.raises(
        UserError, match=r"none of the 1 states up to step 20 is whole.*never start"
    ):
        newest_state([tmp_path], 20, BINDING)


def test_whole_states_aside_count_when_the_chains_are_all_damaged(tmp_path: Path) -> None:
    chain, aside = tmp_path / "chain", tmp_path / "aside"
    damage(save(chain, 5), "cut")
    save(aside, 3)
    save(aside, 4)
    state = newest_state([chain, aside], 5, BINDING)
    assert state is not None
    assert state.folder == aside / "step-0000004"


def test_states_of_another_binding_are_told_and_not_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1000, end=True, binding="another")
    with pytest.raises(UserError, match="step-0001000 was trained with other settings or data"):
        newest_state([tmp_path], 2000, BINDING)
    for step in (9, 10, 11):
        save(tmp_path, step)
    assert steps(tmp_path) == [10, 11, 1000]
    assert newest_step(tmp_path, BINDING) == 11
    caplog.clear()
    state = newest_state([tmp_path], 2000, BINDING)
    assert state is not None
    assert state.step == 11
    assert "step-0001000 is of other settings or data: not counted" in caplog.text


def test_the_newest_two_and_the_last_segment_end_stay(tmp_path: Path) -> None:
    for step, end in ((8, True), (9, False), (10, False), (11, False)):
        save(tmp_path, step, end=end)
    assert steps(tmp_path) == [8, 10, 11]
    save(tmp_path, 100, end=True)
    (tmp_path / "step-0000011.bak").mkdir()
    save(tmp_path, 101)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("step-0000011.bak", "step-0000100", "step-0000101")
    ]


def test_damaged_states_do_not_count_as_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    damage(tmp_path / "step-0000002", "cut")
    # Not reached yet: nobody knows whose it is, so it makes way when training comes there.
    damaged_ahead = save(tmp_path / "later", 9)
    damage(damaged_ahead, "no manifest")
    damaged_ahead.rename(tmp_path / "step-0000009")
    (tmp_path / "later").rmdir()
    save(tmp_path, 3)
    assert steps(tmp_path) == [1, 3, 9]
    assert newest_step(tmp_path, BINDING) == 3
    save(tmp_path, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("step-0000003", "step-0000009", "step-0000009.other-1")
    ]
    assert newest_state([tmp_path], 9, BINDING) is not None


def test_a_renamed_state_is_no_state_of_that_step(tmp_path: Path) -> None:
    moved = save(tmp_path, 4).rename(tmp_path / "step-0000007")
    with pytest.raises(UserError, match=re.escape(str(moved / "manifest.json"))):
        open_state(moved)
