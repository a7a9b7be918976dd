"""A run that a test may treat as it likes, and the build from scratch that it must equal.

The rules are the real ones, in a copy of the repository whose heavy steps are `stand_ins`.
`Run.ask` runs snakemake and checks the promise that a status of 0 makes.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import stand_ins
import yaml

from gc25d.records import digest_json, write_json
from gc25d.settings.loading import load_settings
from gc25d.settings.steps import step_json, step_settings

ROOT = Path(__file__).parents[2]
SCENE = "deathmatch"
DATA = Path("data/gc25d_v10")
FRAMES_TAR = f"raw/vizdoom/{SCENE}/run-000/frames.tar"
RUNS = (f"{SCENE}__run-000", f"{SCENE}__run-001")
BASE: dict[str, Any] = {
    "geometry": {"frames": 9, "height": 64, "width": 64},
    "capture": {"scenes": [SCENE], "runs_per_scene": 2},
    "prep": {"val_runs": [RUNS[1]], "text": {"length": 16, "dim": 8}},
    "train": {"max_steps": 4, "checkpoint_every": 2, "global_batch": 4},
    "validation": {"n": 4},
    "evaluation": {"n": 4},
}
UNBOUND = ("data/", "figures/overlay", "figures/coverage", "raw/")
"""What may be asked for whatever the run is bound to."""


def install(repository: Path, rules: Path = ROOT) -> Path:
    """A copy of a checkout whose heavy steps are stand-ins."""
    repository.mkdir(parents=True)
    shutil.copy(rules / "Snakefile", repository)
    for name in ("rules", "config", "profiles", "docs", "envs", "workflow_scripts"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(rules / name, repository / name, ignore=ignored)
    stand_ins.install(repository / "workflow_scripts/gc25d")
    return repository


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Settings over others, key by key."""
    inner = {k: merge(base.get(k, {}), v) for k, v in over.items() if isinstance(v, dict)}
    return base | over | inner


