"""The same captures give the same bytes: other process, hash seed, folder, file order, workers."""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from gc25d.files import digest_file
from gc25d.records import read_json, write_json
from gc25d.settings.loading import load_settings
from gc25d.steps import build_index, encode_text, prep_run
from gc25d.workflow.runs import dataset_root, raw_runs, settings_paths
from gc25d.workflow.settings_files import settings_contents

RUNS = 3
GEOMETRY = {"frames": 5, "height": 32, "width": 32}


def build(folder: Path, backwards: bool) -> None:
    """`folder`/captures → `folder`/data by the steps, over the runs as the pipeline finds them."""
    settings = load_settings(
        {
            "raw_root": str(folder / "captures"),
            "data_root": str(folder / "data"),
            "capture": {"source": "external"},
            "geometry": GEOMETRY,
            "prep": {"val_runs": ["maze__run-002"], "text": {"length": 16, "dim": 8}},
            "train": {"global_batch": 2},
        }
    )
    os.chdir(folder)
    contents = settings_contents(settings)
    for name, path in settings_paths(settings).items():
        if name in contents:
            write_json(path, contents[name])
    files, root = settings_paths(settings), dataset_root(settings)
    runs = list(raw_runs(settings).items())
    rows = []
    for run_id, raw in reversed(runs) if backwards else runs:
        rows.append(root / f"index/runs/{run_id}.jsonl")
        tensors = {kind: root / f"{kind}/{run_id}.safetensors" for kind in ("latents", "ids")}
        whose = {"run_id": run_id, "raw": raw, "workers": 2 if backwards else 0}
        whose["record"] = root / f"index/raw/{run_id}.json"
        prep_run.main(Namespace(settings=files["prep"], rows=rows[-1], **whose, **tensors))
    table = root / "text/table.safetensors"
    encode_text.main(Namespace(settings=files["text"], rows=rows, out=table))
    joined = {"clips": root / "index/clips.jsonl", "ready": root / "READY"}
    build_index.main(
        Namespace(settings=files["index"], rows=rows, table=table, root=root, **joined)
    )


def test_two_builds_are_equal_byte_for_byte(raw_run, tmp_path):
    built = []
    for name, order in (("one", range(RUNS)), ("the other", reversed(range(RUNS)))):
        folder = tmp_path / name
        for number in order:  # the order in which a folder lists its entries follows
            raw_run(folder / f"captures/day/maze/run-{number:03d}", seed=number)
        (folder / "captures/day/maze/run-001/meta.json").write_text("{")  # a failed run too
        backwards = "1" if name == "the other" else ""
        seed = {"PYTHONHASHSEED": str(len(name)), "OMP_NUM_THREADS": str(1 + bool(backwards))}
        subprocess.run(
            [sys.executable, __file__, str(folder), backwards],
            check=True,
            env={**os.environ, **seed},
        )
        # Records of raw files hold their times, which differ from one copy to the other.
        files = (p for p in (folder / "data").rglob("*") if p.is_file() and p.parent.name != "raw")
        built.append({str(p.relative_to(folder)): digest_file(p) for p in files})
    assert len(built[0]) == 3 * RUNS + 3 + 3  # a run's three; table, index, READY; three settings
    assert built[0] == built[1]
    assert list(read_json(folder / "data/gc25d_v10/READY")["failed_runs"]) == ["maze__run-001"]


if __name__ == "__main__":
    build(Path(sys.argv[1]), bool(sys.argv[2]))
