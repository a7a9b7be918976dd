"""A run is bound to the content of the files that its settings name."""

import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.records import digest_json, read_json, to_json, write_json
from gc25d.settings.contents import named_contents
from gc25d.settings.loading import load_settings
from gc25d.settings.steps import step_json, step_settings
from gc25d.steps import bind_run
from gc25d.workflow import kept_contents, settings_files
from gc25d.workflow.binding import RUN_RECORD
from gc25d.workflow.runs import raw_runs, settings_paths

ROOT = Path(__file__).parents[2]
USED = {
    "prep": {
        "codec": "wan_vae",
        "codec_dir": "vae",
        "text": {"encoder": "umt5", "dir": "text"},
    },
    "train": {"method": "dmd2", "teacher": {"weights": "teacher.safetensors"}},
    "model": {"init_dir": "base"},
    "regression": {"init_from": "base"},
}
FILES = (
    *("vae/config.json", "vae/diffusion_pytorch_model.safetensors"),
    *("text/config.json", "text/model.safetensors", "text/tokenizer.json"),
    *("base/w.safetensors", "teacher.safetensors"),
)
SETTINGS = Path("train/settings.json")
BINDING = Path("train/binding.json")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name)
    write_json(Path("READY"), {"fingerprint": "f"})


def used(**changes: dict) -> Any:
    return load_settings({key: {**value, **changes.get(key, {})} for key, value in USED.items()})


def parse(**changes: dict) -> tuple[set[str], str]:
    """What the rules do: the settings files that are written anew, and what is warned of."""
    settings = used(**changes)
    named, _ = named_contents(settings, print)
    contents = settings_files.settings_contents(settings, named)
    sources = settings_files.write_sources(settings, contents, Path("parse-time"))
    written = set()
    for name, source in sources.items():
        path = settings_paths(settings)[name]
        if not path.exists() or source.stat().st_mtime > path.stat().st_mtime:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
            written.add(name)
    return written, kept_contents.unknown_contents(settings, contents)


def bind() -> dict[str, Any]:
    """The rule bind_run."""
    bind_run.main(
        Namespace(settings=SETTINGS, ready=Path("READY"), dataset="gc25d_v10", out=BINDING)
    )
    binding: dict[str, Any] = read_json(BINDING)
    return binding


def refused(**changes: dict) -> str:
    before = {path: path.read_bytes() for path in Path().rglob("settings/*.json")}
    with pytest.raises(UserError) as error:
        parse(**changes)
    assert before == {path: path.read_bytes() for path in Path().rglob("settings/*.json")}
    return str(error.value)


def made_before_contents() -> None:
    """The files of a run and its data that were begun without contents."""
    settings = used()
    for name, step in step_settings(settings, tuple(raw_runs(settings))).items():
        value = step_json(step)
        assert "contents" not in value
        write_json(settings_paths(settings)[name], value)
    began = read_json(SETTINGS)
    write_json(RUN_RECORD, {"dataset": "gc25d_v10", "data_fingerprint": "f", "settings": began})
    write_json(
        BINDING,
        {
            "dataset": "gc25d_v10",
            "data_fingerprint": "f",
            "settings_sha256": digest_json(began),
        },
    )


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ("base/w.safetensors", "model.init_dir: w.safetensors"),
        ("teacher.safetensors", "train.teacher.weights: teacher.safetensors"),
        ("vae/config.json", "prep.codec_dir: config.json"),
        ("text/tokenizer.json", "prep.text.dir: tokenizer.json"),
    ],
)
def test_a_replaced_file_is_refused_like_a_changed_setting(file: str, setting: str) -> None:
    parse()
    bind()
    old, digest = Path(file).read_text(), digest_file(Path(file))
    Path(file).write_text("x" * len(old))
    said = refused()
    assert said.startswith(
        f"{setting} is SHA-256 {digest_file(Path(file))[:12]}, "
        f"the run was started with SHA-256 {digest[:12]}. Nothing was started. "
        "Put the old value or file back, or train elsewhere with --directory"
    )
    assert "gc25d.steps.restart" in said
    Path(file).write_text(old)
    assert parse() == (set(), "")


def test_a_replaced_checkpoint_of_a_warm_start_is_refused() -> None:
    start = {"init_dir": "", "init_ckpt": "teacher.safetensors"}
    teacher = {"teacher": {"weights": "base"}}
    parse(model=start, train=teacher)
    bind()
    Path("teacher.safetensors").write_text("another")
    assert "model.init_ckpt: teacher.safetensors is SHA-256" in refused(model=start, train=teacher)


def test_a_file_that_came_or_went_is_named() -> None:
    parse()
    bind()
    Path("text/added.model").write_text("words")
    assert "prep.text.dir: added.model is SHA-256 " in (said := refused())
    assert "the run was started with not there" in said
    Path("text/added.model").unlink()
    Path("vae/config.json").unlink()
    assert "prep.codec_dir: config.json is not there, the run was" in refused()


def test_the_binding_holds_the_contents() -> None:
    parse()
    binding = bind()
    assert binding["contents"] == {
        setting: {file: digest_file(Path(folder) / file) for file in files}
        for setting, folder, files in (
            ("prep.codec_dir", "vae", ("config.json", "diffusion_pytorch_model.safetensors")),
            ("prep.text.dir", "text", ("config.json", "model.safetensors", "tokenizer.json")),
            ("model.init_dir", "base", ("w.safetensors",)),
            ("train.teacher.weights", "", ("teacher.safetensors",)),
        )
    }
    assert binding["settings_sha256"] == digest_json(read_json(SETTINGS))