class Run:
    """A working folder, the settings that it is asked with, and all that was done to it."""

    def __init__(self, folder: Path, repository: Path) -> None:
        """An empty folder."""
        self.folder, self.repository = folder, repository
        self.changes: dict[str, Any] = {}
        self.story: list[str] = []
        self.said = ""
        self.loose: set[int] = set()  # segments that a kill may have caught before their end
        self.memo: dict[str, dict[str, bytes]] = {}
        folder.mkdir(parents=True)

    def copy(self, folder: Path) -> "Run":
        """The same run in another folder."""
        shutil.copytree(self.folder, folder)
        other = Run.__new__(Run)
        other.__dict__.update(self.__dict__, folder=folder, story=list(self.story))
        other.changes, other.loose = dict(self.changes), set(self.loose)
        return other

    def settings(self) -> dict[str, Any]:
        """Those that snakemake is given."""
        return merge(BASE, self.changes)

    def command(self, *arguments: str) -> list[str]:
        """A snakemake call."""
        own = self.folder.with_name(f"{self.folder.name}.yaml")
        own.write_text(yaml.safe_dump(self.settings()))
        executable = str(Path(sys.executable).with_name("snakemake"))
        where = ["--directory", str(self.folder), "--configfile", str(own), "--cores", "2"]
        return [executable, *arguments, *where, "--snakefile", str(self.repository / "Snakefile")]

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Snakemake in a process group of its own."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.repository,
            env={**os.environ, "PYTHONPATH": str(self.repository / "workflow_scripts")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def call(self, *arguments: str) -> int:
        """Run snakemake to its end."""
        process = self.start(*arguments)
        self.said = process.communicate(timeout=300)[0]
        return process.returncode

    def kill(self, target: str, after_s: float) -> None:
        """Kill snakemake and its jobs, then remove the lock that it left."""
        self.story.append(f"kill {target} after {after_s:.2f} s")
        lines = len(self.trained())
        process = self.start(target)
        time.sleep(after_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.loose |= {step for word, step in self.trained()[lines:] if word == "start"}
        self.call("--unlock")

    def trained(self) -> list[tuple[str, int]]:
        """("start" or "train", step), as the trainer told."""
        path = self.folder / stand_ins.TRAINED
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(word, int(step)) for word, step in words]

    def bound(self) -> bytes | None:
        """What the run in this folder is bound to."""
        path = self.folder / "train/run.json"
        return path.read_bytes() if path.exists() else None

    def ask(self, target: str) -> int:
        """Run snakemake and check what its status promises."""
        self.story.append(f"ask {target}")
        whole = {
            step
            for step in range(1, 41)
            if all((self.folder / p).exists() for p in checkpoint(step))
        }
        bound, lines = self.bound(), len(self.trained())
        status = self.call(target)
        told = self.trained()
        again = {s for word, s in told[lines:] if word == "start"} & (whole - self.loose)
        assert not again, self.tell(f"finished segments {again} were trained again")
        once = [step for word, step in told if word == "train"]
        assert len(once) == len(set(once)), self.tell(f"trained twice: {once}")
        fresh = self.fresh()
        other = bound is not None and fresh["train/run.json"] != bound
        self.story[-1] += f" → {status}"
        if status == 0:
            assert not (other and self.must_refuse(target)), self.tell("was not refused")
            if not (other and not target.startswith(UNBOUND)):
                self.compare(target, fresh)
            self.loose.clear()
        else:
            assert other, self.tell("failed without a cause")
        return status

    def holds(self, paths: list[str]) -> bool:
        """Whether all of these files are there."""
        return all((self.folder / path).exists() for path in paths)

    def must_refuse(self, target: str) -> bool:
        """Whether a target names the data that the run is bound to: all but its pictures."""
        return target.startswith(("sft_v10", "exports/", "verify/", "eval/"))

    def compare(self, target: str, fresh: dict[str, bytes]) -> None:
        """Every file that a target stands for is there, with a fresh build's bytes."""
        for path in self.files(target):
            file = self.folder / path
            assert file.exists(), self.tell(f"{path} is missing")
            if path == "figures/curves.png":  # a run's own log may know later steps
                rows = stand_ins.read(file)["rows"]
                assert set(range(1, self.settings()["train"]["max_steps"] + 1)) <= set(rows)
            else:
                assert file.read_bytes() == fresh[path], self.tell(f"{path} is stale")

    def files(self, target: str) -> list[str]:
        """The files that a target stands for."""
        last = self.settings()["train"]["max_steps"]
        figures = [f"figures/{name}.png" for name in ("curves", "overlay", "coverage")]
        if target == "sft_v10":
            scores = ("metrics.json", "clips/clip.mp4", "sheet.png", "scores.png")
            return [
                f"{DATA}/READY",
                f"exports/step-{last}.safetensors",
                f"verify/step-{last}.json",
                *(f"eval/step-{last}/{name}" for name in scores),
                *figures,
            ]
        return [target]

    def tell(self, fault: str) -> str:
        """A fault, what led to it, and what snakemake said last."""
        return "\n".join([fault, f"settings: {self.changes}", *self.story, self.said[-3000:]])

    def fresh(self) -> dict[str, bytes]:
        """Path → content, of a build from these captures and settings without Snakemake."""
        raw = sorted((self.folder / "raw").glob("*/*/*/*"))
        key = stand_ins.digest(str(self.settings()), *(path.read_bytes() for path in raw))
        if key not in self.memo:
            with tempfile.TemporaryDirectory() as scratch:
                shutil.copytree(self.folder / "raw", Path(scratch) / "raw")
                with contextlib.chdir(scratch):
                    build(self.settings())
                    made = [path for path in Path().rglob("*") if path.is_file()]
                    self.memo[key] = {str(path): path.read_bytes() for path in made}
        return self.memo[key]


def checkpoint(step: int) -> list[str]:
    """The files of a checkpoint."""
    names = ("weights.safetensors", "probe.safetensors", "done.json")
    return [f"train/step-{step}/{name}" for name in names]


def build(chosen: dict[str, Any]) -> None:
    """Everything from the captures in the working folder, one step after another."""
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    settings = load_settings(merge(config, chosen))
    for name, step in step_settings(settings, RUNS).items():
        write_json(Path(f"settings/{name}.json"), step_json(step))

    def run(step: str, settings_of: str, **paths: Any) -> None:
        own = {"settings": [Path(f"settings/{settings_of}.json")], "weights": None, "done": None}
        stand_ins.STEPS[step](Namespace(**own | {"data": DATA, "raw_root": Path("raw")} | paths))

    rows = [DATA / f"index/runs/{run_id}.jsonl" for run_id in RUNS]
    for run_id, path in zip(RUNS, rows, strict=True):
        tensors = {k: DATA / f"{k}/{run_id}.safetensors" for k in ("latents", "ids")}
        raw = Path("raw/vizdoom") / run_id.replace("__", "/")
        record = DATA / f"index/raw/{run_id}.json"
        run("prep_run", "prep", run_id=run_id, raw=raw, rows=[path], record=record, **tensors)
    table = DATA / "text/table.safetensors"
    run("encode_text", "text", rows=rows, out=table)
    clips, ready = DATA / "index/clips.jsonl", DATA / "READY"
    run("build_index", "index", rows=rows, table=table, clips=clips, ready=ready)
    bind(settings.dataset, ready)
    for step in range(1, settings.train.max_steps + 1):
        weights, probe, done = map(Path, checkpoint(step))
        binding, out = Path("train/binding.json"), Path(f"exports/step-{step}.safetensors")
        made = {"weights": weights, "done": done, "binding": binding}
        run("train", "train", until=step, probe=[probe], **made)
        run("export", "train", out=out, **made)
        report, folder = Path(f"verify/step-{step}.json"), Path(f"eval/step-{step}")
        run("verify", "train", export=out, weights=weights, probe=[probe], out=report)
        pictures = {"sheet": folder / "sheet.png", "scores": folder / "scores.png"}
        metrics = {"clips": folder / "clips", "out": folder / "metrics.json"}
        run("evaluate", "eval", weights=out, **pictures, **metrics)
    figures = Path("figures")
    run("plot_overlay", "eval", out=figures / "overlay.png")
    pair = {"summary": figures / "coverage.json", "out": figures / "coverage.png"}
    run("plot_coverage", "eval", **pair)


def bind(dataset: str, ready: Path) -> None:
    """What `bind_run` writes for a run that starts here."""
    settings, found = stand_ins.read(Path("settings/train.json")), stand_ins.read(ready)
    both = {"dataset": dataset, "data_fingerprint": found["fingerprint"]}
    write_json(Path("train/run.json"), {**both, "settings": settings})
    write_json(Path("train/binding.json"), {**both, "settings_sha256": digest_json(settings)})


def shuffle_times(folder: Path, chance: random.Random) -> None:
    """As a copy tool that keeps no order: every file gets some time of the last hour."""
    now = time.time()
    for path in sorted(folder.rglob("*")):
        stamp = now - 10 - chance.randrange(3600)
        os.utime(path, (stamp, stamp))
