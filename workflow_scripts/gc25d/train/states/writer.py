"""Saving: copy a process's fragments to host memory, write them while training goes on.

The processes of a run meet in files alone: the first one makes the folder, each writes its parts
and its record there, the first one waits for all records, writes the manifest and renames the
folder. A kill at any moment costs that state and no other.
"""

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.files import write_text
from gc25d.full_disk import is_disk_full
from gc25d.records import to_json, write_json
from gc25d.train.states.files import MANIFEST, record_name
from gc25d.train.states.folder import (
    building_folder,
    make_way,
    own_states,
    prune_states,
    removable_states,
    remove_leftovers,
    state_folder,
)
from gc25d.train.states.format import (
    PART_BYTES,
    Part,
    Written,
    manifest,
    part_header,
    parts_of,
    publish,
    shard_record,
    write_part,
)
from gc25d.train.states.fragments import Fragment, total_bytes
from gc25d.train.states.host_copies import HostCopies
from gc25d.train.states.storage import check_two_states_fit, disk_full, make_room

logger = logging.getLogger(__name__)

MOST_THREADS = 8
PEER_WAIT_S = 1800.0
"""How long a process waits for another one's part of a state, seconds."""
SAVED = "state of step %d: %.2f GB, training stood still for %.2f s, whole after %.1f s"
_POLL_S = 0.05


