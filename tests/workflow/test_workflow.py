"""The DAG itself, run as a user runs it, in a folder whose name no shell line would like."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gc25d.files import digest_file
from gc25d.model.weights.files import base_shapes
from gc25d.records import read_csv, read_json, read_jsonl
from gc25d.tensors import read_tensors

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).with_name("small.yaml")
NOTHING = "Nothing to be done"
FINAL = "exports/step-4.safetensors"


def snakemake(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run snakemake from the repository with the small settings; output and errors together."""
    executable = Path(sys.executable).with_name("snakemake")
    command = [str(executable), "--directory", str(folder), "--configfile", str(SMALL)]
    return subprocess.run(
        [*command, "--cores", "2", *arguments],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )


def succeed(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    done = snakemake(folder, *arguments, env=env)
    assert done.returncode == 0, done.stdout
    return done.stdout


def refuse(folder: Path, *arguments: str) -> str:
    done = snakemake(folder, *arguments)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def jobs(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, int]:
    """How often each rule would run."""
    said = succeed(folder, "-n", *arguments, env=env)
    table = said.split("Job stats:")[-1].splitlines()[3:] if "Job stats:" in said else []
    counted = [line.split() for line in table if len(line.split()) == 2]
    return {rule: int(count) for rule, count in counted if count.isdigit()}


def contents(folder: Path, *parts: str) -> dict[str, str]:
    files = (p for part in parts for p in (folder / part).rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): digest_file(p) for p in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished default-target run, in a folder with a space and a quote."""
    folder = tmp_path_factory.mktemp("finished") / "a b's run"
    folder.mkdir()
    succeed(folder, "sft_v10")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    folder = tmp_path / "a b's run"
    shutil.copytree(finished, folder, symlinks=True)
    return folder


def test_the_main_target_leaves_everything_a_user_looks_for(finished: Path) -> None:
    ready = read_json(finished / "data/gc25d_v10/READY")
    assert (ready["counts"]["usable_train"], ready["counts"]["usable_val"]) == (6, 6)
    assert [row["step"] for row in read_csv(finished / "train/train_log.csv")] == list("1234")
    report = read_json(finished / "verify/step-4.json")
    assert report["sha256"] == digest_file(finished / FINAL)
    assert report["forward_difference"] == 0
    assert report["metadata"]["resumed_from"] == "train/step-2"
    metrics = read_json(finished / "eval/step-4/metrics.json")
    assert 5 < metrics["psnr"] < metrics["ceiling"]["psnr"] < 60
    for picture in ("figures/curves.png", "figures/overlay.png", "eval/step-4/sheet.png"):
        assert (finished / picture).read_bytes().startswith(b"\x89PNG")
    assert len(list((finished / "eval/step-4/clips").glob("*.mp4"))) == 1
    assert [row["event"] for row in read_jsonl(finished / "train/history.jsonl")] == [
        *("start", "finish", "resume", "finish")
    ]


def test_a_second_run_does_nothing(finished: Path) -> None:
    assert NOTHING in succeed(finished, "sft_v10")


def test_a_dry_run_imports_no_torch(finished: Path) -> None:
    done = snakemake(finished, "-n", "sft_v10", env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stdout.splitlines() if "|" in line}
    assert {"gc25d.settings.loading", "gc25d.workflow.runs"} <= imported
    assert not imported & {"torch", "vizdoom", "diffusers", "accelerate"}


def test_what_alters_no_result_reruns_nothing(run: Path) -> None:
    free = ["train={log_every: 1, workers: 1, save_every: 2}", "validation={every: 1}"]
    assert NOTHING in succeed(run, "-n", "sft_v10", "--config", *free)


def test_rates_change_under_a_finished_run(run: Path) -> None:
    """Steps 1 to 4 stay and are verified anew; 5 and 6 have the new rates."""
    rates = "train={lr: 0.001, cond_lr: 0.0015"
    allowed = f"{rates}, reset_lr_on_resume: true, max_steps: 6}}"
    assert "train.reset_lr_on_resume: true" in refuse(run, "-n", "sft_v10", "--config", rates + "}")
    weights = contents(run, "train/step-2", "train/step-4", "exports")
    assert NOTHING in succeed(run, "-n", FINAL, "verify/step-4.json", "--config", allowed)
    (run / "verify/step-4.json").unlink()
    succeed(run, "verify/step-4.json", "verify/step-6.json", "--config", allowed)
    assert contents(run, "train/step-2", "train/step-4", "exports").items() >= weights.items()
    told = [read_json(run / f"verify/step-{step}.json")["metadata"] for step in (4, 6)]
    assert "lr_changes" not in told[0]
    change = {"step": 5, "lr": 0.001, "cond_lr": 0.0015}
    assert json.loads(told[1]["lr_changes"]) == [change]
    rows = read_csv(run / "train/train_log.csv")[3:]
    logged = [(float(row["lr"]), float(row["cond_lr"])) for row in rows]
    assert logged == [(0.003, 0.003), (0.001, 0.0015), (0.001, 0.0015)]


def test_editing_a_comment_in_a_module_reruns_nothing(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "repository"
    copy.mkdir()
    shutil.copy(ROOT / "Snakefile", copy)
    for name in ("rules", "config", "profiles", "docs", "workflow_scripts", "refs"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, copy / name)
    package = copy / "workflow_scripts/gc25d"
    for edited in (copy / "Snakefile", *copy.glob("rules/*.smk"), *package.rglob("*.py")):
        edited.write_text(edited.read_text() + "# an edit\n")
    env = {"PYTHONPATH": str(package.parent)}
    where = [sys.executable, "-c", "import gc25d; print(gc25d.__file__)"]
    found = subprocess.run(
        where, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()) == package / "__init__.py"
    arguments = ("--snakefile", str(copy / "Snakefile"), "-n", "sft_v10")
    assert NOTHING in succeed(run, *arguments, env=env)
    # The copy is what the dry run reads: another version in it reruns the step.
    module = package / "settings/steps.py"
    evaluation = module.read_text().split("class EvalStep")
    evaluation[1] = re.sub(r"version: int = \d+", "version: int = 99", evaluation[1], count=1)
    module.write_text("class EvalStep".join(evaluation))
    assert jobs(run, *arguments[:2], "sft_v10", env=env)["evaluate_checkpoint"] == 1


def test_another_learning_rate_is_refused_and_its_revert_is_free(run: Path) -> None:
    before = contents(run, "train", "exports", "eval")
    for dry in ([], ["-n"]):
        said = refuse(run, *dry, "sft_v10", "--config", "train={lr: 0.5}")
        assert "train.lr is 0.5, the run was started with 0.003" in said
        assert "--directory" in said
        assert "gc25d.steps.restart" in said
    assert contents(run, "train", "exports", "eval") == before
    assert NOTHING in succeed(run, "-n", "sft_v10")


def test_data_that_changed_under_a_run_is_refused_and_nothing_is_lost(run: Path) -> None:
    chain = contents(run, "train/step-2", "train/step-4", "train/states", "exports", "eval/step-4")
    fewer = ("--config", "prep={limit: 5}")
    assert jobs(run, "sft_v10", *fewer)["build_index"] == 1
    said = refuse(run, "sft_v10", *fewer)
    assert "data fingerprint is" in said
    assert "the run was started with" in said
    assert (
        contents(run, "train/step-2", "train/step-4", "train/states", "exports", "eval/step-4")
        == chain
    )
    succeed(run, "sft_v10")
    after = contents(run, "train/step-2", "train/step-4", "train/states", "exports")
    assert after == {k: v for k, v in chain.items() if not k.startswith("eval")}


def test_a_longer_run_continues_the_chain(run: Path) -> None:
    longer = ("--config", "train={max_steps: 5}")
    planned = jobs(run, "sft_v10", *longer)
    assert planned["train_segment"] == 1
    assert "capture_run" not in planned
    succeed(run, "train/step-5/weights.safetensors", *longer)
    steps = [row["step"] for row in read_csv(run / "train/train_log.csv")]
    assert steps == list("12345")


def test_a_step_asked_for_later_is_trained_aside(run: Path) -> None:
    chain = contents(run, "train/step-4", "train/states", "train/tensorboard")
    log = digest_file(run / "train/train_log.csv")
    succeed(run, "eval/step-3/metrics.json")
    assert contents(run, "train/step-4", "train/states", "train/tensorboard") == chain
    assert digest_file(run / "train/train_log.csv") == log
    assert read_json(run / "eval/step-3/metrics.json")["step"] == 3
    assert NOTHING in succeed(run, "sft_v10")


def test_base_weights_are_evaluated_alike(run: Path) -> None:
    succeed(run, "eval/base/metrics.json")
    assert read_json(run / "eval/base/metrics.json")["step"] == 0


def test_an_early_step_trains_only_that_far(finished: Path, tmp_path: Path) -> None:
    for part in ("raw", "data"):
        shutil.copytree(finished / part, tmp_path / part)
    succeed(tmp_path, "eval/step-1/metrics.json")
    assert read_json(tmp_path / "verify/step-1.json")["metadata"]["step"] == "1"
    assert [row["step"] for row in read_csv(tmp_path / "train/train_log.csv")] == ["1"]
    assert [p.name for p in (tmp_path / "train").glob("step-*")] == ["step-1"]


def test_a_verified_export_is_written_for_other_programs(run: Path) -> None:
    folders = ("exports/step-4/native/", "exports/step-4/diffusers/")
    assert jobs(run, *folders) == {"export_layout": 2, "total": 2}
    succeed(run, *folders)
    exported = read_tensors(run / FINAL)
    for name in folders:
        shapes = base_shapes(run / name)
        assert shapes == {key: tuple(tensor.shape) for key, tensor in exported.items()}
    assert NOTHING in succeed(run, *folders)


def test_the_report_is_one_page_with_curves_and_videos(run: Path) -> None:
    executable = Path(sys.executable).with_name("snakemake")
    command = [str(executable), "--directory", str(run), "--configfile", str(SMALL)]
    # As typed: without --cores.
    subprocess.run([*command, "--report", "report.html", "sft_v10"], cwd=ROOT, check=True)
    page = (run / "report.html").read_text()
    for name in ("curves.png", "coverage.png", "overlay.png", "sheet.png", "scores.png", ".mp4"):
        assert name in page


def test_a_restart_is_explicit_and_keeps_the_old_run(run: Path) -> None:
    old = contents(run, "train", "exports")
    command = [sys.executable, "-m", "gc25d.steps.restart", "--directory", str(run)]
    subprocess.run(command, check=True)
    (aside,) = (run / "previous").iterdir()
    assert contents(aside, "train", "exports") == old
    assert jobs(run, "sft_v10", "--config", "train={lr: 0.5}")["train_segment"] == 2


@pytest.mark.parametrize(
    "target",
    [
        *("eval/step-0/metrics.json", "eval/step-01/metrics.json", "eval/last/metrics.json"),
        *("data/other/READY", "x/y", "raw/vizdoom/castle/run-000/meta.json", "refs/l40s.json"),
        *("raw/vizdoom/deadly_corridor/run-1/meta.json", "train/step-2/x/weights.safetensors"),
    ],
)
def test_mistyped_targets_are_errors(finished: Path, target: str) -> None:
    said = refuse(finished, "-n", target)
    assert f"{target} is no target: " in said
    if "eval" in target:
        assert "eval/step-4/metrics.json" in said


def test_references_of_another_device_are_refused_in_one_line(run: Path) -> None:
    said = refuse(run, "refs/L40S.json")
    lines = [line for line in said.splitlines() if "L40S" in line and "CPU" in line]
    assert len(lines) == 1
    assert not (run / "refs/L40S.json").exists()


def test_a_typo_in_the_settings_is_named_before_anything_starts(tmp_path: Path) -> None:
    said = refuse(tmp_path, "-n", "sft_v10", "--config", "train={lrr: 1}")
    assert "train.lrr is not a setting: did you mean train.lr?" in said
    assert list(tmp_path.glob("train*")) == []


def test_what_a_loader_would_lose_is_named_before_anything_starts(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("train: {lr: 0.5}\ntrain: {max_steps: 3}\n")
    said = refuse(tmp_path, "-n", "sft_v10", "--configfile", str(mine))
    assert f"{mine}, line 2: train stands twice, first in line 1" in said
    said = refuse(tmp_path, "-n", "sft_v10", "--config", "train={lr: 1, lr: 2}")
    assert "train.lr stands twice" in said
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["mine.yaml"]


def test_the_home_directory_gets_snakemakes_own_cache_at_most(tmp_path: Path) -> None:
    """docs/cluster.md: it is made before the rules are read, and XDG_CACHE_HOME moves it."""
    for name, env in (("plain", {}), ("moved", {"XDG_CACHE_HOME": str(tmp_path / "elsewhere")})):
        home, run = tmp_path / name, tmp_path / f"run-{name}"
        home.mkdir()
        target = run / "raw/vizdoom/deadly_corridor/run-000/meta.json"
        done = snakemake(run, str(target.relative_to(run)), env={"HOME": str(home), **env})
        assert done.returncode == 0, done.stdout
        assert target.exists()
        found = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
        assert {path for path in found if not path.startswith(".cache/snakemake/")} == set()
        assert (not list(home.iterdir())) == (name == "moved")


def test_the_cluster_profile_asks_for_nodes_gpus_and_time(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("snakemake_executor_plugin_slurm")
    cluster = "hardware={nodes: 2, gpus_per_node: 8, gpu_type: h200, train_hours: 6}"
    said = snakemake(
        tmp_path,
        *("-n", "--profile", str(ROOT / "profiles/slurm"), "sft_v10"),
        *("--config", cluster, "train={global_batch: 16}"),
    )
    assert said.returncode == 0, said.stdout
    (segment,) = [
        part
        for part in said.stdout.split("\nrule ")
        if part.startswith("train_segment") and "step=2" in part
    ]
    asked = segment.split("resources: ")[1].splitlines()[0].split(", ")
    assert {"nodes=2", "gpu=16", "runtime=360"} <= set(asked), asked
