"""The export: bf16 tensors under native names, and metadata that says where they come from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from gc25d import __version__
from gc25d.errors import UserError
from gc25d.records import to_json
from gc25d.step_settings import TrainStep
from gc25d.tensors import read_tensors

FORMAT = "gc25d-1"
CONDITION = "gc_sem_cond"
METADATA_KEYS = (
    *("arm", "format", "sem_cond", "mask_channel", "vocab", "data", "data_root"),
    *("data_fingerprint", "step", "stage", "cond_type", "cond_key", "text_dropout"),
    *("cond_dropout", "mask_p", "lr", "cond_lr", "weight_decay", "warmup_steps"),
    *("first_frame_cond", "seed", "init_ckpt", "resumed_from", "resumed_step", "model_dir"),
    *("model", "size", "text_dim", "chunk_frames", "trainer", "tensors_sha256"),
)
"""What every export says of itself."""


def export_metadata(
    settings: TrainStep,
    *,
    step: int,
    resumed_step: int,
    dataset: str,
    data_root: str,
    data_fingerprint: str,
    tensors_sha256: str,
    average: bool = False,
    lr_changes: Sequence[Mapping[str, float]] = (),
) -> dict[str, str]:
    """The metadata strings of an export.

    Nothing depends on the machine, the folder, the clock or on crashes: paths stand as the settings
    give them, and `resumed_from` names the chain's checkpoint before this one. An `average` of the
    weights says so by one key more, `ema`: its decay. Rates that changed under the run
    (train.reset_lr_on_resume) stand in `lr_changes`, JSON; `lr` and `cond_lr` are the first ones.
    """
    train, samples, model = settings.train, settings.samples, settings.model
    values: dict[str, str | float | bool] = {
        "arm": "gc25d",
        "format": FORMAT,
        "sem_cond": True,
        "mask_channel": False,
        "vocab": model.vocab,
        "data": dataset,
        "data_root": data_root,
        "data_fingerprint": data_fingerprint,
        "step": step,
        "stage": train.method,
        "cond_type": "occupancy_4x4",
        "cond_key": CONDITION,
        "text_dropout": samples.text_dropout,
        "cond_dropout": samples.cond_dropout,
        "mask_p": samples.mask.p,
        "lr": train.lr,
        "cond_lr": train.cond_lr,
        "weight_decay": train.weight_decay,
        "warmup_steps": train.warmup_steps,
        "first_frame_cond": True,
        "seed": train.seed,
        "init_ckpt": model.init_ckpt,
        "resumed_from": f"train/step-{resumed_step}" if resumed_step else "",
        "resumed_step": resumed_step,
        "model_dir": model.init_dir,
        "model": model.name,
        "size": model.size,
        "text_dim": settings.text_dim,
        "chunk_frames": model.chunk_frames,
        "trainer": f"gc25d {__version__}",
        "tensors_sha256": tensors_sha256,
    }
    averaged = {"ema": train.ema} if average else {}
    changed = {"lr_changes": to_json(list(lr_changes), indent=None)} if lr_changes else {}
    return {key: _string(value) for key, value in (values | averaged | changed).items()}


def _string(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def training_weights(path: Path) -> dict[str, torch.Tensor]:
    """The bf16 weights of a checkpoint, memory-mapped.

    Raises:
        UserError: a tensor is not bf16.
    """
    tensors = read_tensors(path)
    wrong = [name for name, tensor in tensors.items() if tensor.dtype != torch.bfloat16]
    if wrong:
        raise UserError(f"{path}: {wrong[0]} is {tensors[wrong[0]].dtype}, expected bfloat16")
    return tensors
