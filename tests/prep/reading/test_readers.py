"""Reading ahead in worker processes: the same clips, in order, and faults told apart."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from gc25d.errors import UserError
from gc25d.prep.encoders.dct import DctCodec
from gc25d.prep.prepare import encoded, prepare_run
from gc25d.prep.reading.read import RawRun, ReadClip
from gc25d.prep.reading.readers import Reading, readings

SHAPE = (5, 32, 32)


def opened(run_dir):
    return RawRun.open(run_dir, "maze__run-000", *SHAPE)


@pytest.fixture
def long_run(tmp_path, raw_run):
    """Eight overlapping clips of 5 frames; the one at 3 cannot be read (frame 12 of 12)."""
    run = opened(raw_run(tmp_path / "raw"))
    clip = run.table.clips[0]
    starts = (0, 1, 2, 8, 3, 4, 5, 6)
    return run, [type(clip)(start, clip.text_keys) for start in starts]


def collect(run, clips, workers):
    """Rows, frames and ids, each copied before its buffer is released."""
    found = []
    for reading in readings(run, clips, workers):
        clip = reading.clip
        dropped = clip.row["drop"]
        found.append((clip.row, None if dropped else (reading.frames.copy(), clip.packed_ids)))
        reading.release()
    return found


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_workers_read_what_one_process_reads_in_order(long_run, workers):
    run, clips = long_run
    expected, found = collect(run, clips, 0), collect(run, clips, workers)
    assert [row["start"] for row, _ in found] == [0, 1, 2, 8, 3, 4, 5, 6]
    assert [row["drop"] for row, _ in found] == [False] * 3 + [True] + [False] * 4
    for (row, data), (plain_row, plain) in zip(found, expected, strict=True):
        assert row == plain_row
        if plain is not None:
            np.testing.assert_array_equal(data[0], plain[0])
            np.testing.assert_array_equal(data[1], plain[1])
    assert not np.array_equal(found[0][1][0], found[1][1][0])  # neighbours are different clips


@pytest.mark.parametrize("workers", [0, 3])
def test_blocks_make_the_clip_that_one_reading_makes(long_run, workers):
    """5 frames as 2 + 2 + 1; the clip at 8 lacks its last one, whose error is the same."""
    run, clips = long_run
    expected, found = collect(run, clips, 0), collect(replace(run, block=2), clips, workers)
    for (row, data), (plain_row, plain) in zip(found, expected, strict=True):
        assert row == plain_row
        if plain is not None:
            np.testing.assert_array_equal(data[0], plain[0])
            np.testing.assert_array_equal(data[1], plain[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_of_several_faults_the_first_is_named(long_run, workers):
    """Frames 2..3, 4..5 and 6 are the blocks; 3 lacks its picture, 5 and 6 their stencil."""
    run, clips = long_run
    for series, gone in ((run.frames, {3}), (run.stencil, {5, 6})):
        for frame in gone:
            del series.members[frame]
    run = replace(run, block=2)
    (row, _), *_ = collect(run, [clip for clip in clips if clip.start == 2], workers)
    assert row["drop"]
    assert "frame 3 (number 3) is missing in frames.tar" in row["reason"]


def test_a_run_is_the_same_with_and_without_workers(tmp_path, raw_run):
    run_dir = raw_run(tmp_path / "raw")
    plain, ahead = (
        prepare_run(run_dir, "maze__run-000", *SHAPE, DctCodec, workers) for workers in (0, 2)
    )
    assert plain.rows == ahead.rows  # with the digests of latents, ids and cameras
    assert plain.latents.keys() == ahead.latents.keys()
    assert plain.ids.keys() == ahead.ids.keys()


def test_memory_is_not_touched_before_its_release(long_run):
    """One worker, three places: with none released, the fourth clip does not come."""
    run, clips = long_run
    stream = readings(run, clips[:3] + clips[4:], 1)
    first, *others = (next(stream) for _ in range(3))
    before = [reading.frames.copy() for reading in (first, *others)]
    timer = threading.Timer(0.3, first.release)
    started = time.monotonic()
    timer.start()
    fourth = next(stream)
    assert time.monotonic() - started >= 0.3
    for reading, frames in zip(others, before[1:], strict=True):
        np.testing.assert_array_equal(reading.frames, frames)
    assert np.shares_memory(fourth.frames, first.frames)
    assert not np.array_equal(fourth.frames, before[0])
    stream.close()


def test_workers_end_with_their_reader(long_run):
    run, clips = long_run
    stream = readings(run, clips, 2)
    next(stream)
    assert len(multiprocessing.active_children()) == 2
    stream.close()
    assert multiprocessing.active_children() == []


def test_a_killed_worker_is_an_error_that_says_what_to_do(long_run):
    run, clips = long_run
    stream = readings(run, clips, 1)
    next(stream)
    (process,) = multiprocessing.active_children()
    process.kill()
    with pytest.raises(UserError, match=r"killed.*lower prep\.workers"):
        list(stream)


READING_SCRIPT = """
import sys
from pathlib import Path
from gc25d.prep.reading import readers
from gc25d.prep.reading.read import RawRun

if __name__ == "__mp_main__" and sys.argv[2] == "main":
    raise ImportError("no worker gets further")
if __name__ == "__main__":
    if sys.argv[2] == "server":
        readers._PRELOADED = (*readers._PRELOADED, "half_written")
    run = RawRun.open(Path(sys.argv[1]), "maze__run-000", 5, 32, 32)
    for reading in readers.readings(run, run.clips(), 2):
        reading.release()
"""


@pytest.mark.parametrize(
    ("dies", "printed", "said"),
    [
        (
            "main",
            "ImportError: no worker gets further",
            "a process that read clips ended with status 1: the error that it printed is above",
        ),
        ("server", "SyntaxError", "no process to read clips could be started"),
    ],
)
def test_workers_that_die_at_import_end_the_job(tmp_path, raw_run, dies, printed, said):
    """In each worker, or in the server that they are forked from, whose modules are read once."""
    (tmp_path / "half_written.py").write_text("def")
    (tmp_path / "script.py").write_text(READING_SCRIPT)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", raw_run(tmp_path / "raw"), dies],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *_python_path()])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert printed in done.stderr
    assert f"RuntimeError: {said}" in done.stderr


def _python_path() -> list[str]:
    return list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def test_a_fault_of_the_program_comes_back_with_its_traceback(long_run):
    run, clips = long_run
    broken = replace(run, meta=None)
    with pytest.raises(RuntimeError, match=r"(?s)read\.py.*AttributeError.*width"):
        collect(broken, clips, 1)


def test_reading_encoding_and_finishing_overlap():
    """Three stages of 0.1 s over 5 clips: 0.7 s when they overlap, 1.5 s one after another."""

    class Slow(DctCodec):
        def encode(self, frames):
            time.sleep(0.1)
            return super().encode(frames)

    def read():
        for start in range(5):
            time.sleep(0.1)
            clip = ReadClip({"start": start, "drop": False})
            yield Reading(clip, np.zeros((5, 32, 32, 3), np.uint8), lambda: None)

    began = time.monotonic()
    order = []
    for clip, latents in encoded(read(), Slow):
        time.sleep(0.1)
        order.append(clip.row["start"])
        assert latents.shape == (48, 2, 2, 2)
    assert order == [0, 1, 2, 3, 4]
    assert time.monotonic() - began < 1.3
