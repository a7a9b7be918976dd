"""References that are recorded and compared with in one command; the steps are stand-ins."""

import importlib
from pathlib import Path
from typing import Any

import pytest

REFS, REPORT = "refs/CPU.json", "regression/CPU.json"
STEP = """
import sys, time
from pathlib import Path
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
refs = Path(given.get("--refs", "none"))
time.sleep({sleep})
Path(given["--out"]).write_text({content})
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty folder; a recording takes longer than a comparison takes to begin."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    sequence = importlib.import_module("any_sequence")
    repository = sequence.install(tmp_path / "repository")
    steps = repository / "workflow_scripts/gc25d/steps"
    (steps / "record_refs.py").write_text(STEP.format(sleep=1.5, content="str(time.time_ns())"))
    compared = 'refs.read_text() if refs.exists() else "no references"'
    (steps / "check_refs.py").write_text(STEP.format(sleep=0, content=compared))
    return sequence.Run(tmp_path / "run", repository)


def both(run: Any) -> tuple[str, str]:
    """What was recorded, and what was compared with."""
    return tuple((run.folder / name).read_text() for name in (REFS, REPORT))


def test_a_comparison_waits_for_the_recording_and_follows_it(run: Any) -> None:
    assert run.call(REFS, REPORT) == 0, run.said
    recorded, compared = both(run)
    assert compared == recorded
    assert run.call(f"./{REFS}", REPORT, "--forcerun", "record_references") == 0, run.said
    again, compared = both(run)
    assert compared == again != recorded
    assert run.call(REPORT, "--forcerun", "record_references") == 0, run.said
    third, compared = both(run)
    assert compared == third != again


def test_a_comparison_alone_records_nothing(run: Any) -> None:
    assert run.call(REPORT) == 0, run.said
    assert not (run.folder / REFS).exists()
    assert (run.folder / REPORT).read_text() == "no references"
    (run.folder / REFS).parent.mkdir()
    (run.folder / REFS).write_text("by hand")
    assert run.call(REPORT, "--forceall") == 0, run.said
    assert both(run) == ("by hand", "by hand")
    assert run.call(REPORT, "--delete-all-output") == 0, run.said
    assert (run.folder / REFS).exists()
    assert not (run.folder / REPORT).exists()
