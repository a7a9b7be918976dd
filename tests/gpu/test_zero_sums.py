"""Sums of gradients that overlap with training have the bits of DeepSpeed's own way."""

import json
import sys
from pathlib import Path

import pytest
import torch

from gc25d.train.processes.launch import Layout, run_processes

pytestmark = pytest.mark.gpu
PROGRAM = Path(__file__).parents[1] / "train/zero/zero_sum_checks.py"


@pytest.mark.parametrize("processes", [1, 2])
def test_overlapped_sums_have_the_bits_of_deepspeeds_own(processes: int, tmp_path: Path) -> None:
    """15 M weights in seven buckets, four steps of four micro-batches, three times over.

    Twice of these every sum is held up, so that what does not wait for it shows. With
    `reduce_scatter` on and off DeepSpeed sums the same values in other portions.
    """
    if torch.cuda.device_count() < processes:
        pytest.skip(f"needs {processes} GPUs")
    out = tmp_path / "found.json"
    command = [sys.executable, str(PROGRAM), str(out), str(processes)]
    assert run_processes(command, Layout(1, processes, gpu=True)) == 0
    found = json.loads(out.read_text())
    assert found["ours"] == [found["theirs"]] * 3
    assert found["scattered"] == found["theirs"]
    assert len(found["theirs"]) == processes
