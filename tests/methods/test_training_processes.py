"""Methods with two trained networks on two processes: exact resume, and the same steps as one."""

import subprocess
import sys
from pathlib import Path

import pytest

from gc25d.files import digest_file
from gc25d.records import digest_json, read_csv, read_json, write_json

pytestmark = pytest.mark.slow

STEPS, STOP = 7, 3
# float32 sums in another order, amplified by seven steps at lr 1e-3.
LOSS_BOUND = 1e-3


def settings_of(model: str, method: str) -> dict:
    distill = {"denoising_steps": 2, "generator_update_interval": 2, "critic_lr": 1e-3}
    rates = {"lr": 1e-3, "cond_lr": 1e-3, "warmup_steps": 2}
    return {
        "version": 1,
        "geometry": {"frames": 9, "height": 64, "width": 64},
        "text_length": 16,
        "text_dim": 8,
        "samples": {},
        "model": {"name": model, "chunk_frames": 2},
        "train": {
            "method": method,
            "global_batch": 4,
            "cpu_threads": 1,
            "distill": distill,
            **rates,
        },
        "validation": {"n": 1, "timesteps": [500]},
    }


def train(settings: dict, data: Path, run: Path, until: int, engine: str, processes: int) -> str:
    write_json(run / "settings.json", settings)
    fingerprint = read_json(data / "READY")["fingerprint"]
    digests = {"settings_sha256": digest_json(settings), "data_fingerprint": fingerprint}
    write_json(run / "binding.json", digests)
    out = run / f"step-{until}"
    options = {
        "settings": run / "settings.json",
        "binding": run / "binding.json",
        "data": data,
        "weights": out / "weights.safetensors",
        "probe": out / "probe.safetensors",
        "done": out / "done.json",
        "log": run / "log.txt",
        "until": until,
        "micro-batch": 1,
        "save-every": STOP,
        "validate-every": STEPS,
        "log-every": STEPS,
        "workers": 0,
        "nodes": 1,
        "processes": processes,
        "gpus-per-node": 0,
        "engine": engine,
    }
    pairs = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, "-m", "gc25d.steps.train", *pairs], check=False)
    assert done.returncode == 0, (run / "log.txt").read_text()
    return digest_file(out / "weights.safetensors")


def logged(run: Path, *names: str) -> list[list[float]]:
    return [[float(row[name]) for name in names] for row in read_csv(run / "train_log.csv")]


@pytest.mark.parametrize(("model", "method"), [("wan", "dmd2"), ("wan_causal", "self_forcing")])
def test_two_processes(small_dataset: Path, tmp_path: Path, model: str, method: str) -> None:
    settings = settings_of(model, method)
    whole = train(settings, small_dataset, tmp_path / "whole", STEPS, "deepspeed", 2)
    train(settings, small_dataset, tmp_path / "parts", STOP, "deepspeed", 2)
    assert train(settings, small_dataset, tmp_path / "parts", STEPS, "deepspeed", 2) == whole
    exact = ("step", "loss", "mse", "timestep", "grad_norm", "lr")
    assert logged(tmp_path / "parts", *exact) == logged(tmp_path / "whole", *exact)
    train(settings, small_dataset, tmp_path / "alone", STEPS, "plain", 1)
    drawn = ("step", "timestep", "lr")
    for one, two in zip(
        logged(tmp_path / "alone", *drawn), logged(tmp_path / "whole", *drawn), strict=True
    ):
        assert one == pytest.approx(two, rel=1e-6)
    for one, two in zip(
        logged(tmp_path / "alone", "loss", "grad_norm"),
        logged(tmp_path / "whole", "loss", "grad_norm"),
        strict=True,
    ):
        assert one == pytest.approx(two, rel=LOSS_BOUND)