class StateWriter:
    """Writes the states of one process; `save` returns once they are copied off the device.

    What goes wrong while writing is raised by the next `check`, `save` or `wait`.
    """

    def __init__(
        self,
        root: Path,
        rank: int = 0,
        world_size: int = 1,
        *,
        processes_per_host: int = 1,
        part_bytes: int = PART_BYTES,
        peer_wait_s: float = PEER_WAIT_S,
    ) -> None:
        """Make the folder of the states and remove what a kill left half-written there.

        Args:
            root: of the states; all processes see it.
            rank: of this process.
            world_size: how many save together.
            processes_per_host: how many of them share this host's memory and processors.
            part_bytes: largest file of a state.
            peer_wait_s: how long to wait for the others' files, seconds.
        """
        self.root, self.rank, self.world_size = root, rank, world_size
        self.processes_per_host = processes_per_host
        self.part_bytes, self.peer_wait_s = part_bytes, peer_wait_s
        threads = max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // processes_per_host))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="state-writer")
        self._copies: HostCopies | None = None
        self._pending: Future[None] | None = None
        if rank == 0:
            root.mkdir(parents=True, exist_ok=True)
            remove_leftovers(root)

    def prepare(self, fragments: Sequence[Fragment], step: int, binding: str) -> None:
        """Before training: see that two states fit on the disk, and take the host memory.

        Args:
            fragments: as every save will give them.
            step: from which training goes on.
            binding: of the run.

        Raises:
            UserError: two states do not fit.
        """
        if self.rank == 0:
            present = own_states(self.root, step, binding).folders
            check_two_states_fit(self.root, self._size(fragments), present)
        self._host_copies(self._parts(fragments))

    def save(
        self,
        step: int,
        fragments: Sequence[Fragment],
        *,
        binding: str,
        checkpoint: bool,
        segment_start: int = 0,
    ) -> None:
        """Start writing the state after `step`.

        Args:
            step: optimizer steps behind it.
            fragments: this process's share; may change again when this returns.
            binding: digest of the settings and data that the state belongs to.
            checkpoint: whether it is a segment's end.
            segment_start: step at which the segment began.

        Raises:
            UserError: it does not fit on the disk, or the state before could not be written.
        """
        asked = time.monotonic()
        self.wait()
        building = building_folder(self.root, step)
        if self.rank == 0:
            removable = removable_states(self.root, step, binding)
            make_room(self.root, self._size(fragments), removable)
            building.mkdir(parents=True)
        parts = self._parts(fragments)
        copies = self._host_copies(parts)
        writing = [
            self._pool.submit(self._write, building, part, copies, copies.copy(part))
            for part in parts
        ]

        def complete() -> None:
            written = [future.result() for future in writing]
            self._record(building, parts, written)
            if self.rank == 0:
                self._publish(building, step, binding, checkpoint, segment_start)
                whole = time.monotonic() - asked
                logger.info(SAVED, step, needed / 1e9, stall, whole)
            else:
                self._see_published(building, step)

        needed = self._size(fragments)
        stall = time.monotonic() - asked
        self._pending = self._pool.submit(self._complete, complete, writing, building, needed)

    def check(self) -> None:
        """Raise what went wrong while writing, if it is known by now; costs nothing."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Return when the last state is whole on disk, all processes' parts of it.

        Raises:
            UserError: it could not be written; the states before it are untouched.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _size(self, fragments: Sequence[Fragment]) -> int:
        """Bytes of a state of all processes, whose shares are alike."""
        return total_bytes(fragments) * self.world_size

    def _parts(self, fragments: Sequence[Fragment]) -> list[Part]:
        return parts_of(fragments, self.rank, self.world_size, self.part_bytes)

    def _host_copies(self, parts: list[Part]) -> HostCopies:
        """The buffers; taken once, because the states of a run are all alike."""
        if self._copies is None:
            devices = [fragment.values.device for part in parts for fragment in part.fragments]
            gpu = next((device for device in devices if device.type == "cuda"), torch.device("cpu"))
            self._copies = HostCopies(parts, gpu, self.processes_per_host)
            self._copies.allocate(self._pool)
        return self._copies

    def _write(self, building: Path, part: Part, copies: HostCopies, buffer: Tensor) -> Written:
        with copies.lent(buffer):
            self._await(building.exists, f"{building} was not made by the first process")
            return write_part(building / part.file, part_header(part), buffer[: part.values])

    def _record(self, building: Path, parts: Sequence[Part], written: Sequence[Written]) -> None:
        self._await(building.exists, f"{building} was not made by the first process")
        text = to_json(shard_record(parts, written), indent=None)
        write_text(building / record_name(self.rank, self.world_size), text + "\n")

    def _publish(
        self, building: Path, step: int, binding: str, checkpoint: bool, segment_start: int
    ) -> None:
        """Wait for all records, then make the state whole; older ones go."""
        for rank in range(self.world_size):
            record = building / record_name(rank, self.world_size)
            self._await(record.exists, f"{record} was not written by process {rank}")
        content: dict[str, Any] = manifest(
            building,
            step,
            self.world_size,
            binding=binding,
            checkpoint=checkpoint,
            segment_start=segment_start,
        )
        write_json(building / MANIFEST, content)
        folder = state_folder(self.root, step)
        make_way(folder, binding)
        publish(building, folder)
        prune_states(self.root, step, binding)

    def _see_published(self, building: Path, step: int) -> None:
        self._await(lambda: not building.exists(), f"{building} was not finished")
        if not (state_folder(self.root, step) / MANIFEST).exists():
            raise UserError(f"{building} was given up by the first process, whose message says why")

    def _complete(
        self,
        complete: Callable[[], None],
        writing: Sequence[Future[Written]],
        building: Path,
        needed: int,
    ) -> None:
        """Finish a state, or remove what there is of it."""
        try:
            wait(writing)
            complete()
        except Exception as error:
            if self.rank == 0:
                shutil.rmtree(building, ignore_errors=True)
            if is_disk_full(error):
                raise disk_full(self.root, needed) from error
            raise

    def _await(self, reached: Callable[[], bool], missing: str) -> None:
        deadline = time.monotonic() + self.peer_wait_s
        while not reached():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{missing} within {self.peer_wait_s:.0f} s: see that all processes run and "
                    "write to the same file system; the state before this one is kept"
                )
            time.sleep(_POLL_S)
