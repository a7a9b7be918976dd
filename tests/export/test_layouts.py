"""Folders for other programs, written from a verified export and opened by them."""

import dataclasses
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gc25d.errors import UserError
from gc25d.export import layouts
from gc25d.files import digest_file
from gc25d.model.start import model_from_tensors, starting_model
from gc25d.model.zoo import build_model, named_config, wan_config
from gc25d.records import read_json, write_json
from gc25d.steps import export_layout
from gc25d.tensors import write_tensors

CPU = torch.device("cpu")
CONFIG = wan_config("tiny", "parts", 8)
METADATA = {"vocab": "parts", "model": "wan", "size": "tiny", "text_dim": "8", "chunk_frames": "3"}


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    model = build_model(CONFIG, 3, zero_head=False)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # nothing neutral, so that a tensor left out shows
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return {name: p.detach().bfloat16() for name, p in model.named_parameters()}


def arguments(folder: Path, weights: dict[str, Tensor], layout: str, **metadata: str) -> Namespace:
    """An export and the report of its verification."""
    export, report = folder / "step-7.safetensors", folder / "verify.json"
    write_tensors(export, weights, METADATA | metadata)
    write_json(report, {"sha256": digest_file(export)})
    out = folder / "step-7" / layout
    return Namespace(export=export, report=report, layout=layout, text_length=16, out=out)


@pytest.mark.parametrize("layout", ["native", "diffusers"])
def test_a_run_starts_from_either_folder(
    tmp_path: Path, weights: dict[str, Tensor], layout: str
) -> None:
    asked = arguments(tmp_path, weights, layout)
    export_layout.main(asked)
    start = starting_model(CONFIG, 0, str(asked.out), "").state_dict()
    assert start.keys() == weights.keys()
    assert all(torch.equal(start[name], weights[name].float()) for name in weights)


def test_diffusers_opens_its_folder_and_predicts_alike(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    """Its prediction is ours without the semantic condition, to 1e-5 of the largest value."""
    asked = arguments(tmp_path, weights, "diffusers")
    export_layout.main(asked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import WanTransformer3DModel

        peer, faults = WanTransformer3DModel.from_pretrained(
            asked.out, torch_dtype=torch.float32, output_loading_info=True
        )
    assert not any(faults.values()), faults
    plain = {n: t for n, t in weights.items() if not n.startswith("gc_sem_cond.")}
    ours = model_from_tensors(dataclasses.replace(CONFIG, vocab=None), plain, CPU)
    generator = torch.Generator().manual_seed(2)
    latents = torch.randn(1, 48, 3, 4, 4, generator=generator)
    prompts = torch.randn(1, 16, 8, generator=generator)
    times = torch.tensor([[0.0, 500.6, 500.6]])
    one = torch.zeros(1, 3, dtype=torch.long)
    with torch.no_grad():
        expected = peer(latents, times.repeat_interleave(4, 1), prompts, return_dict=False)[0]
        found = ours(latents, times, prompts, torch.tensor([16]), one, None).prediction
    assert expected.abs().max() > 0.1
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    beside = load_file(asked.out / "gc_sem_cond.safetensors")
    assert beside.keys() == weights.keys() - plain.keys()
    assert len(beside) == 6
    assert all(torch.equal(beside[name], weights[name]) for name in beside)


def test_native_shards_hold_every_tensor_under_its_own_name(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    asked = arguments(tmp_path, weights, "native")
    export_layout.main(asked)
    stored = load_file(asked.out / "diffusion_pytorch_model.safetensors")
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[n], t) and stored[n].dtype == t.dtype for n, t in weights.items())
    said = read_json(asked.out / "config.json")
    assert (said["_class_name"], said["model_type"]) == ("WanModel", "ti2v")
    assert (said["text_len"], said["text_dim"], said["dim"]) == (16, 8, 192)


def test_the_folder_of_before_is_replaced_as_a_whole(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    asked = arguments(tmp_path, weights, "native")
    stale = asked.out / "diffusion_pytorch_model-00001-of-00003.safetensors"
    stale.parent.mkdir(parents=True)
    stale.write_text("of another step")
    export_layout.main(asked)
    names = {"config.json", "diffusion_pytorch_model.safetensors"}
    assert {path.name for path in asked.out.iterdir()} == names
    assert [path.name for path in asked.out.parent.iterdir()] == ["native"]


def test_a_cut_write_leaves_the_folder_of_before(
    tmp_path: Path, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = arguments(tmp_path, weights, "diffusers")
    export_layout.main(asked)
    before = {path.name: digest_file(path) for path in asked.out.iterdir()}

    def write_some(tensors: object, config: object, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(layouts, "save_diffusers", write_some)
    with pytest.raises(OSError, match="No space left"):
        export_layout.main(asked)
    assert {path.name: digest_file(path) for path in asked.out.iterdir()} == before
    assert [path.name for path in asked.out.parent.iterdir()] == ["diffusers"]


def test_only_the_verified_file_is_written(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    asked = arguments(tmp_path, weights, "native")
    write_tensors(asked.export, {**weights, "head.head.bias": torch.ones(192).bfloat16()}, METADATA)
    with pytest.raises(UserError, match=r"step-7\.safetensors: its SHA-256 is .*verify\.json"):
        export_layout.main(asked)
    assert not asked.out.exists()


@pytest.mark.parametrize("name", ["matrixgame2", "cosmos"])
def test_models_that_the_layouts_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    model = build_model(named_config(name, "tiny", "parts", 8, 3), 0)
    theirs = {n: p.detach().bfloat16() for n, p in model.named_parameters()}
    asked = arguments(tmp_path, theirs, "diffusers", model=name)
    with pytest.raises(UserError, match="hold wan and wan_causal, not this model"):
        export_layout.main(asked)
    assert not asked.out.exists()


def test_a_causal_export_has_wans_layout(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    asked = arguments(tmp_path, weights, "native", model="wan_causal")
    export_layout.main(asked)
    assert (asked.out / "config.json").exists()
