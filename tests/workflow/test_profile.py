"""The workflow refuses to plan by other rerun triggers than its profile's."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.workflow.profile import check_profile

ROOT = Path(__file__).parents[2]
OURS = ("--workflow-profile", str(ROOT / "profiles/default"))
REFUSED = "rerun-triggers is ['code', 'input', 'mtime', 'params', 'software-env'] instead of"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder to start from that has a default profile of its own."""
    profile = tmp_path / "elsewhere/profiles/default/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("printshellcmds: false\n")
    return tmp_path / "elsewhere"


def snakemake(start: Path, *arguments: str) -> tuple[int, str]:
    """Started in one folder to work in another beside it."""
    places = ("--directory", str(start.parent / "run"), "--snakefile", str(ROOT / "Snakefile"))
    settings = ("--configfile", str(Path(__file__).with_name("small.yaml")), "--cores", "1")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("snakemake")), *arguments, *places, *settings],
        cwd=start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_default_profile_of_the_starting_folder_is_refused(elsewhere: Path) -> None:
    status, said = snakemake(elsewhere, "sft_v10", "-n")
    assert status == 1
    assert REFUSED in said
    assert f"Give {' '.join(OURS)}" in said
    assert "Traceback" not in said


def test_no_profile_is_refused(elsewhere: Path) -> None:
    status, said = snakemake(elsewhere.parent, "sft_v10", "-n", "--workflow-profile", "none")
    assert status == 1
    assert REFUSED in said


@pytest.mark.parametrize("arguments", [("sft_v10", "-n", *OURS), ("--lint",), ("--unlock",)])
def test_ours_and_what_runs_nothing_is_not(elsewhere: Path, arguments: tuple[str, ...]) -> None:
    status, said = snakemake(elsewhere, *arguments)
    assert status == 0, said


def test_a_relative_profile_is_sought_where_snakemake_was_started(elsewhere: Path) -> None:
    """It was sought in the working folder too, which ended the run."""
    profile = elsewhere / "mine/config.yaml"
    profile.parent.mkdir()
    profile.write_text((ROOT / "profiles/default/config.yaml").read_text())
    status, said = snakemake(elsewhere, "sft_v10", "-n", "--profile", "mine", *OURS)
    assert status == 0, said
    status, said = snakemake(elsewhere, "sft_v10", "-n", "--profile", "mine")
    assert status == 0, said  # the same values


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rerun_triggers", {"mtime", "code"}),
        ("max_checksum_file_size", 1_000_000),
        ("rerun_incomplete", False),
    ],
)
def test_each_option_counts(option: str, value: object) -> None:
    modes = dict.fromkeys(("lint", "list_rules", "list_target_rules", "unlock", "reporter"))
    given = {
        **modes,
        "rerun_triggers": {"mtime"},
        "max_checksum_file_size": 100_000_000,
        "rerun_incomplete": True,
    }
    check_profile(Namespace(**given), ROOT)
    with pytest.raises(UserError, match=option.replace("_", "-")):
        check_profile(Namespace(**{**given, option: value}), ROOT)
