"""What the trainer makes of a method's hooks: metrics of its own, gradients that are not finite,
steps that it does by itself, what it logs by itself. A toy whose figures are worked out by hand.
"""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from gc25d.dataset.batch import Batch
from gc25d.errors import UserError
from gc25d.methods.base import TOTAL_LOSS, LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import STUDENT, TrainedRole
from gc25d.records import read_csv
from gc25d.train import loop
from gc25d.train.engine import PlainEngine
from gc25d.train.feed import MicroBatch
from gc25d.train.loop import Cadence, Segment
from gc25d.train.outputs.logs import TRAIN_COLUMNS, NoLog, RunLog

ZERO = torch.zeros(())


class Weights(nn.Module):
    """Weights [3], all 1; the output is their sum times the input, so the gradient is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weights * x).sum()


class Toy(TrainingMethod):
    """`metrics` says what a micro-batch's metrics are, from its input and the iteration."""

    def __init__(self, metrics: Callable[[Tensor, int], dict[str, Any]] | None = None) -> None:
        model = Weights()
        optimizer = SGD(model.parameters(), lr=1.0)
        schedule = LambdaLR(optimizer, lambda step: 1.0)
        role = TrainedRole(model, optimizer=optimizer, scheduler=schedule, configured_lrs=(1.0,))
        super().__init__(0, {STUDENT: role})
        self.metrics = metrics or (lambda x, iteration: {})

    @property
    def values(self) -> list[float]:
        """The weights."""
        return self.roles[STUDENT].weights.tolist()

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        loss = self.roles[STUDENT](batch.latents)
        metrics = {"loss": loss.detach(), **self.metrics(batch.latents, iteration)}
        return {TOTAL_LOSS: loss}, {}, metrics


