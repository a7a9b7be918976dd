"""Starting the processes of a job: their places, their statuses, requests to stop, and deaths."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.train.processes.launch import Layout, Meeting, run_nodes, run_processes, srun_command

PLACE = """
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "DS_ACCELERATOR")
open(sys.argv[1] + os.environ["RANK"], "w").write(" ".join(os.environ.get(n, "-") for n in names))
"""
# The second process fails, the first would go on for a minute.
ONE_FAILS = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(60)"
# Each process tells that it runs, and obeys SIGTERM with a status of its own.
OBEDIENT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
open(sys.argv[1] + os.environ["RANK"], "w").write(str(os.getpid()))
time.sleep(60)
"""
PARENT = """
import sys
from gc25d.train.processes.launch import Layout, run_processes
sys.exit(run_processes([sys.executable, "-c", *sys.argv[1:]], Layout(1, 2, gpu=False)))
"""


def command(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def wait_for(reached: Callable[[], bool]) -> None:
    """Well before the minute after which the processes would end by themselves."""
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    """A process that is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_processes_share_the_cores_for_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = (
        'import os, sys; open(sys.argv[1], "a").write(os.environ["TORCHINDUCTOR_COMPILE_THREADS"])'
    )
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 17)
    for asked, count in (("", "8"), ("5", "5")):
        if asked:
            monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", asked)
        said = tmp_path / f"said{asked}"
        assert run_processes(command(told, str(said)), Layout(1, 2, gpu=False)) == 0
        assert said.read_text() == count * 2


def test_processes_know_their_places(tmp_path: Path) -> None:
    layout = Layout(3, 2, gpu=False)
    meeting = Meeting("head", 1234)
    assert run_processes(command(PLACE, f"{tmp_path}/"), layout, 1, meeting) == 0
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert told == {"2": "2 0 6 2 head 1234 cpu", "3": "3 1 6 2 head 1234 cpu"}


def test_what_another_launcher_has_set_does_not_reach_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DS_ACCELERATOR", "ACCELERATE_MIXED_PRECISION", "OMPI_COMM_WORLD_RANK", "RANK"):
        monkeypatch.setenv(name, "7")
    told = 'import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], "w"))'
    path = tmp_path / "environment"
    assert run_processes(command(told, str(path)), Layout(1, 1, gpu=True)) == 0
    seen = json.loads(path.read_text())
    assert seen["RANK"] == "0"
    assert seen["GC25D_STARTED_BY"] == str(os.getpid())
    assert not {"DS_ACCELERATOR", "ACCELERATE_MIXED_PRECISION", "OMPI_COMM_WORLD_RANK"} & {*seen}


def test_a_gpu_job_leaves_the_choice_of_the_device_alone(tmp_path: Path) -> None:
    assert run_processes(command(PLACE, f"{tmp_path}/"), Layout(1, 1, gpu=True)) == 0
    rank, local, world, per_node, address, _, accelerator = (tmp_path / "0").read_text().split()
    assert (rank, local, world, per_node, accelerator) == ("0", "0", "1", "1", "-")
    assert address == "127.0.0.1"


def test_a_dead_process_ends_all_and_its_status_is_passed_on() -> None:
    began = time.monotonic()
    assert run_processes(command(ONE_FAILS), Layout(1, 2, gpu=False), grace_s=0.2) == 7
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("status", "level"), [(75, "INFO"), (7, "WARNING")])
def test_a_stop_on_request_is_no_fault_of_a_process(
    status: int, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one_first = f"import os, sys, time; time.sleep(1 - int(os.environ['RANK'])); sys.exit({status})"
    assert run_processes(command(one_first), Layout(1, 2, gpu=False)) == status
    assert [(r.levelname, r.message) for r in caplog.records] == [
        (level, f"process 1 ended with status {status}")
    ]


def test_a_killed_process_has_the_status_that_shells_give() -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_processes(command(suicide), Layout(1, 1, gpu=False)) == 128 + 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_reaches_every_process(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(command(PARENT, OBEDIENT, f"{tmp_path}/"))
    wait_for(lambda: len([*tmp_path.iterdir()]) == 2)
    parent.send_signal(number)
    assert parent.wait(30) == 75


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(command(PARENT, OBEDIENT, f"{tmp_path}/"))
    wait_for(lambda: all((tmp_path / r).exists() and (tmp_path / r).read_text() for r in "01"))
    pids = [int((tmp_path / rank).read_text()) for rank in "01"]
    assert all(running(pid) for pid in pids)
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(running(pid) for pid in pids))


def test_the_job_step_has_one_launcher_a_node() -> None:
    made = srun_command(["python", "-m", "x", "--log", "a b"], Layout(2, 8, gpu=True), 2900)
    assert made[:-3] == [
        *("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1")
    ]
    assert made[-3:-1] == ["bash", "-c"]
    assert made[-1] == (
        "exec python -m x --log 'a b' --node \"$SLURM_NODEID\" "
        '--address "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)" --port 2900'
    )


def test_the_job_step_asks_for_the_processors_again() -> None:
    made = srun_command(["true"], Layout(2, 8, gpu=True, cpus_per_node=16), 2900)
    assert made[4:6] == ["--cpus-per-task=16", "--kill-on-bad-exit=1"]


def fake_slurm(folder: Path) -> None:
    """`srun` starts both tasks here and ends with the largest status, as the real one does."""
    (folder / "scontrol").write_text('#!/bin/bash\nprintf "127.0.0.1\\nnode2\\n"\n')
    (folder / "srun").write_text(
        "#!/bin/bash\n"
        'while [[ "$1" == --* ]]; do shift; done\n'
        'SLURM_NODEID=0 "$@" & first=$!\n'
        'SLURM_NODEID=1 "$@" & second=$!\n'
        "wait $first; a=$?; wait $second; b=$?\n"
        "exit $(( a > b ? a : b ))\n"
    )
    for path in folder.iterdir():
        path.chmod(0o755)


def test_nodes_meet_at_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    fake_slurm(tools)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    told = tmp_path / "told-"
    script = f'import sys; open("{told}" + sys.argv[2], "w").write(" ".join(sys.argv[1:5]))'
    assert run_nodes(command(script), Layout(2, 1, gpu=False)) == 0
    assert (tmp_path / "told-0").read_text() == "--node 0 --address 127.0.0.1"
    assert (tmp_path / "told-1").read_text() == "--node 1 --address 127.0.0.1"
    assert (
        run_nodes(command("import sys; sys.exit(int(sys.argv[2]))"), Layout(2, 1, gpu=False)) == 1
    )


def test_several_nodes_need_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"hardware.nodes is 2 and there is no srun here"):
        run_nodes(["true"], Layout(2, 1, gpu=False))
