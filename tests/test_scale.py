"""The full data set's size: its counts, and its joins' time and memory on a simulated one."""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from bench.data import index as simulation
from gc25d.dataset.order import Schedule
from gc25d.prep.index import Choice, build_rows, count_clips
from gc25d.settings.loading import load_settings
from gc25d.settings.tree import Settings

ROOT = Path(__file__).parents[1]


def merged(*names: str) -> Settings:
    """What snakemake makes of config.yaml and these files: the last one wins, key by key."""

    def merge(base: dict, over: dict) -> dict:
        both = base | over
        inner = {k: merge(base.get(k, {}), v) for k, v in over.items() if isinstance(v, dict)}
        return both | inner

    content: dict = {}
    for name in ("config.yaml", *names):
        content = merge(content, yaml.safe_load((ROOT / "config" / name).read_text()))
    return load_settings(content)


def full_index(limit: int) -> list[dict]:
    names = [simulation.run_name(i) for i in range(256)]
    rows = [simulation.index_row(name, clip) for name in names for clip in range(50)]
    choice = Choice(names[:10], simulation.buried_clips(256), limit, 0)
    return build_rows(rows, choice, (81, 480, 832))


def test_counts_of_the_full_set():
    index = full_index(0)
    assert count_clips(index) == {
        "train": 12_300, "val": 500, "dropped": 348, "usable": 12_452,
        "usable_train": 11_955, "usable_val": 497,
    }  # fmt: skip
    assert Counter(row["split"] for row in index if row["drop"]) == {"train": 345, "val": 3}
    full = merged("full.yaml").train
    schedule = Schedule(11_955, full.global_batch, full.grad_accum, 0)
    # 8 GPUs of one sample: a round is a micro-batch on each rank. 747 · 26.77 = 20,000 steps.
    assert (schedule.round_size, schedule.rounds, schedule.steps_per_epoch) == (8, 1_494, 747)
    assert full.max_steps / schedule.steps_per_epoch == pytest.approx(26.8, abs=0.05)


def test_counts_of_the_mini_set():
    settings = merged("full.yaml", "mini.yaml")
    assert settings.dataset == "gc25d_v10_mini"
    counts = count_clips(full_index(settings.prep.limit))
    assert (counts["usable_train"], counts["usable_val"]) == (100, 100)
    schedule = Schedule(100, settings.train.global_batch, settings.train.grad_accum, 0)
    assert settings.hardware.gpus_per_node == 4 == schedule.round_size
    assert (schedule.rounds, schedule.steps_per_epoch) == (25, 13)


@pytest.mark.slow
def test_joins_of_the_full_set_are_quick_and_small(tmp_path):
    peaks = {}
    for runs in (32, 256):
        folder = tmp_path / str(runs)
        used = simulation.measure_all(folder, runs)
        peaks[runs] = used["build_index"].peak_mb
        assert used["build_index"].seconds < 30
        assert all(
            used[f"dry run, {state}"].seconds < 10 for state in ("nothing built", "data built")
        )
    ready = json.loads((folder / "data/gc25d_v10/READY").read_text())
    assert ready["counts"]["usable_train"] == 11_955
    assert ready["steps_per_epoch"] == 747
    # 11,200 clips more; a clip's row is 2 kB of JSON, so 10 kB each would be a leak.
    assert peaks[256] - peaks[32] < 112
