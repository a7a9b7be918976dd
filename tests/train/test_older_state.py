"""States of the older format: placed by their step alone, refused when they are another run's."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from gc25d.errors import UserError
from gc25d.model.start import model_config, starting_model
from gc25d.records import digest_json, read_json, write_json
from gc25d.settings.steps import TrainStep, step_json
from gc25d.steps import place_state
from gc25d.tensors import write_tensors
from gc25d.train.older_state import read_older_state
from gc25d.train.states.folder import newest_state
from gc25d.train.states.reader import read_whole

SETTINGS = {
    "geometry": {"frames": 9, "height": 64, "width": 64},
    "text_length": 16,
    "text_dim": 8,
    "samples": {},
    "model": {},
    "train": {"global_batch": 4, "cpu_threads": 1, "ema": 0.5},
    "validation": {"n": 2},
}
BINDING = {"settings_sha256": "s", "data_fingerprint": "d"}


def placed(root: Path, **changes: Any) -> Namespace:
    """A run that has not begun, and an older state in bf16."""
    settings = TrainStep.model_validate(SETTINGS)
    model = starting_model(model_config(settings), 7, "", "")
    weights = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    files = {name: root / name for name in ("old.safetensors", "state.json", "data/READY")}
    write_tensors(files["old.safetensors"], weights, {})
    state = {"step": 5, "arm": "gc25d", "vocab": "parts", **changes}
    write_json(files["state.json"], {key: value for key, value in state.items() if value})
    write_json(files["data/READY"], {"steps_per_epoch": 3})
    write_json(root / "train/settings.json", step_json(settings))
    write_json(root / "train/binding.json", BINDING)
    return Namespace(
        settings=root / "train/settings.json",
        binding=root / "train/binding.json",
        data=root / "data",
        state=files["state.json"],
        weights=files["old.safetensors"],
    )


def test_an_older_state_is_placed_by_its_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = placed(tmp_path)
    with caplog.at_level("INFO"):
        place_state.main(arguments)
    # 5 steps of epochs of 3: one epoch and 2 steps into the second.
    assert "placed at step 5: epoch 1, 2 of 3 steps" in caplog.text
    state = newest_state([tmp_path / "train/states"], 9, digest_json(BINDING))
    assert state is not None
    assert state.step == 5
    assert state.checkpoint
    assert read_json(tmp_path / "train/placed.json")["step"] == 5
    model = starting_model(model_config(TrainStep.model_validate(SETTINGS)), 7, "", "")
    weights = read_whole(state, "weight")
    for name, parameter in model.named_parameters():
        assert torch.equal(weights[f"student/{name}"], parameter.bfloat16().float()), name
    assert all(map(torch.equal, read_whole(state, "ema").values(), weights.values()))
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        assert not any(tensor.any() for tensor in read_whole(state, kind).values())
    with pytest.raises(UserError, match="the run has states of its own already"):
        place_state.main(arguments)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab": "ids"}, "vocab is 'ids', this run's is 'parts'"),
        ({"arm": "causal"}, "arm is 'causal'"),
        ({"arm": None}, "arm is missing"),
        ({"step": "5"}, "step is missing"),
        ({"step": -1}, "step is -1, expected 1 or more"),
    ],
)
def test_a_state_of_another_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    arguments = placed(tmp_path, **changes)
    with pytest.raises(UserError, match=said):
        place_state.main(arguments)
    assert not (tmp_path / "train/states").exists()


def test_more_in_the_file_does_no_harm(tmp_path: Path) -> None:
    placed(tmp_path, host="somewhere")
    state = read_older_state(tmp_path / "state.json", "parts")
    assert state.step == 5
    assert state.unused == {}


def test_what_a_newer_one_says_of_its_data_is_told_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer = {"epoch": 26, "epoch_micro": 1150, "n_train": 11955, "clips": ["a"], "seed": 7}
    arguments = placed(tmp_path, **newer)
    place_state.main(arguments)
    (told,) = [row for row in caplog.records if row.levelname == "WARNING"]
    said = told.getMessage()
    assert said.startswith(
        f"{arguments.state} says more (epoch 26, epoch_micro 1150, n_train 11955, clips, seed 7), "
        "which is not used"
    )
    assert "by its step alone, at epoch 1 after 2 of 3 steps" in said


def test_an_older_state_is_not_placed_into_a_run_whose_states_are_away(tmp_path: Path) -> None:
    arguments = placed(tmp_path)
    write_json(tmp_path / "train/step-8/done.json", {"step": 8})
    with pytest.raises(UserError, match=r"of its own already .*train/step-8 was trained"):
        place_state.main(arguments)
    assert not (tmp_path / "train/placed.json").exists()
