"""The export: bf16 tensors under native names, and metadata that says where they come from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gc25d import __version__
from gc25d.errors import UserError
from gc25d.records import to_json
from gc25d.settings.steps import TrainStep
from gc25d.tensors import read_tensors

ARM = "gc25d"
FORMAT = "gc25d"
FORMAT_VERSION = "2"
"""Of what is ours in the metadata; files of before say `gc25d-1` under `format`."""
CONDITION = "gc_sem_cond"
CONDITION_INPUT = "ids"
"""What steers the condition: the map of semantic ids."""
STAGES = {("finetune", "wan"): "sft_bidirectional"}
"""(method, model) → the stage's name where it is not the method's."""
METADATA_KEYS = (
    *("arm", "format", "gc25d_format", "sem_cond", "mask_channel", "vocab", "data"),
    *("data_root", "data_fingerprint", "step", "stage", "cond_type", "cond_key"),
    *("text_dropout", "cond_dropout", "mask_p", "lr", "cond_lr", "weight_decay"),
    *("warmup_steps", "first_frame_cond", "seed", "init_ckpt", "resumed_from", "resumed_step"),
    *("model_dir", "model", "size", "text_dim", "chunk_frames", "trainer", "tensors_sha256"),
)
"""What every export says of itself."""


def export_metadata(
    settings: TrainStep,
    *,
    step: int,
    resumed_from: str,
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
    give them. An `average` of the weights says so by one key more, `ema`: its decay. Rates that
    changed under the run (train.reset_lr_on_resume) stand in `lr_changes`; `lr` and `cond_lr` are
    the first ones.

    Args:
        settings: of the run.
        step: optimizer steps behind the weights, 0 for the start.
        resumed_from: the checkpoint from which their segment began, "" for the start.
        resumed_step: its step.
        dataset: name of the data set.
        data_root: folder of the data sets, as the settings give it.
        data_fingerprint: of the data that the run is bound to.
        tensors_sha256: digest of the tensors.
        average: whether the weights are their moving average.
        lr_changes: of done.json; the value is JSON.
    """
    train, samples, model = settings.train, settings.samples, settings.model
    values: dict[str, str | float | bool] = {
        "arm": ARM,
        "format": FORMAT,
        "gc25d_format": FORMAT_VERSION,
        "sem_cond": CONDITION,
        "mask_channel": False,
        "vocab": model.vocab,
        "data": dataset,
        "data_root": data_root,
        "data_fingerprint": data_fingerprint,
        "step": step,
        "stage": STAGES.get((train.method, model.name), train.method),
        "cond_type": CONDITION_INPUT,
        "cond_key": CONDITION_INPUT,
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
        "resumed_from": resumed_from,
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
    return {key: str(value) for key, value in (values | averaged | changed).items()}


def training_weights(path: Path) -> dict[str, Tensor]:
    """The bf16 weights of a checkpoint, memory-mapped.

    Raises:
        UserError: a tensor is not bf16.
    """
    tensors = read_tensors(path)
    wrong = [name for name, tensor in tensors.items() if tensor.dtype != torch.bfloat16]
    if wrong:
        raise UserError(f"{path}: {wrong[0]} is {tensors[wrong[0]].dtype}, expected bfloat16")
    return tensors


def check_finite(source: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that hold NaN or an infinity.

    Raises:
        UserError: names `source` and the first such tensor.
    """
    for name, tensor in sorted(tensors.items()):
        if not tensor.isfinite().all():
            raise UserError(
                f"{source}: tensor {name} holds values that are not finite, nothing was exported: "
                "take an earlier step or other starting weights"
            )
