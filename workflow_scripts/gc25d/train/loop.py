"""One segment of the chain: from the newest state at or before its end to its end."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gc25d.errors import UserError
from gc25d.methods.base import TrainingMethod
from gc25d.train.engine import PlainEngine
from gc25d.train.feed import MicroBatch
from gc25d.train.logs import RunLog
from gc25d.train.validate import Validation

logger = logging.getLogger(__name__)

STEP_MEANS = ("loss", "mse", "timestep", "sem_rms", "x_rms")


@dataclass(frozen=True)
class Cadence:
    """What happens after which step (1-based, counted over the whole run)."""

    until: int
    save_every: int
    validate_every: int

    def saves(self, step: int) -> bool:
        """A state is due."""
        return step % self.save_every == 0 or step == self.until

    def validates(self, step: int) -> bool:
        """A validation is due."""
        return step % self.validate_every == 0 or step == self.until


@dataclass(frozen=True)
class Segment:
    """What a segment trains with."""

    method: TrainingMethod
    engine: PlainEngine
    validation: Validation
    cadence: Cadence
    grad_clip: float
    save: Callable[[int], None]
    """Write the state after a step."""

    def run(self, feed: Iterator[MicroBatch], start: int, log: RunLog) -> None:
        """Train from step `start` to the end.

        Raises:
            UserError: a loss or gradient is not finite; nothing is updated by that step.
        """
        for step in range(start + 1, self.cadence.until + 1):
            log.train_row(self.optimizer_step(step, feed))
            if self.cadence.validates(step):
                self.validate(step, log)
            # Saved after the rows of its step: a state never lacks what was logged before it.
            if self.cadence.saves(step):
                log.sync()
                self.save(step)

    def optimizer_step(self, step: int, feed: Iterator[MicroBatch]) -> dict[str, Any]:
        """One optimizer step: all its micro-batches, clipping, the update. Returns its log row."""
        began, waited = time.perf_counter(), 0.0
        iteration = step - 1
        self.method.optimizers_zero_grad(iteration)
        parts: list[MicroBatch] = []
        sums: dict[str, torch.Tensor] = {}
        while not (parts and parts[-1].last):
            asked = time.perf_counter()
            part = next(feed)
            waited += time.perf_counter() - asked
            parts.append(part)
            batch = part.batch.to(self.engine.device, torch.float32)
            loss_map, outputs, metrics = self.method.single_train_step(batch, iteration)
            self.method.backward(loss_map, outputs, 1 / part.share)
            for name in STEP_MEANS:
                sums[name] = sums.get(name, torch.zeros(())) + metrics[name] * part.share
        lrs = [group["lr"] for group in self.method.get_optimizers(iteration)[0].param_groups]
        grad_norm = self._clip(iteration)
        means = dict(zip(sums, torch.stack([*sums.values()]).tolist(), strict=True))
        _refuse_non_finite(step, parts, means["loss"], grad_norm)
        self.method.optimizers_schedulers_step(iteration)
        return {
            "step": step,
            **means,
            "lr": lrs[0],
            "cond_lr": lrs[-1],
            "grad_norm": grad_norm,
            **_dropped(parts),
            "step_time": time.perf_counter() - began,
            "data_time": waited,
            "mem_gb": self.engine.memory_gb(),
            "epoch": parts[0].epoch,
            "clips": " ".join(itertools.chain(*(part.batch.clip_ids for part in parts))),
        }

    def validate(self, step: int, log: RunLog) -> None:
        """Validate every role that validates as the student."""
        for row in self.validation.run(next(iter(self.method.roles.values())), step):
            log.val_row(row)

    def _clip(self, iteration: int) -> float:
        """Clip each target's gradients; returns the global norm before clipping."""
        targets = self.method.get_grad_clip_targets(iteration).values()
        norms = [float(self.engine.clip_gradients(target, self.grad_clip)) for target in targets]
        return math.hypot(*norms)


def _dropped(parts: Iterable[MicroBatch]) -> dict[str, float]:
    """Shares of the step's samples without text or condition, and of their pixels masked."""
    dropped = [sample for part in parts for sample in part.batch.dropped]
    return {
        "text_drop": sum(sample["text"] for sample in dropped) / len(dropped),
        "cond_drop": sum(sample["cond"] for sample in dropped) / len(dropped),
        "mask_frac": sum(sample["mask"] for sample in dropped) / len(dropped),
    }


def _refuse_non_finite(
    step: int, parts: Iterable[MicroBatch], loss: float, grad_norm: float
) -> None:
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    clips = ", ".join(itertools.chain(*(part.batch.clip_ids for part in parts)))
    raise UserError(
        f"step {step}: loss {loss}, gradient norm {grad_norm}, expected finite numbers; its clips: "
        f"{clips}. The last state is kept: look at these clips, or lower train.lr in a new folder"
    )
