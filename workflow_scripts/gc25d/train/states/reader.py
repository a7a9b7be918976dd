"""Loading: each process assembles its fragments from those that any number of processes saved."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gc25d.errors import UserError
from gc25d.tensors import open_tensors
from gc25d.train.states.files import Place, StoredState, read_record
from gc25d.train.states.format import fragment_key
from gc25d.train.states.fragments import Fragment, kind_of, parameter_of

THREADS = 8
_NAMED = 5
"""How many tensors a message lists."""


@dataclass(frozen=True)
class StoredRange:
    """Where values `start` to `stop` of a flattened tensor lie."""

    start: int
    stop: int
    file: Path
    key: str


@dataclass(frozen=True)
class StateTable:
    """What a state holds."""

    folder: Path
    shapes: Mapping[str, tuple[int, ...]]
    ranges: Mapping[str, Sequence[StoredRange]]
    """Of each tensor, by start; those of a tensor that every process saved overlap."""


@dataclass(frozen=True)
class Copy:
    """Values of a file that go to a place in memory."""

    stored: StoredRange
    start: int
    stop: int
    into: Tensor


def state_table(state: StoredState) -> StateTable:
    """The tensors of a state and where their values lie.

    Raises:
        UserError: a record is broken, a tensor has two shapes, or values of it are in no file.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    ranges: defaultdict[str, list[StoredRange]] = defaultdict(list)
    for record in state.records:
        for place in read_record(state, record).fragments:
            name, shape = place.name, tuple(place.shape)
            if shapes.setdefault(name, shape) != shape:
                raise UserError(f"{state.folder}: {name} is {shapes[name]} and {shape}")
            ranges[name].append(_stored_range(state.folder, place))
    ordered = {
        name: sorted(found, key=lambda stored: stored.start) for name, found in ranges.items()
    }
    for name, found in ordered.items():
        _covering(state.folder, name, found, 0, math.prod(shapes[name]))
    return StateTable(state.folder, shapes, ordered)


def _stored_range(folder: Path, place: Place) -> StoredRange:
    start, stop = place.start, place.stop
    key = fragment_key(place.name, start, stop, whole=stop - start == place.size)
    return StoredRange(start, stop, folder / place.file, key)


def load_state(
    state: StoredState,
    fragments: Sequence[Fragment],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Write a state's values into live fragments, whichever processes saved them.

    Args:
        state: a state whose digests were checked.
        fragments: this process's share.
        shapes: name → shape of every tensor of all processes; without, those of `fragments`.

    Raises:
        UserError: a tensor is missing, left over or misshapen, or has a gap; named.
    """
    table = state_table(state)
    _check_names(table, shapes if shapes is not None else shapes_of(fragments))
    by_file: defaultdict[Path, list[Copy]] = defaultdict(list)
    for fragment in fragments:
        for copy in _copies(table, fragment):
            by_file[copy.stored.file].append(copy)
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(_read, by_file.items()):
            pass


def shapes_of(fragments: Iterable[Fragment]) -> dict[str, tuple[int, ...]]:
    """Name → shape of the whole tensor."""
    return {fragment.name: tuple(fragment.shape) for fragment in fragments}


def read_whole(state: StoredState, kind: str) -> dict[str, Tensor]:
    """`<role>/<parameter>` → float32 tensor of all values of one kind, in host memory.

    Raises:
        UserError: the state has none of that kind.
    """
    table = state_table(state)
    shapes = {name: shape for name, shape in table.shapes.items() if kind_of(name) == kind}
    if not shapes:
        raise UserError(f"{state.folder}: holds no {kind}")
    tensors = {name: torch.empty(shape, dtype=torch.float32) for name, shape in shapes.items()}
    fragments = [Fragment(n, shapes[n], 0, tensor.view(-1)) for n, tensor in tensors.items()]
    load_state(state, fragments, table.shapes)
    return {parameter_of(name): tensor for name, tensor in tensors.items()}


def _check_names(table: StateTable, wanted: Mapping[str, tuple[int, ...]]) -> None:
    missing = sorted(wanted.keys() - table.shapes)
    unexpected = sorted(table.shapes.keys() - wanted)
    misshapen = [
        f"{name} {table.shapes[name]}, expected {tuple(wanted[name])}"
        for name in sorted(wanted.keys() & table.shapes)
        if table.shapes[name] != tuple(wanted[name])
    ]
    if missing or unexpected or misshapen:
        raise UserError(
            f"{table.folder}: missing {missing[:_NAMED]}, unexpected {unexpected[:_NAMED]}, "
            f"misshapen {misshapen[:_NAMED]}: it belongs to another model"
        )


def _copies(table: StateTable, fragment: Fragment) -> list[Copy]:
    """What to read for a fragment."""
    ranges = table.ranges[fragment.name]
    return [
        Copy(stored, start, stop, fragment.values[start - fragment.start : stop - fragment.start])
        for stored, start, stop in _covering(
            table.folder, fragment.name, ranges, fragment.start, fragment.stop
        )
    ]


def _covering(
    folder: Path, name: str, ranges: Sequence[StoredRange], start: int, stop: int
) -> list[tuple[StoredRange, int, int]]:
    """The values that each range gives, so that `start` to `stop` is covered once.

    Raises:
        UserError: some are in no file.
    """
    found = []
    for stored in ranges:
        until = min(stored.stop, stop)
        if stored.start <= start < until:
            found.append((stored, start, until))
            start = until
    if start < stop:
        raise UserError(
            f"{folder}: {name}: its values from {start} on are in no file: restore the state, or "
            "delete it to go on from an older one"
        )
    return found


def _read(item: tuple[Path, Sequence[Copy]]) -> None:
    """Copy slices of one memory-mapped file; no more than those is read."""
    path, copies = item
    with open_tensors(path) as file, torch.no_grad():
        for copy in copies:
            copy.into.copy_(_slice(file, path, copy))


def _slice(file: safe_open, path: Path, copy: Copy) -> Tensor:
    """The values that a copy wants.

    Raises:
        UserError: the part does not hold them, although its digest is right.
    """
    start, stop = copy.start - copy.stored.start, copy.stop - copy.stored.start
    try:
        values: Tensor = file.get_slice(copy.stored.key)[start:stop]  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise UserError(f"{path}: {error}, but its record lists it: delete {path.parent}") from None
    if values.shape != copy.into.shape:
        raise UserError(
            f"{path}: {copy.stored.key} holds {tuple(values.shape)} of the values {start} to "
            f"{stop} that its record says: delete {path.parent}"
        )
    return values
