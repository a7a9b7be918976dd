"""The three steps from raw runs to READY, as the pipeline calls them."""

import json
import shutil
import sys

import pytest
import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.steps import build_index, cli, encode_text, prep_run

GEOMETRY = {"frames": 5, "height": 32, "width": 32}
SETTINGS = {
    "prep": {"geometry": GEOMETRY, "codec": "dct", "codec_dir": ""},
    "text": {"text": {"encoder": "bytes", "dir": "", "length": 16, "dim": 8}},
    "index": {
        "geometry": GEOMETRY, "val_runs": ["maze__run-002"], "buried": [], "limit": 0,
        "limit_seed": 0, "global_batch": 4, "grad_accum": 2,
    },
}  # fmt: skip


def call(monkeypatch, step, **arguments):
    command = ["step"]
    for name, value in arguments.items():
        values = value if isinstance(value, list) else [value]
        command += [f"--{name.replace('_', '-')}", *map(str, values)]
    monkeypatch.setattr(sys, "argv", command)
    cli.run(step.main, step.parse_arguments())


@pytest.fixture
def build(tmp_path, raw_run, monkeypatch):
    """Builds a data set of three runs in a folder; settings may be changed first."""

    def build(name="data", raw="raw", **index):
        root = tmp_path / name
        root.mkdir()
        for step, content in SETTINGS.items():
            merged = {"version": 1, **content, **(index if step == "index" else {})}
            (root / f"{step}.json").write_text(json.dumps(merged))
        rows = []
        for number in range(3):
            run = f"maze__run-{number:03d}"
            folder = tmp_path / raw / f"run-{number:03d}"
            if not folder.exists():
                raw_run(folder, seed=number)
            rows.append(root / f"index/runs/{run}.jsonl")
            call(
                monkeypatch, prep_run, settings=root / "prep.json", raw=folder, run_id=run,
                latents=root / f"latents/{run}.safetensors", ids=root / f"ids/{run}.safetensors",
                rows=rows[-1], record=root / f"index/raw/{run}.json", log=root / f"logs/{run}.log",
            )  # fmt: skip
        table = root / "text/table.safetensors"
        call(monkeypatch, encode_text, settings=root / "text.json", rows=rows, out=table)
        call(
            monkeypatch, build_index, settings=root / "index.json", rows=rows, table=table,
            root=root, clips=root / "index/clips.jsonl", ready=root / "READY",
        )  # fmt: skip
        return root

    return build


def test_a_data_set_is_built_and_read(build):
    root = build()
    ready = json.loads((root / "READY").read_text())
    assert ready["counts"]["usable_train"] == 4
    assert ready["counts"]["usable_val"] == 2
    assert ready["geometry"] == GEOMETRY
    assert ready["steps_per_epoch"] == 1
    assert ready["failed_runs"] == {}
    train, val = ClipDataset(root, "train"), ClipDataset(root, "val")
    assert (len(train), len(val)) == (4, 2)
    sample = train.sample(0, 0)
    assert sample.input_latents.shape == (48, 2, 2, 2)
    assert sample.sem_ids.shape == (5, 32, 32)
    assert sample.context_ids.tolist() == [train.table.keys.index(k) for k in ("go", "stop")]
    masked = ClipDataset(root, "train", mask_p=1.0).sample(0, 0)
    assert 0 < masked.dropped["mask"] < 1


def test_a_limit_keeps_as_many_of_each_split(build):
    root = build(limit=1, global_batch=1, grad_accum=1)
    counts = json.loads((root / "READY").read_text())["counts"]
    assert (counts["train"], counts["val"], counts["usable"]) == (1, 1, 2)
    assert [len(ClipDataset(root, split)) for split in ("train", "val")] == [1, 1]


def test_each_runs_cropping_and_scaling_is_said(build, monkeypatch):
    """80x48 → 32x32: a square of 48 in the middle; in READY, but not in the fingerprint."""
    root = build()
    said = (
        "80x48 → 32x32: 16 columns are cropped on the left and as many on the right, the rest is "
        "scaled by 0.6667"
    )
    ready = json.loads((root / "READY").read_text())
    assert ready["pictures"] == {f"maze__run-{number:03d}": said for number in range(3)}
    log = (root / "logs/maze__run-001.log").read_text()
    assert f"run maze__run-001: pictures {said}" in log
    assert "WARNING" not in log
    for path in (root / "index/runs").iterdir():  # rows of before do not say
        path.write_text(path.read_text().replace(f'"pictures": "{said}", ', ""))
    call(
        monkeypatch, build_index, settings=root / "index.json",
        rows=sorted((root / "index/runs").iterdir()), table=root / "text/table.safetensors",
        root=root, clips=root / "index/clips.jsonl", ready=root / "READY",
    )  # fmt: skip
    assert json.loads((root / "READY").read_text()) == {**ready, "pictures": {}}


