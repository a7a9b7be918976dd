"""States on disk: keyed by name, checked, rotated."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from gc25d.errors import UserError
from gc25d.tensors import read_tensors, write_tensors
from gc25d.train.checkpoint import (
    StoredState,
    load_state,
    newest_state,
    newest_step,
    prune_states,
    save_state,
)


class Pair(nn.Module):
    """Two parameters of one shape: mistaking them for one another would go unseen."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.full((3,), value))
        self.right = nn.Parameter(torch.full((3,), -value))


def trained(value: float = 1.0) -> tuple[Pair, AdamW]:
    model = Pair(value)
    optimizer = AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model.left.sum() * 3 - model.right.square().sum()).backward()
        optimizer.step()
    return model, optimizer


def step_once(model: Pair, optimizer: AdamW) -> list[float]:
    optimizer.zero_grad()
    (model.left * model.right).sum().backward()
    optimizer.step()
    return torch.cat([model.left, model.right]).tolist()


def test_a_loaded_state_steps_as_the_saved_one(tmp_path: Path) -> None:
    model, optimizer = trained()
    save_state(tmp_path, 2, model, optimizer, binding="b", checkpoint=False)
    other = Pair(9.0)
    # Groups in another order: moments follow names, not positions.
    fresh = AdamW([{"params": [other.right]}, {"params": [other.left]}], lr=0.1)
    state = newest_state(tmp_path, 5)
    assert state is not None
    load_state(state, other, fresh)
    assert step_once(other, fresh) == step_once(model, optimizer)


@pytest.mark.parametrize("drop", ["left:exp_avg", "right:step"])
def test_missing_moments_are_named(tmp_path: Path, drop: str) -> None:
    model, optimizer = trained()
    folder = save_state(tmp_path, 2, model, optimizer, binding="b", checkpoint=False)
    moments = read_tensors(folder / "optimizer.safetensors")
    kept = {name: value.clone() for name, value in moments.items() if name != drop}
    write_tensors(folder / "optimizer.safetensors", kept, {})
    state = StoredState(folder, 2, "b")  # as if its manifest agreed
    with pytest.raises(UserError, match=drop.split(":")[0]):
        load_state(state, *trained())


def test_another_models_state_is_refused_by_name(tmp_path: Path) -> None:
    model, optimizer = trained()
    save_state(tmp_path, 2, model, optimizer, binding="b", checkpoint=False)
    state = newest_state(tmp_path, 2)
    assert state is not None
    other = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"missing \['bias', 'weight'\]"):
        load_state(state, other, AdamW(other.parameters()))


def test_rotation_keeps_the_newest_two_and_the_last_segment_end(tmp_path: Path) -> None:
    model, optimizer = trained()
    for step, end in ((8, True), (9, False), (10, False), (11, False)):
        save_state(tmp_path, step, model, optimizer, binding="b", checkpoint=end)
        prune_states(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("step-0000008", "step-0000010", "step-0000011")
    ]
    save_state(tmp_path, 100, model, optimizer, binding="b", checkpoint=True)
    (tmp_path / ".step-0000101.7.tmp").mkdir()
    (tmp_path / "step-0000011.bak").mkdir()
    prune_states(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("step-0000011", "step-0000011.bak", "step-0000100")
    ]
    assert newest_step(tmp_path) == 100


@pytest.mark.parametrize("fault", ["cut", "flipped", "gone", "manifest"])
def test_a_damaged_state_is_passed_over(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = trained()
    save_state(tmp_path, 20, model, optimizer, binding="b", checkpoint=False)
    broken = save_state(tmp_path, 30, model, optimizer, binding="b", checkpoint=False)
    victim = broken / "optimizer.safetensors"
    content = victim.read_bytes()
    if fault == "cut":
        victim.write_bytes(content[:-1])
    elif fault == "flipped":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif fault == "gone":
        victim.unlink()
    else:
        (broken / "manifest.json").write_text("{")
    state = newest_state(tmp_path, 40)
    assert state is not None
    assert state.step == 20
    assert "step-0000030 is damaged" in caplog.text


def test_no_state_and_no_whole_state_are_different_things(tmp_path: Path) -> None:
    assert newest_state(tmp_path, 10) is None
    model, optimizer = trained()
    save_state(tmp_path, 20, model, optimizer, binding="b", checkpoint=False)
    assert newest_state(tmp_path, 10) is None
    (tmp_path / "step-0000020/model.safetensors").unlink()
    with pytest.raises(UserError, match="never starts over"):
        newest_state(tmp_path, 20)


def test_rotation_survives_a_cut_manifest(tmp_path: Path) -> None:
    model, optimizer = trained()
    for step in (1, 2, 3):
        save_state(tmp_path, step, model, optimizer, binding="b", checkpoint=False)
    (tmp_path / "step-0000002/manifest.json").write_text('{"step": 2')
    prune_states(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-0000001", "step-0000003"]
