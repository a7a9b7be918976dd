"""A segment's engine and training method, on the run's starting weights."""

from typing import cast

import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.methods.base import TrainingMethod
from gc25d.methods.table import build_method
from gc25d.model.execution import prepare_execution
from gc25d.model.interface import VideoModel
from gc25d.model.start import model_config, starting_model
from gc25d.settings.steps import TrainStep
from gc25d.settings.tree import Geometry
from gc25d.train.engine import Engine, PlainEngine
from gc25d.train.pace import Pace


def build_engine(settings: TrainStep, pace: Pace) -> Engine:
    """The engine of this process.

    Raises:
        UserError: the devices or the other processes are not what was asked for.
    """
    train = settings.train
    if pace.engine == "plain":
        return PlainEngine(train.precision, train.cpu_threads, gpu=pace.gpu, exact=pace.exact)
    from gc25d.train.zero.engine import ZeroEngine  # needs DeepSpeed and several seconds

    return ZeroEngine(
        train.precision,
        train.cpu_threads,
        train.global_batch,
        pace.micro_batch,
        gpu=pace.gpu,
        exact=pace.exact,
    )


def starting_method(
    settings: TrainStep, clips: ClipDataset, engine: Engine, pace: Pace
) -> TrainingMethod:
    """The run's training method on its starting weights, in the engine's hands."""
    start = settings.model
    model = starting_model(
        model_config(settings),
        settings.train.seed,
        start.init_dir,
        start.init_ckpt,
        engine.start_device,
    )
    if settings.train.master_weights == "bf16":
        model.to(torch.bfloat16)
    method = build_method(settings, model, clips)
    choose_execution(method, engine, settings.geometry, pace)
    engine.prepare(method)
    method.on_train_start()
    return method


def choose_execution(
    method: TrainingMethod, engine: Engine, geometry: Geometry, pace: Pace
) -> None:
    """Compile the method's networks and choose what they recompute, to fit the device.

    Raises:
        UserError: the training does not fit the GPU.
    """
    trained = [role.model for role in method.trained.values()]
    held = sum(p.numel() for network in trained for p in network.parameters())
    frozen = sum(
        p.numel() * p.element_size()
        for network in method.roles.values()
        if network not in trained
        for p in network.parameters()
    )
    for network in method.roles.values():
        prepare_execution(
            cast(VideoModel, network),
            compile_choice=pace.compile,
            recompute=pace.recompute,
            device=engine.device,
            # All losses are there before the first backward pass, with what each network keeps.
            tokens=pace.micro_batch * tokens_of_a_clip(geometry) * len(trained),
            state_bytes=engine.state_bytes(held) + frozen,
        )


def tokens_of_a_clip(geometry: Geometry) -> int:
    """Latent frames of 4 video frames (the first alone), tokens of 32 x 32 pixels."""
    latent_frames = (geometry.frames - 1) // 4 + 1
    return latent_frames * (geometry.height // 32) * (geometry.width // 32)
