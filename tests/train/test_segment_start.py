"""done.json names the checkpoint from which a segment really began, whatever killed it."""

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gc25d.model.start import model_config, starting_model
from gc25d.records import digest_json, read_json, write_json
from gc25d.settings.steps import step_json
from gc25d.steps import place_state
from gc25d.tensors import write_tensors
from gc25d.train.pace import Pace
from gc25d.train.segment import SegmentFiles, Task, train_segment
from gc25d.train.states.files import seal
from small_step import small_step

SETTINGS = small_step(
    train={"global_batch": 2, "grad_accum": 1, "cpu_threads": 1},
    validation={"n": 1, "timesteps": [500]},
)
BINDING = {"settings_sha256": "s", "data_fingerprint": "d"}


def train(data: Path, run: Path, until: int, save_every: int = 1) -> tuple[str, int]:
    """Train to a step; returns what done.json says of where the segment began."""
    out = run / f"step-{until}"
    files = SegmentFiles(out / "weights.safetensors", out / "probe.safetensors", out / "done.json")
    task = Task(until, digest_json(BINDING))
    train_segment(SETTINGS, data, run, task, Pace(2, save_every, 100, 100, 0), files)
    done = read_json(files.done)
    return done["resumed_from"], done["resumed_step"]


@pytest.fixture(scope="module")
def chain(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 2 and 5, each step's state saved: those of 4 and 5 are still there."""
    run = tmp_path_factory.mktemp("chain") / "train"
    assert train(small_dataset, run, 2) == ("", 0)
    assert train(small_dataset, run, 5) == ("train/step-2", 2)
    return run


@pytest.fixture
def run(chain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(chain, tmp_path / "train"))


@pytest.mark.parametrize("lost", [("states/step-0000005", "step-5"), ("step-5",)])
def test_a_killed_segment_began_where_the_uninterrupted_one_did(
    run: Path, small_dataset: Path, lost: tuple[str, ...]
) -> None:
    """Killed after its state of step 4; after its last state, before its results."""
    for name in lost:
        shutil.rmtree(run / name)
    assert train(small_dataset, run, 5) == ("train/step-2", 2)


def test_another_end_of_the_same_segment_began_there_too(run: Path, small_dataset: Path) -> None:
    """Killed after step 4 of the segment to 5, then asked for 6: state 4 is no checkpoint."""
    for name in ("states/step-0000005", "step-5"):
        shutil.rmtree(run / name)
    assert train(small_dataset, run, 6) == ("train/step-2", 2)


def test_another_cadence_goes_on_from_the_chains_newest_checkpoint(
    run: Path, small_dataset: Path
) -> None:
    """Every 6 steps from now on: 5 lies between 0 and 6 and is where 6 begins."""
    assert train(small_dataset, run, 6) == ("train/step-5", 5)


def test_a_step_behind_the_chain_names_what_it_was_trained_from(
    run: Path, small_dataset: Path
) -> None:
    """No state up to 3 is left, so it begins at 0 though step-2 lies there; 4 goes on from 2's."""
    assert sorted(p.name for p in (run / "states").iterdir()) == ["step-0000004", "step-0000005"]
    assert train(small_dataset, run, 3) == ("", 0)
    assert train(small_dataset, run, 4) == ("train/step-2", 2)


def test_a_killed_step_aside_began_where_it_did(run: Path, small_dataset: Path) -> None:
    assert train(small_dataset, run, 3) == ("", 0)
    shutil.rmtree(run / "aside/step-3/states/step-0000003")
    assert train(small_dataset, run, 3) == ("", 0)


@pytest.mark.parametrize(
    ("until", "began"), [(4, ("train/placed.json", 3)), (6, ("train/step-4", 4))]
)
def test_a_placed_state_is_named(
    small_dataset: Path, tmp_path: Path, until: int, began: tuple[str, int]
) -> None:
    run, weights, state = tmp_path / "train", tmp_path / "old.safetensors", tmp_path / "old.json"
    model = starting_model(model_config(SETTINGS), 7, "", "")
    write_tensors(weights, {n: p.detach().bfloat16() for n, p in model.named_parameters()}, {})
    write_json(state, {"step": 3, "arm": "gc25d", "vocab": "parts"})
    write_json(run / "settings.json", step_json(SETTINGS))
    write_json(run / "binding.json", BINDING)
    paths: dict[str, Any] = {"settings": run / "settings.json", "binding": run / "binding.json"}
    paths |= {"data": small_dataset, "state": state, "weights": weights}
    place_state.main(Namespace(**paths))
    if until == 6:
        train(small_dataset, run, 4)
    assert train(small_dataset, run, until) == began


def test_states_of_before_say_it_by_the_segment_end_beside_them(
    run: Path, small_dataset: Path
) -> None:
    for folder in ("states/step-0000005", "step-5"):
        shutil.rmtree(run / folder)
    path = run / "states/step-0000004/manifest.json"
    content = {k: v for k, v in read_json(path).items() if k not in ("segment_start", "sha256")}
    write_json(path, seal(content))
    # The end of the segment before it was kept by the version that wrote such states.
    end = run / "states/step-0000002"
    shutil.copytree(path.parent, end)
    write_json(end / "manifest.json", seal({**content, "step": 2, "checkpoint": True}))
    assert train(small_dataset, run, 5) == ("train/step-2", 2)
