"""While a trainer works on a run nobody else trains it, sets it aside or places a state in it."""

import contextlib
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.model.start import model_config, starting_model
from gc25d.records import digest_json, write_json
from gc25d.settings.steps import step_json
from gc25d.steps import place_state, restart, train, train_rank
from gc25d.tensors import write_tensors
from gc25d.train.processes import launch
from small_step import small_step

SETTINGS = small_step(train={"global_batch": 4, "cpu_threads": 1}, validation={"n": 1})
REFUSED = r"trainer works on this run \(lock .*train/lock\): wait for it to end, or stop it"
Command = Callable[[], None]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A bound run without a state, and an older state that it could go on from."""
    settings = step_json(SETTINGS)
    write_json(tmp_path / "train/settings.json", settings)
    binding = {"settings_sha256": digest_json(settings), "data_fingerprint": "f"}
    write_json(tmp_path / "train/binding.json", binding)
    write_json(tmp_path / "train/run.json", {})
    write_json(tmp_path / "data/READY", {"fingerprint": "f", "steps_per_epoch": 3})
    write_json(tmp_path / "old.json", {"step": 5, "arm": "gc25d", "vocab": "parts"})
    model = starting_model(model_config(SETTINGS), 0, "", "")
    weights = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    write_tensors(tmp_path / "old.safetensors", weights, {})
    return tmp_path


def trainer(run: Path, engine: str = "plain") -> Command:
    folder = run / "train"
    given = Namespace(
        settings=folder / "settings.json",
        binding=folder / "binding.json",
        data=run / "data",
        reads=[run / "data"],
        engine=engine,
        nodes=1,
        processes=2,
        gpus_per_node=0,
        cpus_per_node=0,
    )
    return lambda: train.main(given)


def others(run: Path) -> dict[str, Command]:
    """What must not happen meanwhile."""
    folder = run / "train"
    placed = Namespace(
        settings=folder / "settings.json",
        binding=folder / "binding.json",
        data=run / "data",
        state=run / "old.json",
        weights=run / "old.safetensors",
    )
    return {
        "trainer": trainer(run),
        "trainer of processes": trainer(run, "deepspeed"),
        "restart": lambda: restart.main(Namespace(directory=run)),
        "place_state": lambda: place_state.main(placed),
    }


@pytest.mark.parametrize("engine", ["plain", "deepspeed"])
@pytest.mark.parametrize("other", ["trainer", "trainer of processes", "restart", "place_state"])
def test_a_trainer_at_work_keeps_others_away(
    run: Path, monkeypatch: pytest.MonkeyPatch, engine: str, other: str
) -> None:
    monkeypatch.setattr(train, "LOCK_WAIT_S", 0.05)
    at_work: list[list[str]] = []

    def work(*arguments: object) -> int:
        assert not at_work  # one trainer, not two
        at_work.append(sorted(str(path) for path in run.rglob("*")))
        with pytest.raises(UserError, match=REFUSED):
            others(run)[other]()
        at_work.append(sorted(str(path) for path in run.rglob("*")))
        return 0

    monkeypatch.setattr(train_rank, "train", work)
    monkeypatch.setattr(launch, "run_processes", work)
    trainer(run, engine)()
    before, after = at_work
    assert before == after


@pytest.mark.parametrize("fault", ["", "a loss is not finite"])
def test_the_run_is_free_after_its_trainer(
    run: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(train, "LOCK_WAIT_S", 0.05)

    def work(*arguments: object) -> None:
        if fault:
            raise UserError(fault)

    monkeypatch.setattr(train_rank, "train", work)
    for _ in range(2):
        with pytest.raises(UserError, match=fault) if fault else contextlib.nullcontext():
            trainer(run)()
    others(run)["place_state"]()
    assert (run / "train/states/step-0000005/manifest.json").exists()
    others(run)["restart"]()
    assert not (run / "train").exists()
