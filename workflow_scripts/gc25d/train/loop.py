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
from gc25d.model.execution import forget_compiled
from gc25d.train.engine import Engine, SharedError
from gc25d.train.feed import MicroBatch
from gc25d.train.outputs.logs import TRAIN_COLUMNS, Log
from gc25d.train.validate import Validation

logger = logging.getLogger(__name__)

STEP_MEANS = ("loss", "mse", "timestep", "sem_rms", "x_rms")
"""What every method says of a step, as far as it has it."""
RESERVED = frozenset(TRAIN_COLUMNS).difference(STEP_MEANS)
"""Columns that the trainer fills in itself."""


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
    own: dict[str, tuple[Tensor, float]] = field(default_factory=dict)
    """The method's own metrics, weighted likewise, and the shares of those that had it."""
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
        """Take in the metrics of a micro-batch.

        Raises:
            ValueError: a metric is named like a column of the trainer's.
        """
        for name, value in metrics.items():
            if name in RESERVED:
                raise ValueError(f"metric {name!r} is a column of the trainer's own: rename it")
            if name in STEP_MEANS:
                self.sums[name] = self.sums.get(name, torch.zeros(())) + value * share
            else:
                summed, shares = self.own.get(name, (torch.zeros(()), 0.0))
                self.own[name] = (summed + value * share, shares + share)

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
    set_rates: Callable[[int], None] = lambda step: None
    """Bring the learning rates to those of a step, where they change under the run."""
    baseline: bool = False
    """Whether a validation before the first step is due."""
    compiled: bool = False
    """Whether blocks are compiled, which that validation must not decide."""

    def run(self, feed: Iterator[MicroBatch], start: int, log: Log) -> int:
        """Train from step `start` to the end, or until one of the processes was asked to stop.

        Returns:
            The last step taken; its state is saved, or being saved.

        Raises:
            UserError: a loss or gradient is not finite; nothing is updated by that step.
        """
        self.method.set_tracker(log)
        if self.baseline:
            self.validate(0, log)
            if self.compiled:
                forget_compiled()
        for step in range(start + 1, self.cadence.until + 1):
            self.set_rates(step)
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
        means, own, dropped, stopping = self._totals(done)
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
            **own,
        }
        return row, stopping

    def validate(self, step: int, log: Log) -> None:
        """Validate the student, which is the first role."""
        own = self.method.on_validation_begin(step - 1) or {}
        rows = self.validation.run(next(iter(self.method.roles.values())), step)
        log.validation(step, rows, {name: float(value) for name, value in own.items()})

    def _accumulate(self, iteration: int, feed: Iterator[MicroBatch], done: Accumulated) -> float:
        """All micro-batches forward and backward; returns the norm before clipping."""
        self.method.optimizers_zero_grad(iteration)
        while not done.complete:
            part = done.take(feed)
            self.method.set_is_last_backward(part.last, iteration)
            if self.method.supports_gradient_accumulation_no_sync:
                self.method.set_requires_gradient_sync(part.last, iteration)
            batch = part.batch.to(self.engine.device, torch.float32)
            loss_map, outputs, metrics = self.method.single_train_step(batch, iteration)
            self.engine.backward(self.method, loss_map, outputs, part.share, last=part.last)
            done.add(metrics, part.share)
        return self.engine.clip(self.method, iteration, self.grad_clip)

    def _managed(
        self, iteration: int, feed: Iterator[MicroBatch], done: Accumulated
    ) -> float | None:
        """A step that the method does by itself; returns the gradient norm if it reports one."""
        while not done.complete:
            done.take(feed)
        batches = [part.batch.to(self.engine.device, torch.float32) for part in done.parts]
        _, _, metrics = self.method.managed_train_step(batches, iteration)
        metrics = dict(metrics)
        grad_norm = metrics.pop("grad_norm", None)
        done.add(metrics, sum(part.share for part in done.parts))
        return None if grad_norm is None else float(grad_norm)

    def _totals(
        self, done: Accumulated
    ) -> tuple[dict[str, float], dict[str, float], dict[str, float], bool]:
        """Means over all processes' samples, and whether one was asked to stop.

        One sum over processes, and one wait for the device; where a process has metrics of the
        method's own, which others may lack, they are gathered by name.

        Returns:
            The means that every method has, the method's own, shares of dropped samples, and that.
        """
        known = [name for name in STEP_MEANS if name in done.sums]
        missing = torch.full_like(done.sums["loss"], math.nan)
        metrics = torch.stack([done.sums.get(name, missing) for name in STEP_MEANS]).double()
        counts = [*done.dropped, float(self.asked_to_stop()), float(bool(done.own))]
        told = torch.tensor(counts, dtype=torch.float64, device=metrics.device)
        summed = self.engine.all_reduce_sum(torch.cat([metrics, told]))
        *values, text, cond, mask, samples, stop, own = summed.tolist()
        means = dict(zip(STEP_MEANS, values, strict=True))
        shares = {"text_drop": text, "cond_drop": cond, "mask_frac": mask}
        return (
            {name: means[name] for name in known},
            self._own_means(done) if own else {},
            {name: value / samples for name, value in shares.items()},
            stop > 0,
        )

    def _own_means(self, done: Accumulated) -> dict[str, float]:
        """The method's own metrics over the samples, of all processes, that had them."""
        own = {name: (float(summed), shares) for name, (summed, shares) in done.own.items()}
        found: dict[str, list[tuple[float, float]]] = {}
        for told in self.engine.gather(own):
            for name, part in told.items():
                found.setdefault(name, []).append(part)
        return {
            name: sum(value for value, _ in parts) / sum(share for _, share in parts)
            for name, parts in found.items()
        }

    def _refuse_non_finite(
        self, step: int, done: Accumulated, loss: float, grad_norm: float | None
    ) -> None:
        """Every process sees the same sums, so all refuse together.

        Raises:
            SharedError: names the step, the processes to blame and their clips.
        """
        if math.isfinite(loss) and (grad_norm is None or math.isfinite(grad_norm)):
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
