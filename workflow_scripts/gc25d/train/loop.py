"""One segment of the chain: from the newest state at or before its end to its end."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gc25d.methods.base import Metrics, TrainingMethod
from gc25d.train.engine import Engine, SharedError
from gc25d.train.feed import MicroBatch
from gc25d.train.logs import Log
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


@dataclass
class Accumulated:
    """What this process saw of an optimizer step so far."""

    parts: list[MicroBatch] = field(default_factory=list)
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Metrics, each weighted by its micro-batch's share of the step's samples; on the device."""
    waited: float = 0.0
    """Seconds spent waiting for data."""

    def take(self, feed: Iterator[MicroBatch]) -> MicroBatch:
        """The next micro-batch of the step."""
        asked = time.perf_counter()
        part = next(feed)
        self.waited += time.perf_counter() - asked
        self.parts.append(part)
        return part

    def add(self, metrics: Metrics, share: float) -> None:
        """Take in the metrics of a micro-batch."""
        for name in STEP_MEANS:
            self.sums[name] = self.sums.get(name, torch.zeros(())) + metrics[name] * share

    @property
    def complete(self) -> bool:
        """Whether the step's last micro-batch of this process is in."""
        return bool(self.parts) and self.parts[-1].last

    @property
    def clips(self) -> str:
        """The ids of this process's clips."""
        return " ".join(itertools.chain(*(part.batch.clip_ids for part in self.parts)))

    @property
    def dropped(self) -> list[float]:
        """Samples without text, without condition, their masked fractions summed, all samples."""
        dropped = [sample for part in self.parts for sample in part.batch.dropped]
        sums = (sum(float(sample[name]) for sample in dropped) for name in ("text", "cond", "mask"))
        return [*sums, float(len(dropped))]


@dataclass(frozen=True)
class Segment:
    """What a segment trains with."""

    method: TrainingMethod
    engine: Engine
    validation: Validation
    cadence: Cadence
    grad_clip: float
    save: Callable[[int], None]
    """Write the state after a step."""
    asked_to_stop: Callable[[], bool]
    """Whether this process was asked to stop."""
    average: Callable[[], None] = lambda: None
    """Take the weights after a step into their moving average, if there is one."""

    def run(self, feed: Iterator[MicroBatch], start: int, log: Log) -> int:
        """Train from step `start` to the end, or until one of the processes was asked to stop.

        Returns:
            The last step taken; its state is saved, or being saved.

        Raises:
            UserError: a loss or gradient is not finite; nothing is updated by that step.
        """
        for step in range(start + 1, self.cadence.until + 1):
            row, stopping = self.optimizer_step(step, feed)
            self.average()
            log.train_row(row)
            if self.cadence.validates(step):
                self.validate(step, log)
            # Saved after the rows of its step: a state never lacks what was logged before it.
            if self.cadence.saves(step) or stopping:
                log.sync()
                self.save(step)
            if stopping:
                return step
        return self.cadence.until

    def optimizer_step(self, step: int, feed: Iterator[MicroBatch]) -> tuple[dict[str, Any], bool]:
        """One optimizer step: all its micro-batches, clipping, the update.

        Returns:
            Its log row, over all processes, and whether one of them was asked to stop.
        """
        began, iteration = time.perf_counter(), step - 1
        student = next(iter(self.method.trained.values())).optimizer
        rates = [group["lr"] for group in student.param_groups]
        done = Accumulated()
        update = self._managed if self.method.manages_optimization else self._accumulate
        grad_norm = update(iteration, feed, done)
        means, dropped, stopping = self._totals(done)
        self._refuse_non_finite(step, done, means["loss"], grad_norm)
        if not self.method.manages_optimization:
            self.method.optimizers_schedulers_step(iteration)
        row = {
            "step": step,
            **means,
            "lr": rates[0],
            "cond_lr": rates[-1],
            "grad_norm": grad_norm,
            **dropped,
            "step_time": time.perf_counter() - began,
            "data_time": done.waited,
            "mem_gb": self.engine.memory_gb(),
            "epoch": done.parts[0].epoch,
            "clips": done.clips,
        }
        return row, stopping

    def validate(self, step: int, log: Log) -> None:
        """Validate the student, which is the first role."""
        self.method.on_validation_begin(step - 1)
        for row in self.validation.run(next(iter(self.method.roles.values())), step):
            log.val_row(row)

    def _accumulate(self, iteration: int, feed: Iterator[MicroBatch], done: Accumulated) -> float:
        """All micro-batches forward and backward; returns the norm before clipping."""
        self.method.optimizers_zero_grad(iteration)
        while not done.complete:
            part = done.take(feed)
            self.method.set_is_last_backward(part.last)
            if self.method.supports_gradient_accumulation_no_sync:
                self.method.set_requires_gradient_sync(part.last)
            batch = part.batch.to(self.engine.device, torch.float32)
            loss_map, outputs, metrics = self.method.single_train_step(batch, iteration)
            self.engine.backward(self.method, loss_map, outputs, part.share, last=part.last)
            done.add(metrics, part.share)
        return self.engine.clip(self.method, iteration, self.grad_clip)

    def _managed(self, iteration: int, feed: Iterator[MicroBatch], done: Accumulated) -> float:
        """A step that the method does by itself; returns the gradient norm that it reports."""
        while not done.complete:
            done.take(feed)
        batches = [part.batch.to(self.engine.device, torch.float32) for part in done.parts]
        _, _, metrics = self.method.managed_train_step(batches, iteration)
        done.add(metrics, sum(part.share for part in done.parts))
        return float(metrics["grad_norm"])

    def _totals(self, done: Accumulated) -> tuple[dict[str, float], dict[str, float], bool]:
        """Means and shares over all processes' samples, and whether one was asked to stop.

        One sum over processes, and one wait for the device.
        """
        metrics = torch.stack([*done.sums.values()]).double()
        counts = torch.tensor([*done.dropped, float(self.asked_to_stop())], dtype=torch.float64)
        summed = self.engine.all_reduce_sum(torch.cat([metrics, counts.to(metrics.device)]))
        *values, text, cond, mask, samples, stop = summed.tolist()
        means = dict(zip(done.sums, values, strict=True))
        shares = {"text_drop": text, "cond_drop": cond, "mask_frac": mask}
        return means, {name: value / samples for name, value in shares.items()}, stop > 0

    def _refuse_non_finite(
        self, step: int, done: Accumulated, loss: float, grad_norm: float
    ) -> None:
        """Every process sees the same sums, so all refuse together.

        Raises:
            SharedError: names the step, the processes to blame and their clips.
        """
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return
        raise SharedError(
            f"step {step}: loss {loss}, gradient norm {grad_norm}, expected finite numbers; its "
            f"clips: {_blamed(self.engine.gather((float(done.sums['loss']), done.clips)))}. The "
            "last state is kept: look at these clips, or lower train.lr in a new folder"
        )


def _blamed(found: Sequence[tuple[float, str]]) -> str:
    """The clips of the processes whose loss is not finite; of all when every loss is."""
    if len(found) == 1:
        return found[0][1].replace(" ", ", ")
    bad = [rank for rank, (loss, _) in enumerate(found) if not math.isfinite(loss)]
    return "; ".join(
        f"process {rank}: {found[rank][1].replace(' ', ', ')}" for rank in bad or range(len(found))
    )
