"""The benchmarks are scripts beside each other: their folder is importable here."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def bench_folder(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield BENCH
    for name in set(sys.modules) - before:  # plain names such as `report` stay with the benchmarks
        if (
            getattr(sys.modules[name], "__file__", None)
            and BENCH in Path(sys.modules[name].__file__).parents
        ):
            del sys.modules[name]
