"""What evaluations are tested on."""

import argparse

import pytest
import torch

from evaluation_set import RUNS, settings_of, write_raw
from gc25d.model.zoo import build_model, wan_config
from gc25d.records import read_json, write_json
from gc25d.regression.weights import randomise
from gc25d.settings.steps import step_json, step_settings
from gc25d.steps import build_index, encode_text, prep_run
from gc25d.tensors import write_tensors


@pytest.fixture(scope="package")
def root(tmp_path_factory):
    """A data set of three runs, and weights through which every input matters."""
    root = tmp_path_factory.mktemp("eval")
    for name, step in step_settings(settings_of({}), RUNS).items():
        write_json(root / f"settings/{name}.json", step_json(step))
    rows = []
    for seed, run_id in enumerate(RUNS):
        folder = root / "raw/sub" / run_id.replace("__", "/")
        write_raw(folder, seed)
        rows.append(root / f"data/index/runs/{run_id}.jsonl")
        prep_run.main(
            argparse.Namespace(
                workers=0,
                settings=root / "settings/prep.json",
                raw=folder,
                run_id=run_id,
                latents=root / f"data/latents/{run_id}.safetensors",
                ids=root / f"data/ids/{run_id}.safetensors",
                rows=rows[-1],
                record=root / f"data/index/raw/{run_id}.json",
            )
        )
    table = root / "data/text/table.safetensors"
    encode_text.main(argparse.Namespace(settings=root / "settings/text.json", rows=rows, out=table))
    build_index.main(
        argparse.Namespace(
            settings=root / "settings/index.json",
            rows=rows,
            table=table,
            root=root / "data",
            clips=root / "data/index/clips.jsonl",
            ready=root / "data/READY",
        )
    )
    model = build_model(wan_config("tiny", "parts", 16), 0)
    randomise(model, 0)
    weights = {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}
    fingerprint = read_json(root / "data/READY")["fingerprint"]
    metadata = {"vocab": "parts", "step": "7", "data_fingerprint": fingerprint}
    write_tensors(root / "step-7.safetensors", weights, metadata)
    return root
