"""Every way in which a written file can be wrong fails, naming the tensor."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gc25d import __version__
from gc25d.errors import UserError
from gc25d.export.read import load_model
from gc25d.export.verify import check_probe, expected_shapes, verify_file
from gc25d.export.write import METADATA_KEYS, export_metadata
from gc25d.files import digest_file
from gc25d.model.zoo import build_model, wan_config
from gc25d.tensors import digest_tensors, write_tensors
from gc25d.train.outputs.probe import probe
from small_step import small_step

CONFIG = wan_config("tiny", "parts", 8)
SETTINGS = small_step()
VICTIM = "blocks.0.self_attn.q.weight"
Change = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    model = build_model(CONFIG, seed=3, zero_head=False)
    assert model.gc_sem_cond is not None
    torch.nn.init.constant_(model.gc_sem_cond.proj_out.weight, 0.01)
    return {name: p.detach().bfloat16() for name, p in model.named_parameters()}


def metadata(weights: dict[str, Tensor], digest: str = "") -> dict[str, str]:
    return export_metadata(
        SETTINGS,
        step=7,
        resumed_from="",
        resumed_step=0,
        dataset="d",
        data_root="data",
        data_fingerprint="f",
        tensors_sha256=digest or digest_tensors(weights),
    )


@pytest.fixture
def export(tmp_path: Path, weights: dict[str, Tensor]) -> Path:
    path = tmp_path / "step-7.safetensors"
    write_tensors(path, weights, metadata(weights))
    return path


def verify(path: Path, weights: dict[str, Tensor]) -> dict:
    return verify_file(path, weights, CONFIG, lambda digest: metadata(weights, digest))


def test_a_good_file_passes_and_is_described(export: Path, weights: dict[str, Tensor]) -> None:
    report = verify(export, weights)
    assert report["sha256"] == digest_file(export)
    assert report["tensors"] == len(expected_shapes(CONFIG)) == 6 * 27 + 15 + 6
    assert export.stat().st_mode & 0o777 == 0o644
    header_dtypes = {tensor.dtype for tensor in load_file(export).values()}
    assert header_dtypes == {torch.bfloat16}


# Written by hand after the replaced system's checker and the defaults of the settings.
SAID = {
    "arm": "gc25d",
    "format": "gc25d",
    "gc25d_format": "2",
    "sem_cond": "gc_sem_cond",
    "mask_channel": "False",
    "vocab": "parts",
    "data": "d",
    "data_root": "data",
    "data_fingerprint": "f",
    "step": "7",
    "stage": "sft_bidirectional",
    "cond_type": "ids",
    "cond_key": "ids",
    "text_dropout": "0.1",
    "cond_dropout": "0.05",
    "mask_p": "0.5",
    "lr": "0.003",
    "cond_lr": "0.003",
    "weight_decay": "0.01",
    "warmup_steps": "30",
    "first_frame_cond": "True",
    "seed": "0",
    "init_ckpt": "",
    "resumed_from": "",
    "resumed_step": "0",
    "model_dir": "",
    "model": "wan",
    "size": "tiny",
    "text_dim": "8",
    "chunk_frames": "3",
    "trainer": f"gc25d {__version__}",
}


def test_metadata_is_what_the_replaced_systems_checker_expects(weights: dict[str, Tensor]) -> None:
    assert metadata(weights, "abc") == {**SAID, "tensors_sha256": "abc"}
    assert set(METADATA_KEYS) == {*SAID, "tensors_sha256"}


@pytest.mark.parametrize(
    ("method", "model", "stage"),
    [("dfsft", "wan_causal", "dfsft"), ("finetune", "wan_causal", "finetune"), ("kd", "wan", "kd")],
)
def test_other_stages_are_the_methods(method: str, model: str, stage: str) -> None:
    changed = SETTINGS.model_copy(
        update={
            "model": SETTINGS.model.model_copy(update={"name": model}),
            "train": SETTINGS.train.model_copy(update={"method": method}),
        }
    )
    said = export_metadata(
        changed,
        step=1,
        resumed_from="",
        resumed_step=0,
        dataset="d",
        data_root="data",
        data_fingerprint="f",
        tensors_sha256="",
    )
    assert said["stage"] == stage


def rename(tensors: dict[str, Tensor]) -> None:
    tensors[f"module.{VICTIM}"] = tensors.pop(VICTIM)


def zero(tensors: dict[str, Tensor]) -> None:
    tensors[VICTIM] = torch.zeros_like(tensors[VICTIM])


def poison(tensors: dict[str, Tensor]) -> None:
    tensors[VICTIM] = tensors[VICTIM].clone()
    tensors[VICTIM][0, 0] = float("nan")


def nudge(tensors: dict[str, Tensor]) -> None:
    tensors[VICTIM] = tensors[VICTIM].clone()
    tensors[VICTIM][0, 0] += 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop(VICTIM), f"tensor {VICTIM} is missing"),
        (lambda t: t.update(extra=torch.ones(1).bfloat16()), "tensor extra is not one of"),
        (rename, f"tensor {VICTIM} is missing"),
        (lambda t: t.update({VICTIM: t[VICTIM].float()}), f"{VICTIM} is torch.float32"),
        (lambda t: t.update({VICTIM: t[VICTIM][:1]}), f"{VICTIM} has shape"),
        (poison, f"{VICTIM} holds values that are not finite"),
        (zero, f"{VICTIM} is all zero, unlike the training's"),
        (nudge, f"{VICTIM} differs from the training's"),
    ],
)
def test_a_wrong_tensor_is_named(
    tmp_path: Path, weights: dict[str, Tensor], change: Change, said: str
) -> None:
    tensors = dict(weights)
    change(tensors)
    path = tmp_path / "bad.safetensors"
    save_file(tensors, path, metadata=metadata(weights))
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        verify(path, weights)


def test_cut_and_lengthened_files_are_refused(export: Path, weights: dict[str, Tensor]) -> None:
    content = export.read_bytes()
    for changed in (content[:-10], content + b"xx", content[:4], b"\xff" * 64):
        export.write_bytes(changed)
        with pytest.raises(UserError, match=r"step-7\.safetensors: .*export it anew"):
            verify(export, weights)


def test_a_zeroed_payload_is_refused(export: Path, weights: dict[str, Tensor]) -> None:
    content = export.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    export.write_bytes(content[:header] + bytes(len(content) - header))
    assert load_file(export)  # the library itself loads it without a word
    with pytest.raises(UserError, match=r"tensor blocks\.0\.\S+ is all zero, unlike"):
        verify(export, weights)


def test_what_training_left_at_zero_may_be_zero(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    trained = {**weights, VICTIM: torch.zeros_like(weights[VICTIM])}
    path = tmp_path / "step-7.safetensors"
    write_tensors(path, trained, metadata(trained))
    assert verify(path, trained)["tensors_sha256"] == digest_tensors(trained)


@pytest.mark.parametrize("key", [*SAID, "tensors_sha256"])
def test_every_string_of_the_metadata_is_checked(
    tmp_path: Path, weights: dict[str, Tensor], key: str
) -> None:
    path = tmp_path / "bad.safetensors"
    for value in ("other", ""):
        if SAID.get(key) != value:
            write_tensors(path, weights, {**metadata(weights), key: value})
            with pytest.raises(UserError, match=rf"metadata {key} is '{value}', expected '"):
                verify(path, weights)
    write_tensors(path, weights, {k: v for k, v in metadata(weights).items() if k != key})
    with pytest.raises(UserError, match=f"metadata {key} is missing"):
        verify(path, weights)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab": "ids"}, "metadata vocab is 'ids', expected 'parts'"),
        ({"step": "8"}, "metadata step is '8', expected '7'"),
        ({"format": "gc25d-1"}, "metadata format is 'gc25d-1', expected 'gc25d'"),
        ({"ema": "0.9"}, "metadata ema is not one of an export's"),
        ({"seed": None}, "metadata seed is missing"),
    ],
)
def test_wrong_metadata_is_named(
    tmp_path: Path, weights: dict[str, Tensor], change: dict[str, str | None], said: str
) -> None:
    values = {k: v for k, v in {**metadata(weights), **change}.items() if v is not None}
    path = tmp_path / "bad.safetensors"
    write_tensors(path, weights, values)
    with pytest.raises(UserError, match=said):
        verify(path, weights)


def test_forward_pass_of_the_file_is_the_models(export: Path, weights: dict[str, Tensor]) -> None:
    model = build_model(CONFIG, seed=9)
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    expected = probe(model, SETTINGS.geometry, 16)
    assert expected.abs().max() > 0
    loaded = probe(load_model(export, torch.device("cpu")), SETTINGS.geometry, 16)
    assert check_probe(export, loaded, expected) == 0
    with pytest.raises(UserError, match="forward pass differs"):
        check_probe(export, loaded * 1.01, expected)
    with pytest.raises(UserError, match="forward pass differs"):
        check_probe(export, loaded * float("nan"), expected)


def test_a_student_that_predicts_zero_may(export: Path) -> None:
    """One whose first step trains the critic alone, from a seed, has its head still at zero."""
    nothing = torch.zeros(1, 48, 3, 4, 4)
    assert check_probe(export, nothing, nothing) == 0
    for wrong in (nothing + 1e-3, nothing * float("nan")):
        with pytest.raises(UserError, match="forward pass differs"):
            check_probe(export, wrong, nothing)


def test_probe_reaches_every_tensor(weights: dict[str, Tensor]) -> None:
    model = build_model(CONFIG, seed=9)
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    base = probe(model, SETTINGS.geometry, 16)
    idle = []
    for name, parameter in model.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(
                0.1 * torch.randn(kept.shape, generator=torch.Generator().manual_seed(1))
            )
            if torch.equal(probe(model, SETTINGS.geometry, 16), base):
                idle.append(name)
            parameter.copy_(kept)
    assert idle == []
