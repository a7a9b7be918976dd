"""What a run leaves to read: one CSV row per step whatever was killed, TensorBoard, progress."""

import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from gc25d.records import csv_text, read_csv, write_text

logger = logging.getLogger(__name__)

TRAIN_LOG = "train_log.csv"
TRAIN_COLUMNS = (
    *("step", "loss", "mse", "timestep", "lr", "cond_lr", "grad_norm", "sem_rms", "x_rms"),
    *("text_drop", "cond_drop", "mask_frac", "step_time", "data_time", "mem_gb", "epoch", "clips"),
)
VAL_COLUMNS = (
    *("step", "timestep", "mse", "mse_uncond", "mse_nulltext"),
    *("gap_uncond", "gap_nulltext", "n"),
)


class StepCsv:
    """A CSV ordered by step, opened to go on after `step`: later rows of a killed job go."""

    def __init__(self, path: Path, columns: tuple[str, ...], step: int) -> None:
        self.path, self.columns = path, columns
        self._set_aside_other_header()
        kept = [row for row in read_csv(path) if _whole(row, columns) and int(row["step"]) <= step]
        write_text(path, csv_text(columns, kept))
        self._file: TextIO = path.open("a", buffering=1, encoding="utf-8")

    def _set_aside_other_header(self) -> None:
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as file:
            header = file.readline().strip()
        if header == ",".join(self.columns):
            return
        number = 1
        while (aside := self.path.with_suffix(f".{number}.csv")).exists():
            number += 1
        self.path.rename(aside)
        logger.warning("%s has other columns: moved to %s", self.path, aside.name)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is in the system's hands when this returns."""
        self._file.write(csv_text(self.columns, [row]).split("\n", 1)[1])

    def sync(self) -> None:
        """Bring all rows to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _whole(row: Mapping[str, str | None], columns: tuple[str, ...]) -> bool:
    """False for a line cut by a kill."""
    return all(row.get(column) is not None for column in columns) and str(row["step"]).isdigit()


class Log(Protocol):
    """What the loop writes to."""

    def train_row(self, row: Mapping[str, Any]) -> None:
        """Log one optimizer step."""
        ...

    def val_row(self, row: Mapping[str, Any]) -> None:
        """Log the validation of one timestep."""
        ...

    def sync(self) -> None:
        """Bring the rows to disk."""
        ...


class NoLog:
    """The log of all processes but the first."""

    def train_row(self, row: Mapping[str, Any]) -> None:
        """Log nothing."""

    def val_row(self, row: Mapping[str, Any]) -> None:
        """Log nothing."""

    def sync(self) -> None:
        """Nothing was written."""


class RunLog:
    """All of a segment's logs: train_log.csv, val_log.csv, TensorBoard and a progress bar."""

    def __init__(self, folder: Path, start: int, until: int, log_every: int) -> None:
        self.train = StepCsv(folder / TRAIN_LOG, TRAIN_COLUMNS, start)
        self.val = StepCsv(folder / "val_log.csv", VAL_COLUMNS, start)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
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
        for name, value in row.items():
            if name not in ("step", "clips"):
                self._board.add_scalar(f"train/{name}", value, step)
        figures = f"loss {row['loss']:.4f}  {row['step_time']:.2f} s/step"
        self._progress.update(self._task, completed=step, figures=figures)
        if step % self._log_every == 0 or step == self._until:
            logger.info("step %d/%d  %s  ETA %s", step, self._until, figures, self._eta(step))

    def val_row(self, row: Mapping[str, Any]) -> None:
        """Log the validation of one timestep."""
        self.val.write(row)
        for name, value in row.items():
            if name not in ("step", "timestep", "n"):
                self._board.add_scalar(f"val/{name}/t{row['timestep']:.0f}", value, row["step"])
        logger.info(
            "validation at step %d, t = %.1f: mse %.4f, gap_uncond %+.4f, gap_nulltext %+.4f",
            *(row[name] for name in ("step", "timestep", "mse", "gap_uncond", "gap_nulltext")),
        )

    def _eta(self, step: int) -> str:
        pace = (time.monotonic() - self._began) / max(1, step - self._start)
        minutes, seconds = divmod(round(pace * (self._until - step)), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
