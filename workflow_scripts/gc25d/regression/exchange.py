"""Gradient norms of another project: JSON of the form {test: {device: norm}} ↔ our cells.

Such a file says neither how a norm was measured nor with what tolerance: an
imported reference has no fixture digest, so that the fixture is never found stale.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gc25d.errors import UserError
from gc25d.locks import locked
from gc25d.records import read_json, write_json
from gc25d.regression.devices import KEYS, device_key
from gc25d.regression.refs import (
    LOCK_WAIT_S,
    Origin,
    Reference,
    is_norm,
    lock_of,
    read_refs,
    update_refs,
)

Norms: TypeAlias = dict[str, dict[str, float]]
"""Cell → device key → norm."""


def read_norms(path: Path, names: Mapping[str, str]) -> Norms:
    """The norms of one file, by our cells' names and device keys.

    Args:
        path: JSON `{test: {device: norm}}`.
        names: their test → our cell; other tests keep their name.

    Raises:
        UserError: no such form, an unknown device, a norm that is no positive number, or two norms
            for one cell and device; names the test.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: expected {{test: {{device: norm}}}} with at least one test")
    found: Norms = {}
    for test, devices in content.items():
        if not test.strip() or not isinstance(devices, dict) or not devices:
            raise UserError(f"{path}, {test!r}: {devices!r}, expected {{device: norm}}")
        for device, norm in devices.items():
            if not is_norm(norm):
                raise UserError(
                    f"{path}, {test!r}, {device}: norm is {norm!r}, expected a positive number: "
                    "measure it anew; nothing was imported"
                )
            add_norm(found, names.get(test, test), known_key(device, path), float(norm), path)
    return found


def known_key(device: str, path: Path) -> str:
    """The key of a device named in somebody else's file.

    Raises:
        UserError: the table has no such device, and the name is not spelled as a key.
    """
    key = device_key(device)
    if key in KEYS.values() or key == device:
        return key
    raise UserError(
        f"{path}: {device!r} is no known device: use one of {', '.join(sorted(set(KEYS.values())))}"
        f", or spell it as the key of a device of your own, {key}"
    )


def add_norm(found: Norms, cell: str, key: str, norm: float, path: Path) -> None:
    """Put one norm into `found`.

    Raises:
        UserError: another one is there for the same cell and device.
    """
    devices = found.setdefault(cell, {})
    if devices.get(key, norm) != norm:
        raise UserError(
            f"{path}: {cell} has {devices[key]} and {norm} for {key}: keep one of them "
            "(B200 stands under GB200); nothing was written"
        )
    devices[key] = norm


def merge_norms(files: Sequence[Path], names: Mapping[str, str]) -> Norms:
    """The norms of several files together.

    Raises:
        UserError: see `read_norms`.
    """
    merged: Norms = {}
    for path in files:
        for cell, devices in read_norms(path, names).items():
            for key, norm in devices.items():
                add_norm(merged, cell, key, norm, path)
    return merged


def by_device(
    norms: Norms, rtol: float, source: str, moment: str
) -> dict[str, dict[str, Reference]]:
    """Device key → cell → what is recorded of an imported norm, devices sorted."""
    devices = sorted({device for found in norms.values() for device in found})
    return {
        device: {
            cell: imported(found[device], rtol, source, moment)
            for cell, found in norms.items()
            if device in found
        }
        for device in devices
    }


def imported(norm: float, rtol: float, source: str, moment: str) -> Reference:
    """A reference that somebody else measured once."""
    origin = Origin(device_name="", torch="", cuda="", driver="", recorded=moment, source=source)
    return Reference(norm, rtol, spread=0.0, repeats=1, fixture="", origin=origin)


