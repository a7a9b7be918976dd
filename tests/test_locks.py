"""A lock is one process's, and ends with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from gc25d import locks
from gc25d.errors import UserError


def test_a_lock_is_held_across_processes_and_dies_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time, pathlib\n"
        "from gc25d.locks import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), wait_s=5, held='x'):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match="somebody trains here"),
            locks.locked(path, wait_s=0.1, held="somebody trains here"),
        ):
            pass
        holder.kill()
    with locks.locked(path, wait_s=5, held="x"):
        pass
