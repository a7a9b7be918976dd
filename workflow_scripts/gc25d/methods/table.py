"""The training method that a run's settings name, on its model."""

from typing import Any

import torch
from torch import nn

from gc25d.dataset.clips import ClipDataset
from gc25d.methods.base import TrainingMethod
from gc25d.methods.dfsft import DfsftMethod
from gc25d.methods.distill import DistillConfig
from gc25d.methods.dmd2 import Dmd2Method
from gc25d.methods.finetune import FinetuneMethod
from gc25d.methods.kd import KdMethod
from gc25d.methods.ode.paths import ode_cache, ode_plan
from gc25d.methods.roles import OptimizerConfig
from gc25d.methods.self_forcing import SelfForcingMethod
from gc25d.methods.teacher import build_teacher, teacher_guidance, teacher_path
from gc25d.model.wan.causal import CausalWanModel
from gc25d.settings.cells import check_cell
from gc25d.settings.steps import TrainStep


def build_method(settings: TrainStep, model: nn.Module, clips: ClipDataset) -> TrainingMethod:
    """The method of `train.method` with `model` as its student.

    Args:
        settings: what binds the run.
        model: the student's starting weights; a teacher and a critic are built beside it.
        clips: the training split: its empty prompt, and the clips that cached paths belong to.

    Raises:
        UserError: the method does not train this model (lists the legal pairs), or a teacher's
            weights or cached paths are missing or do not fit.
    """
    check_cell(settings.model.name, settings.train.method)
    seed, optimizer = settings.train.seed, student_optimizer(settings)
    path = student_path(settings)
    match settings.train.method:
        case "finetune":
            return FinetuneMethod(model, seed=seed, optimizer=optimizer, base_path=path)
        case "dfsft":
            size = settings.model.chunk_frames
            return DfsftMethod(
                model, seed=seed, chunk_frames=size, optimizer=optimizer, base_path=path
            )
        case "kd":
            return _kd(settings, model, clips)
        case "dmd2" | "self_forcing":
            return _distill(settings, model, clips)


def student_path(settings: TrainStep) -> str:
    """Where the student's starting weights lie, "" for a seed."""
    return settings.model.init_ckpt or settings.model.init_dir


def student_optimizer(settings: TrainStep) -> OptimizerConfig:
    """The student's AdamW."""
    train = settings.train
    low = train.master_weights != "fp32"
    return OptimizerConfig(train.lr, train.cond_lr, train.weight_decay, train.warmup_steps, low)


def critic_optimizer(settings: TrainStep) -> OptimizerConfig:
    """The critic's AdamW: one rate for all of it."""
    train, rate = settings.train, settings.train.distill.critic_lr
    low = train.master_weights != "fp32"
    return OptimizerConfig(rate, rate, train.weight_decay, train.warmup_steps, low)


def _kd(settings: TrainStep, model: nn.Module, clips: ClipDataset) -> KdMethod:
    cache = ode_cache(settings, clips)
    cache.check_complete()
    return KdMethod(
        model,
        cache,
        ode_plan(settings).student_timesteps,
        seed=settings.train.seed,
        chunk_frames=settings.model.chunk_frames if settings.model.name == "wan_causal" else None,
        optimizer=student_optimizer(settings),
        base_path=student_path(settings),
    )


def _distill(settings: TrainStep, model: nn.Module, clips: ClipDataset) -> TrainingMethod:
    distill, device = settings.train.distill, next(model.parameters()).device
    config = DistillConfig(
        distill.denoising_steps,
        distill.shift,
        distill.generator_update_interval,
        teacher_guidance(settings, clips),
    )
    teacher, critic = build_teacher(settings, device), build_teacher(settings, device)
    if settings.train.precision == "bf16":
        teacher.to(torch.bfloat16)  # never updated: half the memory
    if settings.train.master_weights == "bf16":
        critic.to(torch.bfloat16)
    arguments: dict[str, Any] = {
        "seed": settings.train.seed,
        "config": config,
        "optimizer": student_optimizer(settings),
        "critic_optimizer": critic_optimizer(settings),
        "base_paths": (student_path(settings), teacher_path(settings)),
    }
    if settings.train.method == "dmd2":
        return Dmd2Method(model, teacher, critic, **arguments)
    if not isinstance(model, CausalWanModel):
        raise TypeError(f"self_forcing needs a causal model, not a {type(model).__name__}")
    return SelfForcingMethod(model, teacher, critic, **arguments)