def micro_batches(step: int, inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[MicroBatch]:
    """The micro-batches of an optimizer step (0-based), of `sizes` samples."""
    return [
        MicroBatch(
            step,
            0,
            size / sum(sizes),
            number == len(sizes) - 1,
            Batch(
                latents=x,
                prompts=ZERO,
                prompt_lengths=ZERO,
                context_ids=ZERO,
                sem_ids=ZERO,
                clip_ids=[f"clip-{number}-{i}" for i in range(size)],
                epochs=[0] * size,
                indices=[*range(size)],
                dropped=[{"text": False, "cond": False, "mask": 0.0}] * size,
            ),
        )
        for number, (x, size) in enumerate(zip(inputs, sizes, strict=True))
    ]


class TwoProcesses(PlainEngine):
    """The first of two processes; the second's metrics of its own are given."""

    def __init__(self, others: dict[str, tuple[float, float]]) -> None:
        super().__init__("fp32", 1, gpu=False)
        self.others = others

    def gather(self, item: Any) -> list[Any]:
        return [item, self.others]


def segment(method: TrainingMethod, on: PlainEngine | None = None) -> Segment:
    on = on or PlainEngine("fp32", 1, gpu=False)
    on.prepare(method)
    method.on_train_start()
    return Segment(
        method,
        on,
        validation=None,
        cadence=Cadence(10, 10, 10),
        grad_clip=1e9,
        save=lambda step: None,
        asked_to_stop=lambda: False,
    )


def row(trainer: Segment, step: int, *inputs: float, sizes: Sequence[int] = (1,)) -> dict[str, Any]:
    """The log row of an optimizer step (1-based) on these inputs, each for all three weights."""
    parts = micro_batches(step - 1, [torch.full((3,), x) for x in inputs], sizes)
    return trainer.optimizer_step(step, iter(parts))[0]


def reward(x: Tensor, iteration: int) -> dict[str, Any]:
    """A reward in every step, a bonus in every second, hits only where the input is above 2."""
    own: dict[str, Any] = {"reward": 10 * x[0]}
    if iteration % 2 == 0:
        own["bonus"] = torch.tensor(0.5)
    return own | ({"hits": x[0] + 1} if x[0] > 2 else {})


def test_own_metrics_are_means_over_the_samples_that_have_them() -> None:
    found = row(segment(Toy(reward)), 1, 1.0, 3.0, sizes=(1, 3))
    assert found["reward"] == 10 * (1 * 0.25 + 3 * 0.75)
    assert found["hits"] == 4.0  # of the second micro-batch alone, not 4 x 3/4
    assert found["bonus"] == 0.5
    assert [name for name in found if name in TRAIN_COLUMNS] == [
        name for name in TRAIN_COLUMNS if name not in ("mse", "timestep", "sem_rms", "x_rms")
    ]


def test_own_metrics_of_several_processes_are_gathered_by_name() -> None:
    """Each half of the step; the second process has another set of names."""
    others = {"reward": (3.0, 0.5), "only_there": (1.0, 0.25)}
    trainer = segment(Toy(reward), TwoProcesses(others))
    (part,) = micro_batches(1, [torch.ones(3)], [1])
    halved = MicroBatch(part.step, part.epoch, 0.5, part.last, part.batch)
    found = trainer.optimizer_step(2, iter([halved]))[0]
    assert found["reward"] == (10 * 0.5 + 3.0) / (0.5 + 0.5)
    assert found["only_there"] == 4.0


def test_own_metrics_reach_csv_and_tensorboard(tmp_path: Path) -> None:
    trainer = segment(Toy(reward))
    with RunLog(tmp_path, 0, 4, 1) as log:
        for step in (1, 2):
            log.train_row(row(trainer, step, 1.0))
    # Stopped; the first step after it has no bonus, and the column stays.
    with RunLog(tmp_path, 1, 4, 1) as log:
        for step in (2, 3):
            log.train_row(row(trainer, step, 3.0))
    logged = read_csv(tmp_path / "train_log.csv")
    assert tuple(logged[0]) == (*TRAIN_COLUMNS, "bonus", "hits", "reward")
    assert [r["step"] for r in logged] == ["1", "2", "3"]
    assert [r["bonus"] for r in logged] == ["0.5", "", "0.5"]
    assert [r["hits"] for r in logged] == ["", "4.0", "4.0"]
    assert [r["reward"] for r in logged] == ["10.0", "30.0", "30.0"]
    assert [r["mse"] for r in logged] == ["", "", ""]
    assert not list(tmp_path.glob("train_log.*.csv"))
    assert scalars(tmp_path, "train/reward") == [(1, 10.0), (2, 30.0), (3, 30.0)]
    assert scalars(tmp_path, "train/bonus") == [(1, 0.5), (3, 0.5)]


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def test_a_metric_named_like_a_column_of_the_trainer_is_refused() -> None:
    with pytest.raises(ValueError, match="metric 'step_time' is a column of the trainer's own"):
        row(segment(Toy(lambda x, iteration: {"step_time": x[0]})), 1, 1.0)


def test_a_method_logs_by_itself(tmp_path: Path) -> None:
    class Logging(Toy):
        def on_train_start(self) -> None:
            super().on_train_start()
            self.tracker.log({"lost": 1.0}, 1)  # nobody listens yet

    method = Logging()
    trainer = segment(method)
    with RunLog(tmp_path, 0, 4, 1) as log:
        assert trainer.run(iter(()), 10, log) == 10  # nothing left to train
        method.tracker.log({"reward": torch.tensor(2.5)}, 3)
    assert scalars(tmp_path, "method/reward") == [(3, 2.5)]


@pytest.mark.parametrize("compiled", [True, False])
def test_the_first_validation_leaves_the_compiler_nothing(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """What it compiled in that pass must not decide how the training's passes are compiled."""
    did: list[str] = []
    monkeypatch.setattr(loop, "forget_compiled", lambda: did.append("forget"))

    class Nothing:
        def run(self, model: nn.Module, step: int) -> list[dict[str, float]]:
            did.append(f"validate {step}")
            return []

    trainer = segment(Toy())
    given = {"validation": Nothing(), "baseline": True, "compiled": compiled}
    Segment(**{**vars(trainer), **given}).run(iter(()), 10, NoLog())
    assert did == ["validate 0", *["forget"] * compiled]


# Gradients that are not finite


def infinite_at(method: Toy, *places: int) -> None:
    """Gradients of these weights become infinite, whatever the loss."""
    factor = torch.ones(3)
    factor[list(places)] = math.inf
    method.roles["student"].weights.register_hook(lambda gradient: gradient * factor)


def test_gradients_that_are_not_finite_become_zero_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SGD at rate 1 on the gradient (2, inf, 2): two weights move by 2, one stays."""
    method = Toy()
    infinite_at(method, 1)
    with caplog.at_level(logging.WARNING):
        found = row(segment(method), 4, 2.0)
    assert method.values == [-1.0, 1.0, -1.0]
    assert found["grad_norm"] == pytest.approx(math.sqrt(8))
    assert "step 4: the gradient norm of role student is inf" in caplog.text


@pytest.mark.parametrize("places", [(1,), (0, 1, 2)])
def test_a_step_without_target_or_without_anything_finite_is_refused(
    places: tuple[int, ...],
) -> None:
    class Strict(Toy):
        def get_grad_sanitize_targets(self, iteration: int) -> dict[str, Any]:
            return {}

    method = Strict() if len(places) == 1 else Toy()
    infinite_at(method, *places)
    with pytest.raises(UserError, match=r"step 1: loss 6\.0, gradient norm inf, expected finite"):
        row(segment(method), 1, 2.0)
    assert method.values == [1.0, 1.0, 1.0]


def test_sanitizing_is_bound_by_the_clipping() -> None:
    method = Toy()
    infinite_at(method, 1)
    trainer = segment(method)
    clipped = Segment(**{**vars(trainer), "grad_clip": math.sqrt(2)})
    row(clipped, 1, 2.0)
    assert method.values == pytest.approx([0.0, 1.0, 0.0], abs=1e-5)


# Steps that a method does by itself


class Managed(Toy):
    """Takes its whole step in `single_train_step`, half as far as the trainer would."""

    manages_optimization = True

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        losses, outputs, metrics = super().single_train_step(batch, iteration)
        with torch.no_grad():
            self.roles["student"].weights -= 0.5 * batch.latents
        return losses, outputs, metrics


def test_a_managed_step_goes_through_single_train_step() -> None:
    method = Managed(reward)
    found = row(segment(method), 1, 2.0, 4.0, sizes=(1, 3))
    assert method.values == [1 - 0.5 * (2 + 4)] * 3
    # 6 with the first weights; then 3 x 4 x (1 - 1) = 0.
    assert found["loss"] == 6 * 0.25 + 0 * 0.75
    assert found["reward"] == 20 * 0.25 + 40 * 0.75
    assert found["hits"] == 5.0
    assert found["grad_norm"] is None


def test_a_managed_step_may_tell_its_norm() -> None:
    method = Managed(lambda x, iteration: {"grad_norm": torch.tensor(7.0)})
    assert row(segment(method), 1, 2.0)["grad_norm"] == 7.0
