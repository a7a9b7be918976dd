"""What a run leaves to read: one CSV row per step whatever was killed, TensorBoard, progress."""

import csv
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from gc25d.files import write_text
from gc25d.methods.tracker import NoTracker, Tracker
from gc25d.records import csv_text, read_csv

logger = logging.getLogger(__name__)

TRAIN_LOG, VAL_LOG = "train_log.csv", "val_log.csv"
TRAIN_COLUMNS = (
    *("step", "loss", "mse", "timestep", "lr", "cond_lr", "grad_norm", "sem_rms", "x_rms"),
    *("text_drop", "cond_drop", "mask_frac", "step_time", "data_time", "mem_gb", "epoch", "clips"),
)
VAL_COLUMNS = (
    *("step", "timestep", "mse", "mse_uncond", "mse_nulltext"),
    *("gap_uncond", "gap_nulltext", "n"),
)
_VAL_MEANS = VAL_COLUMNS[2:-1]


class StepCsv:
    """A CSV ordered by step, opened to go on after `step`: later rows of a killed job go.

    Behind the fixed columns stand others, sorted: a training method's own. Those of the file stay;
    a row that brings a new one has the file written anew, with empty cells before. A row that lacks
    one has an empty cell.
    """

    def __init__(self, path: Path, columns: tuple[str, ...], step: int) -> None:
        self.path, self.fixed = path, columns
        self.own = self._own_columns()
        kept = [r for r in read_csv(path) if _whole(r, self.columns) and int(r["step"]) <= step]
        self._file = self._written(kept)

    @property
    def columns(self) -> tuple[str, ...]:
        """The header."""
        return (*self.fixed, *self.own)

    def _own_columns(self) -> tuple[str, ...]:
        """Those that the file has behind the fixed ones; a file with others goes aside."""
        header = _header(self.path)
        if header is None:
            return ()
        if header[: len(self.fixed)] == self.fixed:
            return tuple(sorted(header[len(self.fixed) :]))
        number = 1
        while (aside := self.path.with_suffix(f".{number}.csv")).exists():
            number += 1
        self.path.rename(aside)
        logger.warning("%s has other columns: moved to %s", self.path, aside.name)
        return ()

    def _written(self, rows: Iterable[Mapping[str, Any]]) -> TextIO:
        """The file with these rows, open to append."""
        write_text(self.path, csv_text(self.columns, rows))
        return self.path.open("a", buffering=1, encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is in the system's hands when this returns."""
        new = set(row).difference(self.columns)
        if new:
            self._file.close()
            self.own = tuple(sorted({*self.own, *new}))
            self._file = self._written(read_csv(self.path))
        self._file.write(csv_text(self.columns, [row]).split("\n", 1)[1])

    def sync(self) -> None:
        """Bring all rows to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _header(path: Path) -> tuple[str, ...] | None:
    """The names of a CSV's columns; None when the file is missing."""
    if not path.exists():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(next(csv.reader(file), ()))


def _whole(row: Mapping[str, str | None], columns: tuple[str, ...]) -> bool:
    """False for a line cut by a kill."""
    return all(row.get(column) is not None for column in columns) and str(row["step"]).isdigit()


def validated(folder: Path, step: int, timesteps: int) -> bool:
    """Whether the log in `folder` has the whole validation at `step`."""
    rows = [row for row in read_csv(folder / VAL_LOG) if _whole(row, VAL_COLUMNS)]
    return sum(int(row["step"]) == step for row in rows) >= timesteps


class Log(Tracker, Protocol):
    """What the loop, and a method by itself, write to."""

    def train_row(self, row: Mapping[str, Any]) -> None:
        """Log one optimizer step."""
        ...

    def validation(
        self, step: int, rows: Sequence[Mapping[str, Any]], own: Mapping[str, float]
    ) -> None:
        """Log a validation: a row a timestep, and the method's own metrics of all of it."""
        ...

    def sync(self) -> None:
        """Bring the rows to disk."""
        ...


class NoLog(NoTracker):
    """The log of all processes but the first."""

    def train_row(self, row: Mapping[str, Any]) -> None:
        """Log nothing."""

    def validation(
        self, step: int, rows: Sequence[Mapping[str, Any]], own: Mapping[str, float]
    ) -> None:
        """Log nothing."""

    def sync(self) -> None:
        """Nothing was written."""


class RunLog:
    """All of a segment's logs: train_log.csv, val_log.csv, TensorBoard and a progress bar."""

    def __init__(
        self, folder: Path, start: int, until: int, log_every: int, *, baseline: bool = False
    ) -> None:
        """Go on after step `start`; `baseline`: what there is of step 0 goes too, as it is due."""
        last = -1 if baseline else start
        self.train = StepCsv(folder / TRAIN_LOG, TRAIN_COLUMNS, start)
        self.val = StepCsv(folder / VAL_LOG, VAL_COLUMNS, last)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=last + 1)
        self._log_every, self._start, self._until = log_every, start, until
        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=until, completed=start, figures="")

    def __enter__(self) -> Self:
        """Show the progress bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush and close everything."""
        self._progress.stop()
        self.train.close()
        self.val.close()
        self._board.close()

    def sync(self) -> None:
        """Bring both CSVs to disk."""
        self.train.sync()
        self.val.sync()

    def train_row(self, row: Mapping[str, Any]) -> None:
        """Log one optimizer step."""
        self.train.write(row)
        step = row["step"]
        for name, value in {**row, **_condition_share(row)}.items():
            if name not in ("step", "clips") and value is not None:
                self._board.add_scalar(f"train/{name}", value, step)
        figures = f"loss {row['loss']:.4f}  {row['step_time']:.2f} s/step"
        self._progress.update(self._task, completed=step, figures=figures)
        if step % self._log_every == 0 or step == self._until:
            logger.info("step %d/%d  %s  ETA %s", step, self._until, figures, self._eta(step))

    def validation(
        self, step: int, rows: Sequence[Mapping[str, Any]], own: Mapping[str, float]
    ) -> None:
        """Log each timestep, the means over timesteps (TensorBoard) and the method's own metrics.

        Raises:
            ValueError: one of these is named like a column of the trainer's.
        """
        reserved = set(own).intersection(VAL_COLUMNS)
        if reserved:
            raise ValueError(f"validation metrics {sorted(reserved)} are columns of the trainer's")
        for row in rows:
            self.val.write({**row, **own})
            for name in _VAL_MEANS:
                self._board.add_scalar(f"val/{name}/t{row['timestep']:.0f}", row[name], step)
            logger.info(
                "validation at step %d, t = %.1f: mse %.4f, gap_uncond %+.4f, gap_nulltext %+.4f",
                *(row[name] for name in ("step", "timestep", "mse", "gap_uncond", "gap_nulltext")),
            )
        means = {f"{n}_mean": math.fsum(row[n] for row in rows) / len(rows) for n in _VAL_MEANS}
        for name, value in {**means, **own}.items():
            self._board.add_scalar(f"val/{name}", value, step)

    def log(self, values: Mapping[str, float | Tensor], step: int) -> None:
        """What the method logs by itself, to TensorBoard."""
        for name, value in values.items():
            self._board.add_scalar(f"method/{name}", float(value), step)

    def _eta(self, step: int) -> str:
        pace = (time.monotonic() - self._began) / max(1, step - self._start)
        minutes, seconds = divmod(round(pace * (self._until - step)), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def _condition_share(row: Mapping[str, Any]) -> dict[str, float]:
    """How large the condition's tokens are beside the picture's: sem_rms / x_rms, where both are.

    For TensorBoard; the CSV has the two.
    """
    condition, tokens = row.get("sem_rms"), row.get("x_rms")
    return {} if condition is None or not tokens else {"sem_over_x": condition / tokens}
