"""Make the cached paths of a run: what they depend on, and the missing ones."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gc25d.dataset.batch import collate
from gc25d.dataset.clips import ClipDataset
from gc25d.finite import check_finite
from gc25d.methods.ode.cache import OdeCache
from gc25d.methods.teacher import teacher_digest
from gc25d.records import digest_json, read_json
from gc25d.sampling.euler import OdePlan, path_noise, solve
from gc25d.sampling.guidance import Guidance
from gc25d.settings.steps import TrainStep

logger = logging.getLogger(__name__)

_CHANNELS = 48
_VERSION = 1  # raised when paths are made in another way


def ode_plan(settings: TrainStep) -> OdePlan:
    """How the paths of a run are made."""
    train = settings.train
    return OdePlan(train.kd.teacher_steps, train.distill.denoising_steps, train.distill.shift)


def ode_cache(settings: TrainStep, clips: ClipDataset) -> OdeCache:
    """The cache of a run's paths and all that they depend on.

    Raises:
        UserError: no teacher weights where the settings say.
    """
    geometry, teacher, plan = settings.geometry, settings.train.teacher, ode_plan(settings)
    frames = (geometry.frames - 1) // 4 + 1
    shape = [_CHANNELS, frames, geometry.height // 16, geometry.width // 16]
    metadata: dict[str, Any] = {
        "version": _VERSION,
        "plan": asdict(plan),
        "teacher": teacher_digest(settings),
        "guidance": {"cfg": teacher.cfg, "sem_cfg": teacher.sem_cfg},
        "precision": settings.train.precision,
        "seed": settings.train.seed,
        "data": read_json(clips.root / "READY")["fingerprint"],
        "clip_ids": digest_json([row.clip_id for row in clips.rows]),
        "clips": len(clips),
        "path_shape": [plan.denoising_steps + 1, *shape],
    }
    return OdeCache(Path(settings.train.kd.cache), metadata)


def build_paths(
    cache: OdeCache,
    clips: ClipDataset,
    teacher: nn.Module,
    plan: OdePlan,
    guidance: Guidance,
    *,
    seed: int,
    batch_size: int,
    share: tuple[int, int] = (0, 1),
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> int:
    """Make the missing paths of every n-th clip; returns how many.

    Args:
        cache: claimed folder.
        clips: the training split without dropouts.
        teacher: on the device that computes.
        plan: steps and kept points.
        guidance: of the teacher.
        seed: of the noise.
        batch_size: clips at a time; changes rounding only.
        share: (r, n): this process makes clips r, r + n, r + 2n, …
        autocast: arithmetic of the teacher.

    Raises:
        UserError: a path is not finite; names the clip, and writes none of it.
    """
    missing = cache.missing(range(share[0], len(clips), share[1]))
    device = next(teacher.parameters()).device
    for done, indices in _chunks(missing, batch_size):
        samples = [clips.sample(0, index) for index in indices]
        batch = collate(samples, clips.table).to(device, torch.float32)
        noise = path_noise(seed, indices, batch.latents.shape[1:]).to(device)
        with autocast():
            paths = solve(teacher, batch, noise, plan, guidance)
        for index, path in zip(indices, paths, strict=True):
            check_finite(
                path,
                f"clip {clips.rows[index].clip_id}: the teacher's path",
                "lower train.teacher.cfg and sem_cfg, or check the teacher's weights",
            )
            cache.write(index, path)
        logger.info("%d of %d paths", done, len(missing))
    return len(missing)


def _chunks(indices: list[int], size: int) -> Iterator[tuple[int, list[int]]]:
    """Consecutive parts, each with how many there are up to its end."""
    for start in range(0, len(indices), size):
        part = indices[start : start + size]
        yield start + len(part), part
