"""Whole training jobs of several processes, started as the pipeline starts them.

Exact resume on the same number of processes; the same steps on another number; stops; nodes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gc25d.files import digest_file
from gc25d.records import digest_json, read_csv, read_json, read_jsonl, write_json
from gc25d.settings.steps import TrainStep, step_json
from gc25d.train.engine import PlainEngine
from gc25d.train.pace import Pace
from gc25d.train.segment import Task, prepared_states
from gc25d.train.segment_data import training_clips
from gc25d.train.setup import starting_method
from gc25d.train.states.files import open_state
from gc25d.train.states.folder import state_folder
from gc25d.train.states.reader import read_whole
from small_step import small_step

pytestmark = pytest.mark.slow

SETTINGS = small_step(
    train={"global_batch": 4, "grad_accum": 2, "warmup_steps": 2, "cpu_threads": 1},
    validation={"n": 3, "timesteps": [500]},
)
DRAWN = ("step", "epoch", "text_drop", "cond_drop", "mask_frac")
EXACT = (*DRAWN, "clips", "timestep", "loss", "mse", "grad_norm", "lr", "cond_lr", "sem_rms")
# float32 sums in another order; seen after seven steps: 7e-8 (loss), 1e-7 (gradient norm).
BOUND = 1e-6
PLACES = {"nodes": 1, "processes": 2}


def run_folder(run: Path, data: Path, settings_of_run: TrainStep = SETTINGS) -> None:
    """What the rules before training leave."""
    settings = step_json(settings_of_run)
    write_json(run / "settings.json", settings)
    fingerprint = read_json(data / "READY")["fingerprint"]
    binding = {"settings_sha256": digest_json(settings), "data_fingerprint": fingerprint}
    write_json(run / "binding.json", binding)


def command(data: Path, run: Path, until: int, **places: int | str) -> list[str]:
    """The trainer's; a name is an option, as in the rule."""
    numbers = {"until": until, "micro_batch": 1, "save_every": 2}
    numbers |= {"validate_every": 3, "log_every": 1, "workers": 1, "gpus_per_node": 0}
    paths = {"settings": run / "settings.json", "binding": run / "binding.json", "data": data}
    out = run / f"step-{until}"
    paths |= {"weights": out / "weights.safetensors", "probe": out / "probe.safetensors"}
    paths |= {"done": out / "done.json", "log": run / "log.txt"}
    options = {**numbers, **paths, **PLACES, "engine": "deepspeed", **places}
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
    return [sys.executable, "-m", "gc25d.steps.train", *(text for pair in pairs for text in pair)]


def train(
    data: Path, run: Path, until: int, settings: TrainStep = SETTINGS, **places: int | str
) -> str:
    """Train to a step; returns the digest of the weights."""
    run_folder(run, data, settings)
    done = subprocess.run(command(data, run, until, **places), check=False)
    assert done.returncode == 0, (run / "log.txt").read_text()
    return digest_file(run / f"step-{until}/weights.safetensors")


def rows(run: Path, names: tuple[str, ...] = EXACT) -> list[dict[str, str]]:
    return [{name: row[name] for name in names} for row in read_csv(run / "train_log.csv")]


