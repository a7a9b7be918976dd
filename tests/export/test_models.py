"""An export is read back as the model that it is, and predicts what the trained one did."""

import pytest
import torch
from torch import nn

from gc25d.errors import UserError
from gc25d.export.read import load_model
from gc25d.export.write import export_metadata
from gc25d.model.start import model_config, model_from_tensors, starting_model
from gc25d.model.zoo import build_model
from gc25d.settings.steps import TrainStep
from gc25d.tensors import digest_tensors, write_tensors
from gc25d.train.outputs.probe import probe
from small_step import small_step

CPU = torch.device("cpu")


def settings(name: str) -> TrainStep:
    return small_step(model={"name": name, "chunk_frames": 2})


@pytest.mark.parametrize("name", ["wan_causal", "matrixgame2", "hunyuan", "cosmos"])
def test_an_export_comes_back_as_its_own_model(name, tmp_path):
    run = settings(name)
    model = build_model(model_config(run), 3, zero_head=False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    weights = {n: p.detach().bfloat16() for n, p in model.named_parameters()}
    metadata = export_metadata(
        run,
        step=7,
        resumed_from="",
        resumed_step=0,
        dataset="d",
        data_root="data",
        data_fingerprint="f",
        tensors_sha256=digest_tensors(weights),
    )
    write_tensors(tmp_path / "step-7.safetensors", weights, metadata)
    loaded = load_model(tmp_path / "step-7.safetensors", CPU)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    trained = model_from_tensors(model_config(run), weights, CPU)
    expected = probe(trained, run.geometry, run.text_length)
    assert expected.abs().max() > 0
    assert torch.equal(probe(loaded, run.geometry, run.text_length), expected)


@pytest.fixture
def weights():
    model = build_model(model_config(settings("wan")), 3, zero_head=False)
    return {name: p.detach().bfloat16() for name, p in model.named_parameters()}


def metadata_of(weights):
    return export_metadata(
        settings("wan"),
        step=7,
        resumed_from="",
        resumed_step=0,
        dataset="d",
        data_root="data",
        data_fingerprint="f",
        tensors_sha256=digest_tensors(weights),
    )


def test_files_of_before_still_load(tmp_path, weights):
    """As the version before wrote their metadata; the model in them counts for itself."""
    before = {"format": "gc25d-1", "sem_cond": "true", "stage": "finetune", "mask_channel": "false"}
    before |= {"cond_type": "occupancy_4x4", "cond_key": "gc_sem_cond"}
    old = metadata_of(weights) | before
    del old["gc25d_format"]
    path = tmp_path / "old.safetensors"
    write_tensors(path, weights, old)
    warm = starting_model(model_config(settings("wan")), 0, "", str(path))
    for model in (load_model(path, CPU), warm):
        state = model.state_dict()
        assert all(torch.equal(state[name], weights[name].float()) for name in weights)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab": "colours"}, "names no vocab of parts, ids"),
        ({"size": None}, "describes no model .'size'"),
        ({"text_dim": "wide"}, "describes no model .*'wide'"),
    ],
)
def test_a_file_that_describes_no_model_is_refused(tmp_path, weights, change, said):
    values = {k: v for k, v in {**metadata_of(weights), **change}.items() if v is not None}
    path = tmp_path / "bad.safetensors"
    write_tensors(path, weights, values)
    with pytest.raises(UserError, match=said):
        load_model(path, CPU)
