"""Clips read ahead by worker processes, handed over in order through shared memory.

Worker w of W reads clips w, w + W, w + 2W, … into two frame buffers of its own, turn by turn, and
waits until a buffer is released: memory stays at 2·W clips. What is read depends on the clip alone,
so the number of workers changes nothing. A worker that finds its pipe closed ends by itself.
"""

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from ctypes import c_ubyte
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gc25d.capture.format import RawClip
from gc25d.errors import UserError
from gc25d.prep.read import RawRun, ReadClip, read_clip
from gc25d.shapes import RgbFrames

# A worker is one of many: threads of its own for matrix products would only crowd the others out.
# The variables are read when a process starts, so they are set around the start of the workers'.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_BUFFERS = 2  # of a worker: it reads into one while the other waits for the encoder


@dataclass(frozen=True)
class Reading:
    """A clip that was read; `frames` belongs to its reader once `release` was called."""

    clip: ReadClip
    frames: RgbFrames
    release: Callable[[], None]


def readings(run: RawRun, clips: Sequence[RawClip], workers: int) -> Generator[Reading, None, None]:
    """Read `clips` in order, ahead in `workers` processes, or as they are asked for with 0.

    Raises:
        UserError: a worker was killed.
        RuntimeError: a worker failed by a fault of the program; holds its traceback.
    """
    if not workers:
        for clip in clips:
            frames = np.empty(run.frames_shape, np.uint8)
            yield Reading(read_clip(run, clip, frames), frames, _nothing)
        return
    count = min(workers, len(clips))
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_worker(run, clips[first::count])) for first in range(count)]
        for number in range(len(clips)):
            turn, first = divmod(number, count)
            worker = started[first]
            buffer = worker.buffers[turn % _BUFFERS]
            frames = _as_frames(buffer, run)
            yield Reading(worker.receive(), frames, worker.release)


def _nothing() -> None:
    """Frames of their own need no release."""


@dataclass(frozen=True)
class _Worker:
    pipe: Connection
    buffers: list[Any]

    def receive(self) -> ReadClip:
        """The worker's next clip."""
        try:
            found = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise UserError(
                "a process that read clips was killed, perhaps for want of memory: lower "
                "prep.workers and rerun"
            ) from None
        if isinstance(found, str):
            raise RuntimeError(f"a process that read clips failed:\n{found}")
        clip: ReadClip = found
        return clip

    def release(self) -> None:
        """Let the worker use its oldest buffer again; one that has ended needs none."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)


@contextlib.contextmanager
def _worker(run: RawRun, clips: Sequence[RawClip]) -> Iterator[_Worker]:
    """A started worker; ended on leaving. No fork: the caller may use CUDA and threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    size = int(np.prod(run.frames_shape))
    buffers = [context.RawArray(c_ubyte, size) for _ in range(min(_BUFFERS, len(clips)))]
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, buffers, run, clips), daemon=True)
    with _environment(_ONE_THREAD):
        process.start()
    there.close()
    try:
        yield _Worker(here, buffers)
    finally:
        here.close()
        process.terminate()
        process.join()
        process.close()


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables for what is started within."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Connection, buffers: list[Any], run: RawRun, clips: Sequence[RawClip]) -> None:
    """A worker's life: read, send, wait for a free buffer."""
    with contextlib.suppress(EOFError, ConnectionError):
        for number, clip in enumerate(clips):
            if number >= len(buffers):
                pipe.recv()
            frames = _as_frames(buffers[number % len(buffers)], run)
            pipe.send(_read_or_traceback(run, clip, frames))


def _read_or_traceback(run: RawRun, clip: RawClip, frames: RgbFrames) -> ReadClip | str:
    """The clip, or the traceback of a fault of the program."""
    try:
        return read_clip(run, clip, frames)
    except Exception:
        return traceback.format_exc()


def _as_frames(buffer: Any, run: RawRun) -> RgbFrames:
    return np.frombuffer(buffer, np.uint8).reshape(run.frames_shape)