def import_devices(
    root: Path, devices: Mapping[str, Mapping[str, Reference]], *, replace: bool
) -> dict[str, tuple[int, int]]:
    """Add imported cells to the `root/<device>.json` of all devices, or to none.

    A cell that is there with the same norm stays as it is, with all that is known of it.

    Args:
        root: folder of the files.
        devices: device key → imported cells.
        replace: whether cells that are there with another norm are replaced.

    Returns:
        How many cells of each device were added, and how many were there.

    Raises:
        UserError: a cell is there with another norm and `replace` is not set, or a file is
            damaged or locked; every file is as it was.
    """
    files = {root / f"{device}.json": device for device in devices}
    counts: dict[str, tuple[int, int]] = {}

    def change(path: Path, device: str, present: dict[str, Reference]) -> dict[str, Reference]:
        cells = devices[device]
        if not replace:
            refuse_conflicts(path, present, cells)
        new = {name: cell for name, cell in cells.items() if not _same(present.get(name), cell)}
        counts[device] = len(new), len(cells) - len(new)
        return {**present, **new}

    for path, device in files.items():  # what is refused anyway leaves no lock file either
        change(path, device, read_refs(path, device))
    update_refs({path: (dev, functools.partial(change, path, dev)) for path, dev in files.items()})
    return counts


def _same(present: Reference | None, cell: Reference) -> bool:
    return present is not None and present.norm == cell.norm


def refuse_conflicts(
    path: Path, present: Mapping[str, Reference], cells: Mapping[str, Reference]
) -> None:
    """Refuse cells that `path` has with another norm.

    Raises:
        UserError: names the first and both norms.
    """
    for name, cell in cells.items():
        if name in present and not _same(present[name], cell):
            raise UserError(
                f"{path}: {name} is {present[name].norm} there and {cell.norm} in the import: "
                "keep one, or import with --replace"
            )


def recorded_norms(files: Sequence[Path]) -> Norms:
    """The norms of our reference files `<DEVICE>.json`.

    Raises:
        UserError: a file is missing or damaged, or two of one device disagree.
    """
    found: Norms = {}
    for path in files:
        if not path.exists():
            raise UserError(f"{path}: not found: record it first")
        for name, cell in read_refs(path, path.stem).items():
            add_norm(found, name, path.stem, cell.norm, path)
    return found


def export_norms(norms: Norms, out: Path, names: Mapping[str, str]) -> None:
    """Write norms as `{test: {device: norm}}`; what `out` has of other tests and devices stays.

    Args:
        norms: ours.
        out: the other project's file, which may be missing.
        names: their test → our cell; other cells keep their name.

    Raises:
        UserError: `out` is damaged or locked, or two cells would become one test; it stays as it
            was.
    """
    tests = their_tests(norms, names)
    with locked(lock_of(out), wait_s=LOCK_WAIT_S, held=f"{out} is in use"):
        merged: dict[str, dict[str, Any]] = read_json(out) if out.exists() else {}
        if not isinstance(merged, dict) or not all(isinstance(d, dict) for d in merged.values()):
            raise UserError(f"{out}: expected {{test: {{device: norm}}}}: restore or delete it")
        for cell, devices in norms.items():
            test = tests[cell]
            known = merged.get(test, {})
            kept = {d: norm for d, norm in known.items() if device_key(d) not in devices}
            merged[test] = dict(sorted({**kept, **devices}.items()))
        write_json(out, dict(sorted(merged.items())))


def their_tests(cells: Iterable[str], names: Mapping[str, str]) -> dict[str, str]:
    """Our cells → their tests.

    Raises:
        UserError: a cell that keeps its name has that of another cell's test.
    """
    theirs = {cell: test for test, cell in names.items()}
    tests = {cell: theirs.get(cell, cell) for cell in cells}
    for cell, test in tests.items():
        if test != cell and tests.get(test) == test:
            raise UserError(
                f"{cell} is to become {test}, but {test} is a cell of its own: give it another "
                "name in --names; nothing was exported"
            )
    return tests


def read_names(path: Path | None) -> dict[str, str]:
    """A table {their test: our cell}; none without a file.

    Raises:
        UserError: the file is no such table, or two tests stand for one cell.
    """
    if path is None:
        return {}
    names = read_json(path)
    if not isinstance(names, dict) or not all(isinstance(cell, str) for cell in names.values()):
        raise UserError(f"{path}: expected {{their test: our cell}}")
    if len(set(names.values())) != len(names):
        raise UserError(f"{path}: two tests stand for one cell: keep one of them")
    return names
