"""Setting a run aside: whatever is left of it, and wherever its folders really are."""

import argparse
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.records import write_json
from gc25d.steps import restart


def set_aside(root: Path) -> Path:
    restart.main(argparse.Namespace(directory=root))
    (aside,) = (root / "previous").iterdir()
    return aside


def test_what_deleted_outputs_and_a_lost_record_leave_is_set_aside(tmp_path: Path) -> None:
    write_json(tmp_path / "train/settings.json", {})
    with pytest.raises(UserError, match="nothing to set aside"):
        restart.main(argparse.Namespace(directory=tmp_path))
    assert not (tmp_path / "previous").exists()
    write_json(tmp_path / "train/states/step-0000004/manifest.json", {})
    aside = set_aside(tmp_path)
    assert (aside / "train/states/step-0000004/manifest.json").exists()
    assert not (tmp_path / "train").exists()


def test_links_still_lead_to_where_they_led(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, fast = tmp_path / "work/run", tmp_path / "fast"
    for name in ("train", "states", "figures", "step"):
        write_json(fast / name / "x.json", {"of": name})
    write_json(root / "train/run.json", {})
    write_json(root / "train/step-2/own.json", {"of": "own"})
    (root / "train/states").symlink_to("../../../fast/states")
    (root / "train/step-2/there").symlink_to("own.json")
    (root / "figures").symlink_to("../../fast/figures")
    (root / "exports").symlink_to(fast / "step")
    aside = set_aside(root)
    for name in ("train/states", "figures", "exports"):
        assert (aside / name).is_symlink()
        assert (aside / name / "x.json").exists()
        assert not (root / name).exists()
    assert (aside / "train/step-2/there").readlink() == Path("own.json")
    assert f"{root / 'figures'} is a link to ../../fast/figures" in caplog.text


def test_a_train_folder_that_is_a_link(tmp_path: Path) -> None:
    write_json(tmp_path / "fast/run.json", {})
    (tmp_path / "train").symlink_to("fast")
    aside = set_aside(tmp_path)
    assert (aside / "train").resolve() == tmp_path / "fast"
    assert not (tmp_path / "train").is_symlink()


def test_a_train_folder_on_a_disk_that_is_away_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(tmp_path / "unmounted")
    with pytest.raises(UserError, match=f"train: is a link to {tmp_path}/unmounted, which is not"):
        restart.main(argparse.Namespace(directory=tmp_path))
    assert (tmp_path / "train").is_symlink()
