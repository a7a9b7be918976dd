import contextlib
import dataclasses
import json
import math
import signal
import subprocess
import sys
import time

import pytest

from gc25d.errors import UserError
from gc25d.regression.refs import (
    Measurement,
    Origin,
    Reference,
    compare,
    read_refs,
    record,
    reference_of,
)

ORIGIN = Origin("CPU", "2.13.0", "", "", "2026-01-01T00:00:00Z")


def measured(*norms: float, fixture: str = "f") -> Measurement:
    return Measurement("wan/finetune", norms, fixture)


def reference(norm: float = 1.0, rtol: float = 0.1, fixture: str = "f") -> Reference:
    return Reference(norm, rtol, 0.0, 3, fixture, ORIGIN)


def test_norm_and_spread_by_hand():
    m = measured(1.0, 1.02, 0.98)
    assert m.norm == pytest.approx(1.0)
    assert m.spread == pytest.approx(0.04)


def test_a_recorded_cell_reads_back_equal(tmp_path):
    path = tmp_path / "refs" / "CPU.json"
    kept = reference_of(measured(2.0, 2.0), 0.05, ORIGIN)
    record(path, "CPU", {"wan/finetune": kept})
    assert read_refs(path, "CPU") == {"wan/finetune": kept}
    assert kept.norm == 2.0
    assert kept.repeats == 2


@pytest.mark.parametrize(
    ("norm", "outcome"), [(1.0, "ok"), (1.0999, "ok"), (0.9001, "ok"), (1.11, "out"), (0.89, "out")]
)
def test_the_tolerance_is_relative_to_the_reference(norm, outcome):
    verdict = compare(measured(norm), {"wan/finetune": reference()}, 0.5)
    assert verdict.outcome == outcome
    assert verdict.relative_error == pytest.approx(abs(norm - 1.0))
    assert verdict.failed(strict=False) == (outcome == "out")


def test_the_cell_s_own_tolerance_wins():
    refs = {"wan/finetune": reference(rtol=0.01)}
    assert compare(measured(1.05), refs, 0.1).outcome == "out"


def test_the_caller_s_tolerance_goes_before_the_recorded_one():
    refs = {"wan/finetune": reference(rtol=0.1)}
    wider, tighter = (compare(measured(1.15), refs, 0.5, rtol=rtol) for rtol in (0.2, 0.12))
    assert (wider.outcome, wider.rtol) == ("ok", 0.2)
    assert (tighter.outcome, tighter.rtol) == ("out", 0.12)
    with pytest.raises(UserError, match=r"rtol / 2 = 0\.01"):
        compare(measured(1.0, 1.02), refs, 0.5, rtol=0.02)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
@pytest.mark.parametrize("others", [(), (1.0,)])
def test_no_number_is_refused_in_both_modes(bad, others):
    m = measured(*others, bad)
    with pytest.raises(UserError, match="positive number"):
        compare(m, {"wan/finetune": reference()}, 0.1)
    with pytest.raises(UserError, match="positive number"):
        compare(m, {}, 0.1)
    with pytest.raises(UserError, match="positive number"):
        reference_of(m, 0.1, ORIGIN)


def test_a_spread_beyond_half_the_tolerance_is_refused_in_both_modes():
    assert reference_of(measured(1.0, 1.04), 0.1, ORIGIN).spread < 0.05
    with pytest.raises(UserError, match="rtol / 2"):
        reference_of(measured(1.0, 1.06), 0.1, ORIGIN)
    with pytest.raises(UserError, match="rtol / 2"):
        compare(measured(1.0, 1.06), {"wan/finetune": reference()}, 0.1)


def test_missing_and_stale_are_skips_and_strict_failures():
    missing = compare(measured(1.0), {"other/cell": reference()}, 0.1)
    stale = compare(measured(1.0, fixture="new"), {"wan/finetune": reference()}, 0.1)
    assert (missing.outcome, stale.outcome) == ("missing", "stale")
    for verdict in (missing, stale):
        assert verdict.relative_error is None
        assert not verdict.failed(strict=False)
        assert verdict.failed(strict=True)


def test_cells_of_others_survive(tmp_path):
    path = tmp_path / "H200.json"
    record(path, "H200", {"b": reference(2.0), "a": reference(1.0)})
    record(path, "H200", {"a": reference(3.0)})
    assert {name: cell.norm for name, cell in read_refs(path, "H200").items()} == {"a": 3, "b": 2}
    assert list(json.loads(path.read_text())["cells"]) == ["a", "b"]


def broken(change) -> str:
    content = {
        "format": 1,
        "device": "CPU",
        "cells": {"a": dataclasses.asdict(reference())},
    }
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        broken(lambda c: c.update(device="H200")),
        broken(lambda c: c.update(format=2)),
        broken(lambda c: c.pop("cells")),
        broken(lambda c: c["cells"]["a"].pop("rtol")),
        broken(lambda c: c["cells"]["a"].update(rtol=10)),
        broken(lambda c: c["cells"]["a"].update(norm=0)),
        broken(lambda c: c["cells"]["a"].update(norm="1")),
        broken(lambda c: c["cells"]["a"].update(norm=math.nan)),
        broken(lambda c: c["cells"]["a"].update(norm=1)).replace('"norm": 1,', '"norm": 1e999,'),
        broken(lambda c: c["cells"]["a"].update(origin=None)),
        broken(lambda c: c["cells"].update(a=None)),
    ],
)
def test_a_damaged_file_is_an_error_and_never_overwritten(tmp_path, text):
    path = tmp_path / "CPU.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"CPU\.json"):
        read_refs(path, "CPU")
    with pytest.raises(UserError, match=r"CPU\.json"):
        record(path, "CPU", {"a": reference()})
    assert path.read_text() == text


def test_a_file_from_before_imports_were_possible_is_read(tmp_path):
    path = tmp_path / "CPU.json"
    path.write_text(broken(lambda c: c["cells"]["a"]["origin"].pop("source")))
    assert read_refs(path, "CPU") == {"a": reference()}


WRITER = """
import sys
from pathlib import Path
from gc25d.regression.refs import Origin, Reference, record
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for i in range(1, count + 1):
    cell = Reference(float(i), 0.1, 0.0, 1, "f", Origin("CPU", "", "", "", ""))
    record(path, "CPU", {name: cell, f"{name}-{i}": cell})
"""


def writer(path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(count)])


def test_two_writers_keep_each_other_s_cells_and_a_killed_one_breaks_nothing(tmp_path):
    path = tmp_path / "CPU.json"
    steady = [writer(path, name, 50) for name in ("a", "b")]
    killed = writer(path, "killed", 1_000_000)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if "killed" in json.loads(path.read_text())["cells"]:
                break
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(30) == -signal.SIGKILL
    assert [process.wait(60) for process in steady] == [0, 0]
    cells = read_refs(path, "CPU")
    expected = {f"{name}-{i}" for name in "ab" for i in range(1, 51)} | {"a", "b", "killed"}
    assert expected <= set(cells)
    assert cells["a"].norm == cells["b"].norm == 50
