"""Clips read ahead by worker processes, handed over in order through shared memory.

The unit of work is a block of a clip's frames. All workers take the next block from one pipe, so
that they share every clip, the first one too, and none waits for another. There are
workers + 2 places in memory, each for one clip; a released place is used for a later clip.
What is read depends on the clip alone, so the number of workers changes nothing. Workers that find
the pipe closed end by themselves.
"""

import contextlib
import multiprocessing
import os
import struct
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import numpy as np

from gc25d.capture.raw.format import RawClip
from gc25d.errors import UserError
from gc25d.prep.reading.read import Pictures, RawRun, ReadClip, finish_clip, read_block, read_clip
from gc25d.prep.reading.shared import SharedBytes
from gc25d.shapes import RgbFrames

# Libraries read these when a process starts, so they are set while workers are started. Workers
# compute on one thread each: more would only compete with the other workers.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Imported once, before workers are forked: this module, and what the step's main module imports,
# which every worker imports again.
_PRELOADED = (__name__, "gc25d.prep.prepare", "gc25d.settings.steps")
# Clips in memory beyond one for each worker. More would not be read sooner, and the first use of
# memory costs a worker as much as a tenth of a clip.
_MORE_PLACES = 2
_ENDING_S = 5.0  # how long a process whose pipe has closed may take to end
_UNKNOWN_STATUS = 255  # multiprocessing's, where the server was killed with its workers
# Clip, place, block: 8 bytes, so that a read of a pipe never gets half of one.
_TASK = struct.Struct("<IHH")


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
        RuntimeError: a worker could not start, or failed by a fault of the program; holds its
            traceback, or says where it is.
    """
    if not workers:
        yield from _readings_here(run, clips)
    elif clips:
        with _crew(run, clips, workers) as crew:
            for number in range(len(clips)):
                yield crew.reading(number)


def _readings_here(run: RawRun, clips: Sequence[RawClip]) -> Iterator[Reading]:
    """Read in this process, into memory that was released where there is some."""
    released: list[Pictures] = []
    for clip in clips:
        pictures = released.pop() if released else Pictures.empty(run.frames_shape)
        found = read_clip(run, clip, pictures)
        yield Reading(found, pictures.frames, partial(released.append, pictures))


@dataclass(frozen=True)
class _Crew:
    """Workers, the pipe of their tasks, a pipe of results from each, and the memory."""

    run: RawRun
    clips: Sequence[RawClip]
    places: list[Pictures]
    tasks: Connection
    results: dict[Connection, BaseProcess]
    """The pipe of each worker's results."""
    faults: defaultdict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """Of a clip: what is wrong with each block that was read, or ""."""

    def give(self, number: int) -> None:
        """Queue clip `number`, if there is one, to be read into its place."""
        if number < len(self.clips):
            place = number % len(self.places)
            blocks = range(len(self.run.blocks))
            with contextlib.suppress(OSError):  # the workers have ended: `reading` says so
                os.write(
                    self.tasks.fileno(),
                    b"".join(_TASK.pack(number, place, block) for block in blocks),
                )

    def reading(self, number: int) -> Reading:
        """Wait for clip `number`."""
        while len(self.faults[number]) < len(self.run.blocks):
            ready = wait(list(self.results))
            for pipe in self.results:
                if pipe in ready:
                    self._receive(pipe)
        faults = [fault for _, fault in sorted(self.faults.pop(number).items()) if fault]
        pictures = self.places[number % len(self.places)]
        clip = finish_clip(self.run, self.clips[number], pictures.sem_ids, (*faults, "")[0])
        return Reading(clip, pictures.frames, partial(self.give, number + len(self.places)))

    def _receive(self, pipe: Connection) -> None:
        try:
            number, block, fault, crash = pipe.recv()
        except (EOFError, OSError):  # OSError: it ended in the middle of a message
            raise _ended(self.results[pipe]) from None
        if crash:
            raise RuntimeError(f"a process that read clips failed:\n{crash}")
        self.faults[number][block] = fault


@contextlib.contextmanager
def _crew(run: RawRun, clips: Sequence[RawClip], workers: int) -> Iterator[_Crew]:
    """Start workers and give them their first tasks; end them on exit."""
    count = min(workers, len(clips) * len(run.blocks))
    places = min(workers + _MORE_PLACES, len(clips))
    with contextlib.ExitStack() as stack:
        memory = SharedBytes(places * Pictures.size(run.frames_shape))
        with memory:
            there, tasks = _pipe()
            stack.callback(tasks.close)
            with there:
                results = dict(
                    stack.enter_context(_worker(there, memory, places, run, clips))
                    for _ in range(count)
                )
        crew = _Crew(run, clips, _places(memory, places, run), tasks, results)
        for number in range(places):
            crew.give(number)
        yield crew


def _pipe() -> tuple[Connection, Connection]:
    """The reading and the writing end."""
    return multiprocessing.get_context("forkserver").Pipe(duplex=False)


def _places(memory: SharedBytes, count: int, run: RawRun) -> list[Pictures]:
    return [Pictures.of(part, run.frames_shape) for part in np.split(memory.bytes, count)]


@contextlib.contextmanager
def _worker(
    tasks: Connection, memory: SharedBytes, places: int, run: RawRun, clips: Sequence[RawClip]
) -> Iterator[tuple[Connection, BaseProcess]]:
    """A started worker and the pipe of its results. No fork: the caller may use CUDA and threads.

    Raises:
        RuntimeError: the server that workers are forked from has ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    here, there = _pipe()
    work = tasks, there, memory, places, run, clips
    process = context.Process(target=_serve, args=work, daemon=True)
    try:
        with _environment(_ONE_THREAD):
            process.start()
    except (EOFError, ConnectionError):
        here.close()
        raise RuntimeError(
            "no process to read clips could be started: the error that it printed is above"
        ) from None
    finally:
        there.close()
    try:
        yield here, process
    finally:
        here.close()
        process.terminate()
        process.join()
        process.close()


def _ended(worker: BaseProcess) -> Exception:
    """The error to raise for a worker whose pipe has closed."""
    worker.join(_ENDING_S)
    if 0 < (worker.exitcode or 0) < _UNKNOWN_STATUS:
        return RuntimeError(
            f"a process that read clips ended with status {worker.exitcode}: the error that it "
            "printed is above"
        )
    return UserError(
        "a process that read clips was killed, perhaps for want of memory: lower prep.workers and "
        "rerun"
    )


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started within."""
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


def _serve(
    tasks: Connection,
    results: Connection,
    memory: SharedBytes,
    count: int,
    run: RawRun,
    clips: Sequence[RawClip],
) -> None:
    """A worker's loop: take a block, read it, send what was wrong with it."""
    places = _places(memory, count, run)
    with contextlib.suppress(ConnectionError):
        while task := os.read(tasks.fileno(), _TASK.size):
            number, place, block = _TASK.unpack(task)
            fault = crash = ""
            try:
                fault = read_block(run, clips[number], block, places[place])
            except Exception:
                crash = traceback.format_exc()
            results.send((number, block, fault, crash))
