"""The hooks for FSDP2 and DCP with the real ones, on two processes; nothing else calls them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

PROGRAM = Path(__file__).with_name("fsdp_checks.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("fsdp")
    commands = [
        [sys.executable, str(PROGRAM), str(rank), str(folder / "store"), str(folder / "checkpoint")]
        for rank in (0, 1)
    ]
    processes = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    names = dcp.FileSystemReader(folder / "checkpoint").read_metadata().state_dict_metadata
    return [{**json.loads(text), "names": list(names)} for text in printed]


def test_gradients_are_reduced_with_the_last_micro_batch_alone(found: list[dict[str, Any]]) -> None:
    """Of three; the critic's, beside the student and, at iteration 1, alone."""
    for process in found:
        assert process["reduced"] == [[False, False, True]] * 2
        norms, expected = process["norms"]
        assert norms == pytest.approx(expected, rel=1e-5)
        assert min(expected) > 0


def test_a_sharded_state_goes_through_dcp(found: list[dict[str, Any]]) -> None:
    """Resumed from it, another model takes the steps of the one that went on, bit for bit."""
    assert found[0]["weights"] == found[1]["weights"]
    for going_on, resumed, alone in found[0]["weights"]:
        assert resumed == going_on
        assert going_on == pytest.approx(alone, rel=1e-4, abs=1e-6)
    for name in ("roles.student.transformer", "optimizers.critic", "schedulers.student"):
        assert any(key.startswith(f"{name}.") for key in found[0]["names"])
