"""Status 0 is a promise, whatever was done to the folder before: see `any_sequence.Run.ask`.

The rules, their input functions and `bind_run` are the real ones; the heavy steps are light
stand-ins (`stand_ins`), because what counts here is which jobs run. The real steps' own results
are tested elsewhere. A finished checkpoint, asked for by itself, stands for the data that its run
is bound to; exports, reports, scores and the main target are refused once the data changed.
"""

import importlib
import os
import random
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MAIN = "sft_v10"
SCORE = "eval/step-3/metrics.json"


@pytest.fixture(scope="module")
def sequence() -> ModuleType:
    """The module beside this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        return importlib.import_module("any_sequence")


@pytest.fixture(scope="module")
def finished(sequence: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run; GC25D_RULES names another checkout whose rules to try."""
    root = tmp_path_factory.mktemp("sequence")
    rules = Path(os.environ.get("GC25D_RULES", sequence.ROOT))
    run = sequence.Run(root / "run", sequence.install(root / "repository", rules))
    assert run.ask(MAIN) == 0, run.said
    return run


@pytest.fixture
def run(finished: Any, tmp_path: Path) -> Any:
    return finished.copy(tmp_path / "run")


def test_a_touched_capture_leaves_no_target_out(sequence: ModuleType, run: Any) -> None:
    (run.folder / sequence.FRAMES_TAR).touch()
    assert run.ask(SCORE) == 0
    assert [step for word, step in run.trained() if word == "start"] == [2, 4, 3]


def test_other_sampling_steps_and_a_touched_capture(sequence: ModuleType, run: Any) -> None:
    run.changes = {"evaluation": {"steps": 7}}
    (run.folder / sequence.FRAMES_TAR).touch()
    assert run.ask(MAIN) == 0


def test_a_deleted_ready_is_built_again(sequence: ModuleType, run: Any) -> None:
    (run.folder / sequence.DATA / "READY").unlink()
    assert run.ask(SCORE) == 0


@pytest.mark.parametrize("part", ["latents/*.safetensors", "index/clips.jsonl"])
def test_deleted_parts_of_the_data_are_missed(sequence: ModuleType, run: Any, part: str) -> None:
    next((run.folder / sequence.DATA).glob(part)).unlink()
    assert run.ask(SCORE) == 0
    assert list((run.folder / sequence.DATA).glob(part))


@pytest.mark.parametrize("part", ["latents/*.safetensors", "index/runs/*.jsonl", "text/table.*"])
def test_a_data_set_that_lacks_a_part_is_not_ready(
    sequence: ModuleType, run: Any, part: str
) -> None:
    """READY is newer than all else, as after an edit that failed to prepare and was taken back."""
    gone = next((run.folder / sequence.DATA).glob(part))
    gone.unlink()
    (run.folder / sequence.DATA / "READY").touch()
    assert run.ask(MAIN) == 0
    assert gone.exists()
    assert run.ask(MAIN) == 0
    assert "Nothing to be done" in run.said


@pytest.mark.parametrize(
    "name", ["exports/step-4.safetensors", *(f"eval/step-4/{n}" for n in ("sheet.png", "clips"))]
)
def test_the_main_target_misses_what_it_stands_for(run: Any, name: str) -> None:
    gone = run.folder / name
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    assert run.ask(MAIN) == 0
    assert gone.exists()


def test_a_copy_without_snakemakes_records(sequence: ModuleType, run: Any) -> None:
    shutil.rmtree(run.folder / ".snakemake")
    sequence.shuffle_times(run.folder, random.Random(5))
    assert run.ask(MAIN) == 0


def test_changed_data_are_refused_and_put_back(sequence: ModuleType, run: Any) -> None:
    tar = run.folder / sequence.FRAMES_TAR
    before = tar.read_bytes()
    tar.write_bytes(b"others")
    assert run.ask("eval/step-4/metrics.json") != 0
    assert "the run was started with" in run.said
    tar.write_bytes(before)
    assert run.ask(MAIN) == 0


@pytest.mark.parametrize("moved", [False, True])
def test_captures_with_old_times_are_noticed(sequence: ModuleType, run: Any, moved: bool) -> None:
    """Another file with an old time, and the first one moved back with its own."""
    tar = run.folder / sequence.FRAMES_TAR
    kept = tar.rename(run.folder / "kept.tar")
    tar.write_bytes(b"others")
    if not moved:
        os.utime(tar, (10**9, 10**9))
    assert run.ask(MAIN) == 1
    kept.rename(tar)
    assert run.ask(MAIN) == 0


@pytest.mark.parametrize("name", ["train/binding.json", "data/gc25d_v10/READY"])
@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_changed_data_are_refused_whatever_is_damaged(
    sequence: ModuleType, run: Any, name: str, content: str
) -> None:
    (run.folder / name).write_text(content)
    (run.folder / sequence.FRAMES_TAR).write_bytes(b"others")
    assert run.ask("eval/step-4/metrics.json") == 1
    assert "the run was started with" in run.said


def test_a_damaged_ready_is_made_again(sequence: ModuleType, run: Any) -> None:
    (run.folder / sequence.DATA / "READY").write_text("{}")
    assert run.ask(MAIN) == 0


def test_checkpoints_that_were_deleted_are_not_trained_again(run: Any) -> None:
    """To save space: training goes on from its state."""
    for step in (2, 4):
        shutil.rmtree(run.folder / f"train/step-{step}")
    run.changes = {"train": {"max_steps": 6}}
    assert run.ask(MAIN) == 0
    assert ("start", 2) not in run.trained()[2:]


