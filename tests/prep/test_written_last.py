"""The file that says that a step's work is done is written after all that it speaks for."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gc25d.records import read_json, read_jsonl, write_json
from gc25d.steps import build_index, encode_text, prep_run

RUNS = tuple(f"maze__run-{number:03d}" for number in range(2))
GEOMETRY = {"frames": 5, "height": 32, "width": 32}
SETTINGS = {
    "prep": {"geometry": GEOMETRY, "codec": "dct", "codec_dir": ""},
    "text": {"text": {"encoder": "bytes", "dir": "", "length": 16, "dim": 8}},
    "index": {
        **{"geometry": GEOMETRY, "val_runs": RUNS[1:], "buried": [], "limit": 0},
        **{"limit_seed": 0, "global_batch": 1, "grad_accum": 1},
    },
}


def written(events: list[Any]) -> list[str]:
    """Names that files got, in order."""
    return [event.to.name for event in events if event.kind == "rename"]


@pytest.fixture
def root(tmp_path: Path, raw_run: Callable[..., Path]) -> Path:
    """Settings and two raw runs."""
    for name, content in SETTINGS.items():
        write_json(tmp_path / f"{name}.json", content)
    for seed, run_id in enumerate(RUNS):
        raw_run(tmp_path / "raw" / run_id, seed)
    return tmp_path


def prepare(root: Path, run_id: str) -> Path:
    rows = root / f"index/runs/{run_id}.jsonl"
    prep_run.main(
        Namespace(
            workers=0,
            settings=root / "prep.json",
            raw=root / "raw" / run_id,
            run_id=run_id,
            latents=root / f"latents/{run_id}.safetensors",
            ids=root / f"ids/{run_id}.safetensors",
            rows=rows,
            record=root / f"index/raw/{run_id}.json",
        )
    )
    return rows


def test_a_runs_rows_come_after_the_tensors_that_they_name(
    root: Path, disk_events: list[Any]
) -> None:
    prepare(root, RUNS[0])
    *tensors, last = written(disk_events)
    assert sorted(tensors) == [f"{RUNS[0]}.json", *[f"{RUNS[0]}.safetensors"] * 2]
    assert last == f"{RUNS[0]}.jsonl"


def test_ready_comes_after_the_index(root: Path, disk_events: list[Any]) -> None:
    rows = [prepare(root, run_id) for run_id in RUNS]
    table = root / "table.safetensors"
    encode_text.main(Namespace(settings=root / "text.json", rows=rows, out=table))
    disk_events.clear()
    clips, ready = root / "index/clips.jsonl", root / "READY"
    settings = root / "index.json"
    build_index.main(
        Namespace(settings=settings, rows=rows, table=table, root=root, clips=clips, ready=ready)
    )
    assert written(disk_events) == ["clips.jsonl", "READY"]
    assert len(list(read_jsonl(clips))) == read_json(ready)["counts"]["usable"] == 4