def test_cut_prompts_are_a_warning_and_a_fault_under_strict(build, monkeypatch, capsys):
    """The capture's prompts: "walk on" has 7 bytes, "stand still" 11."""
    monkeypatch.setitem(SETTINGS["text"]["text"], "length", 8)
    root = build()
    said = "text key 'stop': its prompt has 11 tokens and is cut to the first 8: raise"
    assert f"WARNING: faults (1): {said}" in capsys.readouterr().err
    assert json.loads((root / "READY").read_text())["faults"] == 1
    with pytest.raises(SystemExit):
        build("strict", strict=True)
    assert said in capsys.readouterr().err.partition("prep.strict allows none")[2]
    monkeypatch.setitem(SETTINGS["text"]["text"], "length", 11)
    build("long", strict=True)


def test_a_data_set_that_shares_another_s_runs_reads_them_there(build, tmp_path, monkeypatch):
    full, mini = build("full"), tmp_path / "mini"
    shutil.copytree(full / "text", mini / "text")
    call(
        monkeypatch, build_index, settings=full / "index.json",
        rows=sorted((full / "index/runs").iterdir()), table=mini / "text/table.safetensors",
        root=mini, clips=mini / "index/clips.jsonl", ready=mini / "READY",
    )  # fmt: skip
    assert {path.name for path in mini.iterdir()} == {"text", "index", "READY"}
    assert (mini / "READY").read_text() == (full / "READY").read_text()
    shared, own = ClipDataset(mini, "train"), ClipDataset(full, "train")
    assert shared.rows[0].latents == "../full/latents/maze__run-000.safetensors"
    assert own.rows[0].latents == "latents/maze__run-000.safetensors"
    assert torch.equal(shared.sample(0, 3).input_latents, own.sample(0, 3).input_latents)
    assert torch.equal(shared.sample(0, 3).sem_ids, own.sample(0, 3).sem_ids)


def test_the_fingerprint_does_not_depend_on_folders(build):
    fingerprints = [
        json.loads((root / "READY").read_text())["fingerprint"]
        for root in (build("one", "raw"), build("two", "other/raw"))
    ]
    assert fingerprints[0] == fingerprints[1]


def test_a_broken_run_is_left_out_and_reported(build, tmp_path, raw_run):
    folder = tmp_path / "raw/run-001"
    raw_run(folder, seed=1)
    (folder / "meta.json").write_text("{")
    root = build()
    ready = json.loads((root / "READY").read_text())
    assert list(ready["failed_runs"]) == ["maze__run-001"]
    assert ready["counts"]["usable_train"] == 2
    assert len(ClipDataset(root, "train")) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_runs": ["maze__run-02"]}, "maze__run-002"),
        ({"global_batch": 32, "grad_accum": 1}, "do not fill one round of 32"),
    ],
)
def test_faults_end_with_one_line_and_no_ready(build, tmp_path, capsys, change, message):
    with pytest.raises(SystemExit) as stopped:
        build(**change)
    assert stopped.value.code == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "data/READY").exists()
    assert not (tmp_path / "data/index/clips.jsonl").exists()


def test_a_file_that_lost_a_clip_is_named(build, tmp_path, monkeypatch, capsys):
    root = build()
    other = root / "latents/maze__run-001.safetensors"
    (root / "latents/maze__run-000.safetensors").write_bytes(other.read_bytes())
    with pytest.raises(SystemExit):
        call(
            monkeypatch, build_index, settings=root / "index.json",
            rows=sorted((root / "index/runs").iterdir()), table=root / "text/table.safetensors",
            root=root, clips=root / "index/clips.jsonl", ready=root / "READY",
        )  # fmt: skip
    assert "lacks maze__run-000__000000" in capsys.readouterr().err


def test_a_table_of_other_prompts_is_refused(build, tmp_path, monkeypatch, capsys, raw_run):
    root = build()
    rows = root / "index/runs/maze__run-000.jsonl"
    rows.write_text(rows.read_text().replace('"go"', '"run"'))
    with pytest.raises(SystemExit):
        call(
            monkeypatch, build_index, settings=root / "index.json",
            rows=sorted((root / "index/runs").iterdir()), table=root / "text/table.safetensors",
            root=root, clips=root / "index/clips.jsonl", ready=root / "READY",
        )  # fmt: skip
    assert "text key 'run' is not in the text table" in capsys.readouterr().err