def test_deleted_captures_are_made_again_for_what_shows_them(run: Any) -> None:
    shutil.rmtree(run.folder / "raw/vizdoom/deathmatch/run-001")
    assert run.call(MAIN) == 0
    assert "Nothing to be done" in run.said
    run.changes = {"evaluation": {"steps": 7}}
    assert run.call(MAIN) == 0
    assert run.ask(MAIN) == 0


@pytest.mark.parametrize("target", ["verify/step-4.json", "exports/step-4.safetensors", MAIN])
def test_changed_data_are_refused_each_time(sequence: ModuleType, run: Any, target: str) -> None:
    """Snakemake restores what a job updates with a new time, which made the second try succeed."""
    (run.folder / sequence.FRAMES_TAR).write_bytes(b"others")
    assert [run.ask(target) for _ in range(2)] == [1, 1]
    assert "the run was started with" in run.said


def test_a_run_that_lost_its_record_is_not_bound_anew(run: Any) -> None:
    record = run.bound()
    (run.folder / "train/run.json").unlink()
    run.changes = {"train": {"lr": 0.5}}
    assert run.call(MAIN) == 1
    assert "train.lr is 0.5, the run was started with" in run.said
    run.changes = {}
    (run.folder / "figures/overlay.png").unlink()
    assert run.call(MAIN, "-n") == 0
    assert run.bound() is None
    assert run.call(MAIN) == 0
    assert "train/run.json was gone: restored" in run.said
    assert run.bound() == record


def test_a_long_chain_is_not_queued_to_find_nothing_new(
    sequence: ModuleType, finished: Any, tmp_path: Path
) -> None:
    """Twenty checkpoints, written as a training leaves them; then every capture is touched."""
    run = finished.copy(tmp_path / "run")
    run.changes = {"train": {"max_steps": 40}}
    for path, content in run.fresh().items():
        if path.startswith(("train/s", "train/train_log", "exports/", "verify/", "eval/step-40")):
            file = run.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    for tar in run.folder.glob("raw/*/*/*/frames.tar"):
        tar.write_bytes(tar.read_bytes())
    (run.folder / sequence.DATA / "READY").unlink()
    assert run.ask(MAIN) == 0
    assert "build_index" in run.said
    assert "rule train_segment:" not in run.said


TARGETS = (
    *(MAIN, MAIN, "eval/step-2/metrics.json", SCORE, "exports/step-1.safetensors"),
    *("data/gc25d_v10/READY", "verify/step-4.json", "figures/curves.png", "figures/overlay.png"),
)
CHANGES: tuple[dict[str, Any], ...] = (
    *({"evaluation": {"steps": 7}}, {"prep": {"limit": 5}}, {"train": {"lr": 0.5}}),
    *({"train": {"max_steps": 6}}, {"train": {"checkpoint_every": 1}}),
    *({"train": {"log_every": 1, "workers": 1}}, {}, {}),
)
MADE = ("data", "train/step-*", "exports", "verify", "eval", "figures", "train/binding.json")


ACTIONS = (
    *("touch", "touch", "restore", "edit", "edit quietly", "delete", "delete"),
    *("change", "change", "copy", "kill"),
)


def made(folder: Path) -> list[Path]:
    """Files that a rule makes, settings and locks aside.

    What lies in a folder that is an output as a whole is left out: Snakemake knows the folder.
    """
    found = [p for pattern in MADE for top in folder.glob(pattern) for p in (top, *top.rglob("*"))]
    files = [p for p in found if p.is_file() and p.parent.name != "clips"]
    return sorted(p for p in files if p.suffix != ".lock")


def disturb(sequence: ModuleType, run: Any, original: Path, chance: random.Random) -> None:
    """Do one thing to the folder or the settings, and tell it."""
    captures = sorted(run.folder.glob("raw/*/*/*/*"))
    action = chance.choice(ACTIONS)
    named = ("restore", "edit", "edit quietly")
    path = chance.choice(captures if action in named else made(run.folder))
    if action in ("touch", "restore"):
        path = chance.choice([path, *captures]) if action == "touch" else path
        content = original / path.relative_to(run.folder)
        path.write_bytes(content.read_bytes() if path in captures else path.read_bytes())
    elif action == "edit":
        path.write_text(f"edited {chance.random()}")
    elif action == "edit quietly":  # as an archive is unpacked, with the times in it
        path.write_text(f"edited {chance.random()}")
        os.utime(path, (chance.randrange(10**9), chance.randrange(10**9)))
    elif action == "delete":
        path.unlink()
    elif action == "change":
        run.changes = chance.choice(CHANGES)
    elif action == "copy":
        # Times in disorder say nothing of what was edited before: only a current folder may.
        if run.ask(MAIN) == 0:
            shutil.rmtree(run.folder / ".snakemake")
            sequence.shuffle_times(run.folder, chance)
    else:
        run.kill(chance.choice(TARGETS), 1.0 + 2.5 * chance.random())
    told = {"change": str(run.changes), "copy": "", "kill": ""}
    run.story.append(f"{action} {told.get(action, path.relative_to(run.folder))}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_sequence(sequence: ModuleType, run: Any, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    original = tmp_path / "original"
    shutil.copytree(run.folder, original)
    for _ in range(6):
        for _ in range(chance.randint(1, 3)):
            disturb(sequence, run, original, chance)
        run.ask(chance.choice(TARGETS))
    run.changes = {}
    for path in original.glob("raw/*/*/*/*"):
        shutil.copyfile(path, run.folder / path.relative_to(original))
    assert run.ask(MAIN) == 0, run.tell("put back, it must succeed")