def test_binding_holds_against_a_file_replaced_between_start_and_binding() -> None:
    parse()
    bind()
    changed = read_json(SETTINGS)
    changed["contents"]["model.init_dir"]["w.safetensors"] = "0" * 64
    write_json(SETTINGS, changed)
    with pytest.raises(UserError, match=r"model.init_dir: w.safetensors is SHA-256 000000000000"):
        bind()


def test_equal_content_stops_nothing() -> None:
    """Touched, copied back, or linked to from elsewhere."""
    parse()
    binding = bind()
    later = time.time() + 60
    for name in FILES:
        os.utime(name, (later, later))
    assert parse() == (set(), "")
    for name in ("vae", "text", "base", "teacher.safetensors"):
        Path(name).rename(f"moved-{name}")
        Path(name).symlink_to(f"moved-{name}")
    assert parse() == (set(), "")
    assert bind() == binding


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("vae/config.json", {"prep", "eval", "train"}),
        ("text/tokenizer.json", {"text", "train"}),
        ("base/w.safetensors", {"train", "regression"}),
    ],
)
def test_without_a_run_what_reads_a_replaced_file_is_made_again(
    file: str, changed: set[str]
) -> None:
    parse()
    Path(file).write_text("another")
    assert parse() == (changed, "")
    assert parse() == (set(), "")


def test_a_run_from_before_goes_on_and_says_so() -> None:
    made_before_contents()
    binding = BINDING.read_bytes()
    written, told = parse()
    assert written == {"regression"}  # its code is another
    assert told == (
        "begun before the content of files was kept: data/gc25d_v10/settings/prep.json "
        "(prep.codec_dir), data/gc25d_v10/settings/text.json (prep.text.dir), eval/settings.json "
        "(prep.codec_dir), train/run.json (model.init_dir), train/run.json "
        "(train.teacher.weights); it goes on, and a file replaced since then is not noticed"
    )
    bind()
    assert BINDING.read_bytes() == binding
    said = refused(train={"lr": 0.5}, model={"init_dir": ""})
    assert "train.lr is 0.5, the run was started with 0.003" in said
    assert "model.init_dir is '', the run was started with 'base'" in said


def test_a_new_run_on_data_from_before_is_bound_to_what_it_reads_itself() -> None:
    made_before_contents()
    shutil.rmtree("train")
    _, told = parse()
    assert "prep.json (prep.codec_dir)" in told
    assert "train" not in told
    assert bind()["contents"].keys() == {"model.init_dir", "train.teacher.weights"}
    (Path("data") / "gc25d_v10/settings/prep.json").unlink()
    assert parse()[0] == {"prep"}  # made again, and the run goes on if they are equal


def test_files_that_are_needed_no_more_may_go() -> None:
    parse()
    bind()
    for name in ("vae", "text", "base"):
        shutil.rmtree(name)
    assert parse() == (set(), "")
    Path("text").mkdir()  # of a disk that is not mounted
    assert parse() == (set(), "")
    made_before_contents()
    assert parse()[0] == {"regression"}


@pytest.mark.parametrize(
    ("gone", "setting"),
    [
        ("vae", "prep.codec_dir"),
        ("text", "prep.text.dir"),
        ("base", "model.init_dir"),
        ("teacher.safetensors", "train.teacher.weights"),
    ],
)
def test_what_is_missing_is_named_before_anything_starts(gone: str, setting: str) -> None:
    Path(gone).rename("elsewhere")
    assert f"{setting} {gone}: no weights there: mount or restore them" in refused()


def test_base_weights_of_the_regression_alone_may_be_missing() -> None:
    """It is measured on request, and says so itself."""
    assert parse(regression={"init_from": "gone"})[1] == ""
    assert "contents" not in read_json(Path("regression/settings.json"))


def test_settings_without_such_files_are_what_they_were() -> None:
    """To the byte: a run and data of before are known by them."""
    settings = load_settings({})
    assert named_contents(settings, print) == ({}, {})
    contents = settings_files.settings_contents(settings, {})
    assert all("contents" not in step for step in contents.values())
    for name, step in step_settings(settings, tuple(raw_runs(settings))).items():
        if name != "regression":
            assert to_json(contents[name]) == to_json(step_json(step))


def test_a_dry_run_remembers_nothing_and_a_run_does() -> None:
    """By Snakemake itself; and what was replaced since then is refused in a dry run."""
    config = {"cache_root": "cache", "model": {"init_dir": "base"}}
    write_json(Path("mine.json"), config)
    target = [str(SETTINGS), "--cores", "1", "--quiet", "--configfile", "mine.json"]
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), *target]

    def snakemake(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr

    before = set(Path().iterdir())
    assert snakemake("-n")[0] == 0
    assert set(Path().iterdir()) <= before | {Path(".snakemake")}
    status, said = snakemake()
    assert status == 0, said
    assert list(read_json(Path("cache/digests.json"))) == [
        str(Path("base/w.safetensors").resolve())
    ]
    bind()
    Path("base/w.safetensors").write_text("another")
    status, said = snakemake("-n")
    assert status != 0
    assert "model.init_dir: w.safetensors is SHA-256" in said
    assert "Traceback" not in said
