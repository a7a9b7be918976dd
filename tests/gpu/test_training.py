"""Training on GPUs, by the trainer's own command: exact whatever happened on the way.

Small models: the kernels of a full-size one are tried by `python -m bench.training.resume`.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gc25d.files import digest_file
from gc25d.records import digest_json, read_csv, read_json, read_jsonl, write_json
from gc25d.settings.steps import TrainStep, step_json

pytestmark = pytest.mark.gpu
UNTIL, SAVE_EVERY = 24, 4
EXACT = ("step", "epoch", "clips", "mask_frac", "timestep", "loss", "mse", "grad_norm", "lr")
# Sums of two GPUs in another order, in bf16, over the steps of the test.
ELASTIC_BOUND = 2e-2


@dataclasses.dataclass(frozen=True)
class Case:
    """What trains on how many GPUs."""

    engine: str
    processes: int
    model: str = "wan"
    method: str = "finetune"
    precision: str = "bf16"
    compile: str = "off"

    @property
    def settings(self) -> TrainStep:
        """Of the run."""
        distill = {"denoising_steps": 2, "generator_update_interval": 2, "critic_lr": 1e-3}
        train = {"method": self.method, "precision": self.precision, "distill": distill}
        train |= {"global_batch": 4, "grad_accum": 2, "warmup_steps": 2, "ema": 0.9}
        return TrainStep.model_validate(
            {
                "geometry": {"frames": 9, "height": 64, "width": 64},
                **{"text_length": 16, "text_dim": 8, "samples": {}},
                "model": {"name": self.model, "chunk_frames": 2},
                "train": train,
                "validation": {"n": 2, "timesteps": [500]},
            }
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's folder and how it trains."""

    folder: Path
    data: Path
    case: Case

    def start(self, until: int = UNTIL, **changed: Any) -> subprocess.Popen[bytes]:
        """The command of the rule `train_segment`."""
        case = dataclasses.replace(self.case, **changed)
        settings = step_json(case.settings)
        write_json(self.folder / "settings.json", settings)
        fingerprint = read_json(self.data / "READY")["fingerprint"]
        binding = {"settings_sha256": digest_json(settings), "data_fingerprint": fingerprint}
        write_json(self.folder / "binding.json", binding)
        numbers = {
            **{"until": until, "micro-batch": 1, "save-every": SAVE_EVERY},
            **{"validate-every": 10, "log-every": 5, "workers": 2, "nodes": 1},
            **{"processes": case.processes, "gpus-per-node": case.processes},
        }
        names = {"settings": "settings.json", "binding": "binding.json", "log": "log.txt"}
        out = f"step-{until}"
        names |= {name: f"{out}/{name}.safetensors" for name in ("weights", "probe")}
        names |= {"done": f"{out}/done.json"}
        paths = {name: self.folder / path for name, path in names.items()} | {"data": self.data}
        options = [f"--{name}={value}" for name, value in {**numbers, **paths}.items()]
        command = [sys.executable, "-m", "gc25d.steps.train", *options, f"--engine={case.engine}"]
        command.append(f"--compile={case.compile}")
        return subprocess.Popen(command)

    def finish(self, until: int = UNTIL, **changed: Any) -> None:
        """Train to a step."""
        assert self.start(until, **changed).wait(300) == 0, self.log

    def when(self, reached: Callable[[], bool], trainer: subprocess.Popen[bytes]) -> None:
        """Wait for a moment of its life."""
        deadline = time.monotonic() + 200
        while not reached():
            assert trainer.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.002)

    def digests(self, until: int = UNTIL) -> list[str]:
        """Of what a segment leaves."""
        names = ("weights", "probe", "ema")
        return [digest_file(self.folder / f"step-{until}/{n}.safetensors") for n in names]

    def rows(self, *names: str) -> list[dict[str, str]]:
        """Columns of the log."""
        logged = read_csv(self.folder / "train_log.csv")
        return [{name: row[name] for name in names or EXACT} for row in logged]

    @property
    def log(self) -> str:
        """What the trainer said."""
        return (self.folder / "log.txt").read_text(errors="replace")


