"""Recorded gradient norms: read, compared and updated. Imports no torch.

`refs/<DEVICE>.json` holds one device's cells. Writers take a lock and replace the file whole, so
that two of them keep each other's cells and a killed one leaves the file as it was.
"""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gc25d.errors import UserError
from gc25d.files import real_path
from gc25d.locks import locked
from gc25d.records import read_json, write_jsons

FORMAT = 1
LOCK_WAIT_S = 60.0

Outcome = Literal["ok", "out", "missing", "stale"]
Change: TypeAlias = "Callable[[dict[str, Reference]], Mapping[str, Reference]]"
"""The cells of a device that are recorded → those that shall be."""


@dataclass(frozen=True)
class Measurement:
    """A cell's block-0 gradient norm, measured `len(norms)` times on the fixture `fixture`."""

    cell: str
    norms: tuple[float, ...]
    fixture: str
    base: str = ""
    """Digest of the files of its base weights, "" where they are drawn or not known."""

    @property
    def norm(self) -> float:
        """The mean of the repeats."""
        return math.fsum(self.norms) / len(self.norms)

    @property
    def spread(self) -> float:
        """(largest − smallest) / mean of the repeats."""
        return (max(self.norms) - min(self.norms)) / self.norm


@dataclass(frozen=True)
class Origin:
    """Where and when a norm was measured; "" where it does not apply."""

    device_name: str
    torch: str
    cuda: str
    driver: str
    recorded: str
    source: str = ""
    """File from which the norm was imported, "" where it was measured here."""


@dataclass(frozen=True)
class Reference:
    """A recorded cell.

    `rtol` is the tolerance in force when it was recorded, or given with an import. `fixture` is the
    digest of what was measured, "" where an imported norm does not say; so is `base`, of the files
    of base weights, of which `fixture` covers block 0 alone.
    """

    norm: float
    rtol: float
    spread: float
    repeats: int
    fixture: str
    origin: Origin
    base: str = ""

    def comparable(self, measured: Measurement) -> bool:
        """Whether it was recorded for what is measured now, as far as both say."""
        fits = self.fixture in ("", measured.fixture)
        return fits and (self.base == measured.base or not (self.base and measured.base))


@dataclass(frozen=True)
class Verdict:
    """The outcome of a cell's comparison.

    `missing` (nothing recorded) and `stale` (recorded for another fixture) are skips, unless the
    check is strict. `relative_error` and `reference` are None for those two.
    """

    cell: str
    outcome: Outcome
    norm: float
    reference: float | None
    relative_error: float | None
    rtol: float
    spread: float

    def failed(self, strict: bool) -> bool:
        """Whether this verdict fails a check."""
        return self.outcome == "out" or (strict and self.outcome != "ok")


def check_measurement(measured: Measurement, rtol: float) -> None:
    """Refuse a norm that can be no reference and no match, before any comparison.

    Raises:
        UserError: a norm is NaN, infinite, zero or negative, or the repeats differ by more than
            rtol / 2.
    """
    if not measured.norms:
        raise ValueError(f"{measured.cell}: no norm was measured")
    for norm in measured.norms:
        if not math.isfinite(norm) or norm <= 0:
            raise UserError(
                f"{measured.cell}: gradient norm is {norm}, expected a positive number: "
                "no gradient reaches block 0, or it is not finite; nothing is compared or recorded"
            )
    if measured.spread > rtol / 2:
        raise UserError(
            f"{measured.cell}: repeats differ by {measured.spread:.3g} of their mean, expected at "
            f"most rtol / 2 = {rtol / 2:.3g}: the measurement is not deterministic enough; "
            "nothing is compared or recorded"
        )


