"""Which DeepSpeed has its sums of gradients replaced: the one that this was written for, alone."""

import inspect
import shutil
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from gc25d.train.zero.all_reduce import (
    DIGEST,
    FILES,
    REPLACED,
    digest_of_sources,
    sum_beside_training,
)

RUNTIME = Path(inspect.getfile(DeepSpeedZeroOptimizer)).parents[1]


def standing_in(file: Path, **changed: object) -> type:
    """DeepSpeed's class as if it had been imported from elsewhere, with some methods changed."""
    methods = {
        name: FunctionType(
            method.__code__.replace(co_filename=str(file)), {}, closure=method.__closure__
        )
        for name, method in inspect.getmembers(DeepSpeedZeroOptimizer, inspect.isfunction)
    }
    return type("Zero", (), {**methods, **changed})


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """DeepSpeed's files in another place."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(RUNTIME / name, tmp_path / name)
    return tmp_path


def test_the_pinned_deepspeed_is_known_wherever_it_lies(copied: Path) -> None:
    assert digest_of_sources(DeepSpeedZeroOptimizer) == DIGEST
    assert digest_of_sources(standing_in(copied / FILES[0])) == DIGEST


@pytest.mark.parametrize("name", FILES)
def test_one_changed_line_anywhere_is_another_deepspeed(copied: Path, name: str) -> None:
    """In a caller too: what is replaced may have to wait for something else then."""
    with (copied / name).open("a") as file:
        file.write("\n# another line\n")
    assert digest_of_sources(standing_in(copied / FILES[0])) not in (DIGEST, "")


def test_methods_that_are_gone_or_put_in_by_others_are_not_known(copied: Path) -> None:
    def other(self: object) -> None:
        """Of this file."""

    file = copied / FILES[0]
    for name in REPLACED:
        assert digest_of_sources(standing_in(file, **{name: other})) == ""
        assert digest_of_sources(standing_in(file, **{name: None})) == ""
    file.unlink()
    assert digest_of_sources(standing_in(file)) == ""


def test_an_unknown_one_is_told_and_nothing_of_it_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deepspeed.__version__", "0.20.1")
    optimizer: Any = SimpleNamespace(average_tensor=print)
    before = dict(vars(optimizer))
    assert sum_beside_training(optimizer) == "DeepSpeed 0.20.1"
    assert vars(optimizer) == before
