"""Files dated ahead of this machine's clock."""

import os
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.workflow.clock import check_times


def test_files_of_the_future_are_refused_by_name(tmp_path: Path) -> None:
    ready, missing = tmp_path / "READY", tmp_path / "gone"
    ready.touch()
    os.utime(ready, (10_000.0, 10_000.0))
    check_times([missing, ready], now=9_701.0)  # clocks of two hosts may differ a little
    with pytest.raises(UserError, match="READY is dated 60 minutes ahead of this machine's clock"):
        check_times([missing, ready], now=6_400.0)