@pytest.fixture(scope="module")
def whole(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven uninterrupted steps on two processes: epochs of 3 steps (4, 4, 2 samples)."""
    run = tmp_path_factory.mktemp("whole")
    train(small_dataset, run, 7)
    return run


def test_it_is_told_what_runs(whole: Path) -> None:
    start, finish = read_jsonl(whole / "history.jsonl")
    assert (start["engine"], start["processes"], finish["event"]) == ("deepspeed", 2, "finish")
    log = (whole / "log.txt").read_text()
    assert "starting 2 process(es) on 1 node(s)" in log
    assert "engine deepspeed, 2 process(es), cpu" in log
    assert [int(row["step"]) for row in rows(whole)] == [1, 2, 3, 4, 5, 6, 7]
    # Two of a step's four samples are the first process's, one of an epoch's last two.
    assert [len(row["clips"].split()) for row in rows(whole)] == [2, 2, 1, 2, 2, 1, 2]


def test_resumed_in_mid_epoch_and_at_its_end_nothing_differs(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    train(small_dataset, tmp_path, 2)
    train(small_dataset, tmp_path, 3)
    assert train(small_dataset, tmp_path, 7) == digest_file(whole / "step-7/weights.safetensors")
    assert rows(tmp_path) == rows(whole)
    logged = read_csv(tmp_path / "val_log.csv")
    assert [row["step"] for row in logged] == ["0", "2", "3", "6", "7"]  # 2: a segment's end
    assert [row for row in logged if row["step"] != "2"] == read_csv(whole / "val_log.csv")


def test_a_request_to_stop_saves_and_the_same_command_goes_on(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    run_folder(tmp_path, small_dataset)
    trainer = subprocess.Popen(command(small_dataset, tmp_path, 7))
    while not rows(tmp_path):
        assert trainer.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.01)
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(120) == 75, (tmp_path / "log.txt").read_text()
    assert [event["event"] for event in read_jsonl(tmp_path / "history.jsonl")] == ["start", "stop"]
    stopped = len(rows(tmp_path))
    assert stopped < 7
    assert open_state(state_folder(tmp_path / "states", stopped)).step == stopped
    assert train(small_dataset, tmp_path, 7) == digest_file(whole / "step-7/weights.safetensors")
    assert rows(tmp_path) == rows(whole)


def test_a_killed_process_costs_the_steps_since_the_last_state(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    run_folder(tmp_path, small_dataset)
    trainer = subprocess.Popen(command(small_dataset, tmp_path, 7))
    while not (tmp_path / "states/step-0000002/manifest.json").exists():
        assert trainer.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.01)
    (first, *_) = children(trainer.pid)
    os.kill(first, signal.SIGKILL)
    assert trainer.wait(60) == 128 + 9
    assert train(small_dataset, tmp_path, 7) == digest_file(whole / "step-7/weights.safetensors")
    assert rows(tmp_path) == rows(whole)


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_then_one_then_two_processes_take_the_same_steps(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    train(small_dataset, tmp_path, 3)
    train(small_dataset, tmp_path, 5, processes=1, engine="plain")
    train(small_dataset, tmp_path, 7)
    for one, other in zip(read_csv(tmp_path / "train_log.csv"), rows(whole, EXACT), strict=True):
        assert [one[name] for name in DRAWN] == [other[name] for name in DRAWN]
        assert float(one["loss"]) == pytest.approx(float(other["loss"]), rel=BOUND)
        assert float(one["grad_norm"]) == pytest.approx(float(other["grad_norm"]), rel=BOUND)
        assert float(one["lr"]) == float(other["lr"])
    used = [set(row["clips"].split()) for row in rows(tmp_path)]
    # The one process logs all clips of its steps, of which the first of two logs its own.
    for ours, theirs in zip(used, (set(row["clips"].split()) for row in rows(whole)), strict=True):
        assert theirs <= ours


def test_one_process_loads_what_two_have_saved(whole: Path, small_dataset: Path) -> None:
    state = open_state(state_folder(whole / "states", 7))
    binding = state.binding
    engine = PlainEngine("fp32", 1, gpu=False)
    clips = training_clips(SETTINGS, small_dataset)
    method = starting_method(SETTINGS, clips, engine, Pace(1, 1, 1, 1, 0))
    task = Task(7, binding)
    start, states = prepared_states(method, engine, [whole / "states"], task, decay=0)
    assert start == 7
    saved = {
        f"{name}:{kind}": tensor
        for kind in ("weight", "exp_avg", "exp_avg_sq", "step")
        for name, tensor in read_whole(state, kind).items()
    }
    assert {fragment.name for fragment in states.fragments} == saved.keys()
    for fragment in states.fragments:
        assert torch.equal(fragment.values, saved[fragment.name].flatten()), fragment.name
    steps = {float(t) for name, t in saved.items() if name.endswith(":step")}
    assert steps == {7.0}
    exported = engine.full_weights(method, "student")
    assert exported is not None
    assert all(
        torch.equal(tensor, saved[f"student/{name}:weight"].bfloat16())
        for name, tensor in exported.items()
    )


def test_bf16_weights_resume_exactly_from_fp32_masters(small_dataset: Path, tmp_path: Path) -> None:
    bf16 = SETTINGS.train.model_copy(update={"precision": "bf16"})
    settings = SETTINGS.model_copy(update={"train": bf16})
    digest = train(small_dataset, tmp_path / "whole", 4, settings)
    train(small_dataset, tmp_path / "parts", 2, settings)
    assert train(small_dataset, tmp_path / "parts", 4, settings) == digest
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    state = open_state(state_folder(tmp_path / "parts/states", 4))
    masters = read_whole(state, "weight")
    assert any(not torch.equal(m, m.bfloat16().float()) for m in masters.values())


def test_deepspeed_on_one_process_trains_as_the_plain_engine(
    small_dataset: Path, tmp_path: Path
) -> None:
    train(small_dataset, tmp_path / "zero", 5, processes=1)
    train(small_dataset, tmp_path / "plain", 5, processes=1, engine="plain")
    for one, other in zip(rows(tmp_path / "zero"), rows(tmp_path / "plain"), strict=True):
        assert [one[n] for n in (*DRAWN, "clips")] == [other[n] for n in (*DRAWN, "clips")]
        assert float(one["loss"]) == pytest.approx(float(other["loss"]), rel=BOUND)


def test_two_nodes_of_one_process_equal_one_node_of_two(
    whole: Path, small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text('#!/bin/bash\nprintf "127.0.0.1\\nnode2\\n"\n')
    (tools / "srun").write_text(
        '#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\n'
        'SLURM_NODEID=0 "$@" & first=$!\nSLURM_NODEID=1 "$@" & second=$!\n'
        "wait $first; a=$?; wait $second; b=$?\nexit $(( a > b ? a : b ))\n"
    )
    for path in tools.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    digest = train(small_dataset, tmp_path / "run", 7, nodes=2, processes=1)
    assert digest == digest_file(whole / "step-7/weights.safetensors")
    assert rows(tmp_path / "run") == rows(whole)