def compare(
    measured: Measurement,
    references: Mapping[str, Reference],
    default_rtol: float,
    *,
    rtol: float | None = None,
) -> Verdict:
    """Compare a measurement with its cell's reference.

    Args:
        measured: the cell's norms.
        references: by cell.
        default_rtol: the tolerance where neither the caller nor a reference has one.
        rtol: the caller's tolerance; None takes the recorded one.

    Raises:
        UserError: see `check_measurement`.
    """
    reference = references.get(measured.cell)
    if rtol is None:
        rtol = reference.rtol if reference else default_rtol
    check_measurement(measured, rtol)
    if reference is None or not reference.comparable(measured):
        outcome: Outcome = "missing" if reference is None else "stale"
        return Verdict(
            measured.cell, outcome, measured.norm, None, None, rtol, spread=measured.spread
        )
    error = abs(measured.norm - reference.norm) / reference.norm
    return Verdict(
        measured.cell,
        "ok" if error <= rtol else "out",
        measured.norm,
        reference.norm,
        error,
        rtol,
        spread=measured.spread,
    )


def read_refs(path: Path, device: str) -> dict[str, Reference]:
    """The cells recorded in `path`; none when the file is missing.

    Raises:
        UserError: the file is damaged, of another format or device, or holds a norm that is no
            positive number.
    """
    if not path.exists():
        return {}
    content = read_json(path)
    try:
        if content["format"] != FORMAT or content["device"] != device:
            raise ValueError(
                f"format {content['format']} of device {content['device']}, "
                f"expected format {FORMAT} of {device}"
            )
        return {name: _reference(cell) for name, cell in content["cells"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: no gradient-norm references ({error}): restore the file or record it anew"
        ) from None


def record(path: Path, device: str, cells: Mapping[str, Reference]) -> None:
    """Add or replace `cells` in `path`; the other cells stay.

    Raises:
        UserError: another process holds the file's lock, or the file is damaged.
    """
    update_refs({path: (device, lambda present: {**present, **cells})})


def update_refs(changes: Mapping[Path, tuple[str, Change]]) -> None:
    """Replace the cells of one or several files, of all or of none, under their locks.

    Args:
        changes: file → its device and the change of its cells.

    Raises:
        UserError: another process holds a lock, or a file is damaged; or what a change raises.
            Every file is as it was.
    """
    with contextlib.ExitStack() as locks:
        for path in sorted(changes):
            held = f"{path} is being written"
            locks.enter_context(locked(lock_of(path), wait_s=LOCK_WAIT_S, held=held))
        write_jsons({path: _changed(path, *change) for path, change in changes.items()})


def lock_of(path: Path) -> Path:
    """The lock of a file: one, by whatever links it is reached."""
    target = real_path(path)
    return target.parent / f".{target.name}.lock"


def _changed(path: Path, device: str, change: Change) -> dict[str, Any]:
    changed = change(read_refs(path, device))
    cells = {name: _row(changed[name]) for name in sorted(changed)}
    return {"format": FORMAT, "device": device, "cells": cells}


def _row(reference: Reference) -> dict[str, Any]:
    row = dataclasses.asdict(reference)
    return row if reference.base else {name: row[name] for name in row if name != "base"}


def reference_of(measured: Measurement, rtol: float, origin: Origin) -> Reference:
    """What is recorded for a measurement.

    Raises:
        UserError: see `check_measurement`.
    """
    check_measurement(measured, rtol)
    return Reference(
        norm=measured.norm,
        rtol=rtol,
        spread=measured.spread,
        repeats=len(measured.norms),
        fixture=measured.fixture,
        origin=origin,
        base=measured.base,
    )


def utc_now() -> str:
    """The time of a recording, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _reference(cell: dict[str, Any]) -> Reference:
    reference = Reference(**{**cell, "origin": Origin(**cell["origin"])})
    if not is_norm(reference.norm):
        raise ValueError(f"norm is {reference.norm!r}, expected a positive number")
    if not is_rtol(reference.rtol):
        raise ValueError(f"rtol is {reference.rtol!r}, expected a fraction such as 0.1")
    return reference


def is_rtol(value: object) -> bool:
    """Whether a JSON value is a tolerance: from 1 on a dead gradient would pass."""
    return is_norm(value) and float(str(value)) < 1


def is_norm(value: object) -> bool:
    """Whether a JSON value is a positive number that a double holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= sys.float_info.max