def kill(trainer: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the trainer and all that it started, at once."""
    family = [*psutil.Process(trainer.pid).children(recursive=True), psutil.Process(trainer.pid)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    trainer.wait()
    psutil.wait_procs(family, timeout=30)


CASES = [  # compiled ones first: they take longest
    Case("deepspeed", 2, compile="on"),
    Case("plain", 1, "wan_causal", "dfsft", compile="on"),
    Case("plain", 1, compile="on"),
    Case("plain", 1, precision="fp32"),
    Case("deepspeed", 1),
    Case("plain", 1, "wan_causal", "self_forcing"),
    Case("plain", 1, "wan", "dmd2"),
    Case("deepspeed", 2, "wan_causal", "self_forcing"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, vars(case).values())))
def test_killed_and_started_again_nothing_differs(
    case: Case, small_dataset: Path, tmp_path: Path
) -> None:
    need(case.processes)
    whole, killed = (Run(tmp_path / name, small_dataset, case) for name in ("whole", "killed"))
    whole.finish()
    trainer = killed.start()
    killed.when(lambda: (killed.folder / "states/step-0000008/manifest.json").exists(), trainer)
    kill(trainer)
    assert not (killed.folder / f"step-{UNTIL}").exists()
    killed.finish()
    start = [event["step"] for event in read_jsonl(killed.folder / "history.jsonl")][1]
    assert start >= 8
    assert killed.digests() == whole.digests()
    assert killed.rows() == whole.rows()
    assert [int(row["step"]) for row in whole.rows()] == [*range(1, UNTIL + 1)]
    assert read_csv(killed.folder / "val_log.csv") == read_csv(whole.folder / "val_log.csv")
    losses = [float(row["mse"]) for row in whole.rows("mse")]
    assert all(loss > 0 for loss in losses)
    assert "cuda" in whole.log


def test_two_gpus_then_one_then_two_take_the_same_steps(
    small_dataset: Path, tmp_path: Path
) -> None:
    need(2)
    case = Case("deepspeed", 2)
    whole, parts = (Run(tmp_path / name, small_dataset, case) for name in ("whole", "parts"))
    whole.finish()
    parts.finish(8)
    parts.finish(16, engine="plain", processes=1)
    parts.finish()
    drawn = ("step", "epoch", "text_drop", "cond_drop", "mask_frac")
    assert parts.rows(*drawn) == whole.rows(*drawn)
    for one, other in zip(parts.rows(), whole.rows(), strict=True):
        for name in ("loss", "grad_norm"):
            assert float(one[name]) == pytest.approx(float(other[name]), rel=ELASTIC_BOUND)


@pytest.mark.parametrize("processes", [1, 2])
def test_asked_to_stop_while_it_compiles_it_stops_and_goes_on(
    processes: int, small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(processes)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))  # nothing is found
    case = Case("deepspeed", processes, compile="on")
    stopped = Run(tmp_path, small_dataset, case)
    trainer = stopped.start()
    stopped.when(lambda: (stopped.folder / "history.jsonl").exists(), trainer)
    time.sleep(2)
    assert not stopped.rows()
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(200) == 75, stopped.log
    assert [event["event"] for event in read_jsonl(stopped.folder / "history.jsonl")][-1] == "stop"
    stopped.finish()
    assert [int(row["step"]) for row in stopped.rows("step")] == [*range(1, UNTIL + 1)]


ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).with_name("small.yaml")


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_whole_pipeline(gpus: int, tmp_path: Path) -> None:
    """From made-up captures to a verified export and its evaluation, in two segments."""
    need(gpus)

    def snakemake(*targets: str, **train: Any) -> None:
        settings = ["train={" + ", ".join(f"{k}: {v}" for k, v in train.items()) + "}"]
        settings += [f"hardware={{gpus_per_node: {gpus}}}"]
        command = [str(sys.executable), "-m", "snakemake", "--cores", "4"]
        command += ["--directory", str(tmp_path), "--configfile", str(SMALL)]
        command += ["--scheduler", "greedy", "--config", *settings, "--", *targets]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PATH": path}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    snakemake("verify/step-4.json", "eval/step-4/metrics.json", max_steps=4)
    began = [event for event in read_jsonl(tmp_path / "train/history.jsonl") if "until" in event]
    engine = "deepspeed" if gpus > 1 else "plain"
    assert [(e["step"], e["engine"], e["processes"]) for e in began] == [
        (start, engine, gpus) for start in (0, 2)
    ]
    assert read_json(tmp_path / "verify/step-4.json")["metadata"]["step"] == "4"
    assert (tmp_path / "eval/step-4/sheet.png").exists()


def need(gpus: int) -> None:
    """Skip where there are fewer."""
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
