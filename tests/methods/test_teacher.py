"""What identifies a teacher: the files that it is read from, and no others."""

from pathlib import Path

import pytest
import torch

from gc25d.errors import UserError
from gc25d.methods.teacher import build_teacher, teacher_digest
from gc25d.settings.steps import TrainStep
from gc25d.tensors import write_tensors
from small_step import small_step

NAME = "diffusion_pytorch_model.safetensors"


def settings(weights: Path) -> TrainStep:
    return small_step(train={"method": "kd", "teacher": {"weights": str(weights)}})


def digest(weights: Path) -> str:
    return teacher_digest(settings(weights))


def write(path: Path, value: float) -> None:
    path.parent.mkdir(exist_ok=True)
    write_tensors(path, {"weight": torch.full((2,), value)}, {})


def test_of_a_pipeline_only_the_transformer_counts(tmp_path: Path) -> None:
    """Its autoencoder's file has the same name and comes later in the alphabet."""
    transformer, autoencoder = (tmp_path / part / NAME for part in ("transformer", "vae"))
    write(transformer, 1.0)
    write(autoencoder, 1.0)
    before = digest(tmp_path)
    write(autoencoder, 2.0)
    assert digest(tmp_path) == before
    write(transformer, 2.0)
    assert digest(tmp_path) != before


def test_a_file_is_the_same_teacher_alone_and_in_a_folder(tmp_path: Path) -> None:
    write(tmp_path / NAME, 1.0)
    assert digest(tmp_path) == digest(tmp_path / NAME)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(UserError, match=path.name):
            digest(path)


def test_a_causal_export_is_no_teacher(tmp_path: Path) -> None:
    """Its tensors are those of `wan`; only its metadata says how they were trained."""
    file = tmp_path / "student.safetensors"
    write_tensors(file, {"weight": torch.ones(2)}, {"model": "wan_causal", "vocab": "parts"})
    with pytest.raises(UserError, match=r"student\.safetensors is an export of wan_causal"):
        build_teacher(settings(file), torch.device("cpu"))
