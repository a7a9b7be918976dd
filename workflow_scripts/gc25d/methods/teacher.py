"""The teacher that a run's settings name, and what identifies its weights."""

from pathlib import Path

import torch
from torch import nn

from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.model.start import starting_model
from gc25d.model.weights.files import base_files
from gc25d.model.zoo import wan_config
from gc25d.prep.text import TextTable
from gc25d.records import digest_json
from gc25d.sampling.guidance import Guidance, NullPrompt
from gc25d.settings.steps import TrainStep
from gc25d.tensors import read_metadata


def teacher_path(settings: TrainStep) -> str:
    """Where the teacher's weights lie: its own or the run's start; "" for a seed."""
    return settings.train.teacher.weights or settings.model.init_ckpt or settings.model.init_dir


def build_teacher(settings: TrainStep, device: torch.device) -> nn.Module:
    """A float32 `wan` model with the teacher's weights, also what a critic starts from.

    Raises:
        UserError: weights missing, misshapen, of another vocab, or of a causal model.
    """
    train, model = settings.train, settings.model
    size = model.size if train.teacher.size == "student" else train.teacher.size
    config = wan_config(size, model.vocab, settings.text_dim)
    path = teacher_path(settings)
    folder, file = (path, "") if path and Path(path).is_dir() else ("", path)
    try:
        if file:
            _refuse_other_model(Path(file))
        return starting_model(config, train.seed, folder, file, device)
    except UserError as error:
        raise UserError(f"the teacher of train.method {train.method}: {error}") from None


def _refuse_other_model(file: Path) -> None:
    """A causal export has the same tensors: seeing whole videos, it would teach nonsense."""
    name = read_metadata(file).get("model", "wan")
    if name != "wan":
        raise UserError(
            f"{file} is an export of {name}, expected wan: set train.teacher.weights to a wan "
            "export or to base weights"
        )


def teacher_digest(settings: TrainStep) -> str:
    """Digest of the weight files that a teacher reads, or of the seed and size that draw it.

    Raises:
        UserError: there are none.
    """
    path = teacher_path(settings)
    if not path:
        drawn = {"seed": settings.train.seed, "model": settings.model.model_dump(mode="json")}
        return digest_json(drawn)
    return digest_json({file.name: digest_file(file) for file in base_files(Path(path))})


def teacher_guidance(settings: TrainStep, clips: ClipDataset) -> Guidance:
    """The teacher's guidance, with the data set's empty prompt."""
    teacher = settings.train.teacher
    return Guidance(teacher.cfg, teacher.sem_cfg, null_prompt(clips.table))


def null_prompt(table: TextTable) -> NullPrompt:
    """The empty prompt of a text table."""
    return NullPrompt(table.embeddings[table.null_id], int(table.lengths[table.null_id]))
