"""Validation shared out over processes tells the same as on one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.model.zoo import build_model, wan_config
from gc25d.train.validate import Validation, validation_batches

CPU = torch.device("cpu")
CLIPS = 5


@pytest.fixture(scope="module")
def clips(small_dataset: Path) -> ClipDataset:
    return ClipDataset(small_dataset, "val")


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    """Untrained, but with a head, so that predictions depend on the input."""
    return build_model(wan_config("tiny", "parts", 8), 1, zero_head=False)


def run(
    clips: ClipDataset, model: torch.nn.Module, world_size: int, micro_batch: int = 2
) -> list[dict[str, Any]]:
    """Rows of the last process, after all others have told their part of each row."""
    told: list[list[Any]] = [[] for _ in range(world_size)]
    rows: list[dict[str, Any]] = []
    for rank in range(world_size):
        asked = iter(range(2))

        def gather(own: Any, rank: int = rank, asked: Any = asked) -> list[Any]:
            told[rank].append(own)
            number = next(asked)
            return [parts[number] for parts in told if len(parts) > number]

        batches = validation_batches(clips, CLIPS, micro_batch, CPU, rank, world_size)
        rows = Validation(batches, clips.table, [200, 800], 3, gather).run(model, 7)
    return rows


def test_processes_read_each_batch_once(clips: ClipDataset) -> None:
    whole = validation_batches(clips, CLIPS, 2, CPU)
    assert [number for number, _ in whole] == [0, 1, 2]
    assert [len(batch) for _, batch in whole] == [2, 2, 1]
    parts = [validation_batches(clips, CLIPS, 2, CPU, rank, 2) for rank in range(2)]
    assert [[number for number, _ in part] for part in parts] == [[0, 2], [1]]
    shared = {number: batch.clip_ids for part in parts for number, batch in part}
    assert shared == {number: batch.clip_ids for number, batch in whole}
    # More processes than batches: some have nothing to do.
    assert validation_batches(clips, CLIPS, 2, CPU, 3, 4) == []


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_rows_do_not_depend_on_the_number_of_processes(
    clips: ClipDataset, model: torch.nn.Module, world_size: int
) -> None:
    assert run(clips, model, world_size) == run(clips, model, 1)


def test_a_row_is_the_mean_over_clips(clips: ClipDataset, model: torch.nn.Module) -> None:
    alone = run(clips, model, 1, micro_batch=1)
    for one, together in zip(alone, run(clips, model, 1), strict=True):
        assert one["n"] == together["n"] == CLIPS
        assert one["mse"] == pytest.approx(together["mse"], rel=1e-5)
        assert one["gap_uncond"] == pytest.approx(one["mse_uncond"] - one["mse"], abs=1e-12)
